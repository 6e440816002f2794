//! After a run of a robot policy: its actions on held-out episodes beside the recorded ones, and beside those that need no policy.

use crate::policy::open_loop::open_loop;
use crate::policy::trained::Trained;
use anyhow::{Context, Result, anyhow};
use loongforge_core::checkpoint::Manifest;
use loongforge_core::config::{Eval, Policy, RunConfig};
use loongforge_core::data::lerobot::Set;
use loongforge_core::data::policy::embodiment_of;
use loongforge_core::observe::{Console, EvalRecord};
use std::path::Path;

/// Episodes of a set that are compared.
const NUM_EPISODES: usize = 10;

/// Compares the checkpoint's actions with those of the first episodes of each held-out set: a record a set.
///
/// # Errors
/// The checkpoint or a set cannot be read, or the policy cannot act.
pub fn act(config: &RunConfig, checkpoint: &Path, console: &Console) -> Result<Vec<EvalRecord>> {
    let Some(eval) = &config.eval else { return Ok(Vec::new()) };
    let keys = &config.policy;
    let own = Policy::default();
    if (&keys.state, &keys.action) != (&own.state, &own.action) {
        console.line("held-out actions are not compared: policy.state or policy.action names another feature");
        return Ok(Vec::new());
    }
    let cameras: Vec<(String, String)> = keys.cameras.iter().map(|(key, name)| (key.clone(), name.clone())).collect();
    let step = Manifest::read(checkpoint)?.num_steps;
    let held_out = eval.path.iter().map(|path| (Eval::HELD_OUT, path));
    let sets = held_out.chain(eval.sets.iter().map(|(name, path)| (name.as_str(), path)));
    let mut records = Vec::new();
    // Its weights are those of all sets, whichever robot acts.
    let mut opened: Option<Trained> = None;
    for (name, path) in sets {
        let robot = match keys.embodiments.is_empty() {
            true => None,
            false => {
                Some(embodiment_of(keys, &Set::open(path)?).map_err(|reason| anyhow!("{}: {reason}", path.display()))?)
            }
        };
        let policy = match &mut opened {
            Some(policy) => policy,
            none => {
                let named = checkpoint.display().to_string();
                none.insert(Trained::open(&named, robot, config.run.seed, &config.device)?)
            }
        };
        policy.choose(robot)?;
        let found = open_loop(policy, path.as_path(), NUM_EPISODES, None, &cameras);
        let action_errors = found.with_context(|| format!("the set {name} of eval"))?.absolute_errors();
        let record = EvalRecord { step, set: name.to_owned(), action_errors, ..EvalRecord::default() };
        let set = if name == Eval::HELD_OUT { String::new() } else { format!(", {name}") };
        console.line(&format!("held out{set}, first episodes: {}", record.text()));
        records.push(record);
    }
    Ok(records)
}
