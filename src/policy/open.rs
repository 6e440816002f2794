//! Opens the policy that a command names.

use super::trained::Trained;
use crate::model::hub_data::fetch_paths;
use anyhow::{Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use loongforge_core::config::Device;
use loongforge_core::robot::pads::{Expert, Random};
use loongforge_core::robot::{ACTION, Policy, Replay};
use std::path::PathBuf;

/// The policy that acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// The trained one of the checkpoint
    Trained,
    /// The recorded actions of an episode (--episodes, --episode), whatever the observation
    Replay,
    /// The expert of the task Pads, which finds the pad in the picture
    PadsExpert,
    /// Random actions in the task Pads
    PadsRandom,
}

/// Command-line options that select the policy.
#[derive(Args, Clone, Debug)]
pub struct Wanted {
    /// Checkpoint, run folder (its newest checkpoint), or folder of a policy in lerobot's layout
    pub checkpoint: Option<String>,
    /// Policy to use
    #[arg(long, value_enum, default_value = "trained")]
    pub policy: Choice,
    /// Robot to act for, if the policy was trained on several (policy.embodiments)
    #[arg(long, value_name = "NAME")]
    pub embodiment: Option<String>,
    /// LeRobot data set of recorded episodes
    #[arg(long, value_name = "SET")]
    pub episodes: Option<PathBuf>,
    /// Index of the episode to replay [default: 0]
    #[arg(long, value_name = "N")]
    pub episode: Option<usize>,
    /// Feature of the actions in --episodes [default: as in the policy's training, or action]
    #[arg(long, value_name = "FEATURE", requires = "episodes")]
    pub action: Option<String>,
    /// Number of actions of a chunk to execute before the policy is queried again [default: the model's n_action_steps]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub execute: Option<u32>,
    /// Seed of the policy's noise, and of the layouts of Pads [default: 1]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Device, as in a config: auto, cpu, cuda or cuda:N [default: auto]
    #[arg(long)]
    pub device: Option<Device>,
}

/// The purpose for which a policy is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// One observation, of which the whole chunk is printed.
    Once,
    Serving,
    /// Layouts of Pads, or recorded episodes.
    Judging,
}

impl Wanted {
    /// Returns `--seed`, by default 1.
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// Checks that every option has an effect.
    ///
    /// # Errors
    /// One has none; the error names it and says what it requires.
    pub fn expect_effects(&self, purpose: Purpose) -> Result<()> {
        let (is_replay, is_judged) = (self.policy == Choice::Replay, purpose == Purpose::Judging);
        let draws = matches!(self.policy, Choice::Trained | Choice::PadsRandom);
        let options = [
            ("--episodes", self.episodes.is_some() && !is_replay && !is_judged, "requires --policy replay"),
            ("--episode", self.episode.is_some() && !is_replay, "requires --policy replay"),
            ("--embodiment", self.embodiment.is_some() && self.policy != Choice::Trained, "requires a trained policy"),
            ("--device", self.device.is_some() && self.policy != Choice::Trained, "requires a trained policy"),
            ("--seed", self.seed.is_some() && !draws && !is_judged, "requires a policy that draws random numbers"),
            (
                "--execute",
                self.execute.is_some() && purpose == Purpose::Once,
                "has no effect: the whole chunk is printed",
            ),
        ];
        match options.into_iter().find(|(_, is_idle, _)| *is_idle) {
            Some((option, _, why)) => bail!("{option} {why}: leave it out"),
            None => Ok(()),
        }
    }
}

/// Opens a policy.
///
/// # Errors
/// A trained policy without its folder, another one with one, an option that has no effect, a folder that is no policy's or no set, or
/// more executed actions than a chunk has.
pub fn open(wanted: &Wanted, purpose: Purpose) -> Result<Box<dyn Policy>> {
    wanted.expect_effects(purpose)?;
    let robot = wanted.embodiment.as_deref();
    let mut policy: Box<dyn Policy> = match (wanted.policy, &wanted.checkpoint) {
        (Choice::Trained, None) => bail!("missing checkpoint: name its folder, or choose another --policy"),
        (Choice::Trained, Some(checkpoint)) => {
            let device = wanted.device.unwrap_or_default();
            Box::new(Trained::open(checkpoint, robot, wanted.seed(), &device)?)
        }
        (_, Some(checkpoint)) => bail!("{checkpoint} would not be read, because --policy is not `trained`"),
        (Choice::Replay, None) => match &wanted.episodes {
            Some(set) => {
                fetch_paths(set.to_str()).map_err(|error| anyhow!("{error}"))?;
                Box::new(Replay::open(set, wanted.episode.unwrap_or(0), wanted.action.as_deref().unwrap_or(ACTION))?)
            }
            None => bail!("missing episodes: name their set with --episodes"),
        },
        (Choice::PadsExpert, None) => Box::new(Expert::new()),
        (Choice::PadsRandom, None) => Box::new(Random::new(wanted.seed())),
    };
    if let Some(count) = wanted.execute {
        let (count, chunk) = (count as usize, policy.spec().chunk_size);
        ensure!(count <= chunk, "--execute is {count}, but a chunk has only {chunk} actions");
        policy.execute(count);
    }
    Ok(policy)
}
