//! Opens the policy that a command names.

use anyhow::{Result, bail};
use loongforge_core::robot::Policy;
use loongforge_core::robot::pads::{Expert, Random};

/// Which policy acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// The trained one of the checkpoint
    Trained,
    /// The expert of the task Pads, which finds the pad in the picture
    PadsExpert,
    /// Random actions in the task Pads
    PadsRandom,
}

/// Opens a policy. `seed` is that of its noise, `num_executed` replaces its own number of executed actions.
///
/// # Errors
/// A trained policy without its folder, another one with one, or a folder that is no policy's.
pub fn open(choice: Choice, checkpoint: Option<&str>, seed: u64) -> Result<Box<dyn Policy>> {
    match (choice, checkpoint) {
        (Choice::Trained, None) => bail!("which checkpoint? Name its folder, or another --policy"),
        (Choice::Trained, Some(_)) => bail!("trained policies are not opened yet"),
        (_, Some(checkpoint)) => bail!("{checkpoint} would not be read: --policy is not trained"),
        (Choice::PadsExpert, None) => Ok(Box::new(Expert::new())),
        (Choice::PadsRandom, None) => Ok(Box::new(Random::new(seed))),
    }
}
