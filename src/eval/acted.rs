//! The actions of a robot policy after its run, on held-out episodes, beside the recorded ones, and beside those that need no policy.

use crate::policy::open_loop::{Given, names_in, open_loop};
use crate::policy::trained::Trained;
use anyhow::{Context, Result, anyhow};
use loongforge_core::checkpoint::Manifest;
use loongforge_core::config::{Eval, RunConfig, TrainFile};
use loongforge_core::data::DataError;
use loongforge_core::data::lerobot::Set;
use loongforge_core::data::policy::embodiment_of;
use loongforge_core::observe::{Console, EvalRecord};
use loongforge_core::robot::Policy;
use std::path::Path;
use std::sync::Arc;

/// Episodes of a set that are compared.
const NUM_EPISODES: usize = 10;

/// Compares the checkpoint's actions with those of the first episodes of each held-out set: a record a set.
///
/// # Errors
/// The checkpoint or a set cannot be read, or the policy cannot act.
pub fn act(config: &RunConfig, checkpoint: &Path, console: &Console) -> Result<Vec<EvalRecord>> {
    let Some(eval) = &config.eval else { return Ok(Vec::new()) };
    let keys = &config.policy;
    let step = Manifest::read(checkpoint)?.num_steps;
    let mut records = Vec::new();
    // Its weights are those of all sets, whichever robot acts.
    let mut opened: Option<Trained> = None;
    for (name, file) in eval.files() {
        let set = open(&file)?;
        let robot = match keys.embodiments.is_empty() {
            true => None,
            false => Some(embodiment_of(keys, &set).map_err(|reason| anyhow!("{}: {reason}", set.folder().display()))?),
        };
        let policy = match &mut opened {
            Some(policy) => policy,
            none => {
                let named = checkpoint.display().to_string();
                none.insert(Trained::open(&named, robot, config.run.seed, &config.device)?)
            }
        };
        policy.choose(robot)?;
        // The checkpoint has kept what the data of the run is called.
        let names = names_in(&set, policy.spec(), Given::default()).map_err(|reason| anyhow!("{reason}"))?;
        let found = open_loop(policy, &set, NUM_EPISODES, None, &names);
        let action_errors = found.with_context(|| format!("the set {name} of eval"))?.absolute_errors();
        let shown = if name == Eval::HELD_OUT { String::new() } else { format!(", {name}") };
        let record = EvalRecord { step, set: name, action_errors, ..EvalRecord::default() };
        console.line(&format!("held out{shown}, first episodes: {}", record.text()));
        records.push(record);
    }
    Ok(records)
}

/// Opens the episodes of a set that are compared.
fn open(file: &TrainFile) -> Result<Arc<Set>, DataError> {
    let set = Set::open(file.path.as_ref())?;
    let set = match &file.episodes {
        Some(ranges) => set.choose(ranges)?,
        None => set,
    };
    Ok(Arc::new(set))
}
