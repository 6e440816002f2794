//! The packs of a run with `data.pack.mode: offline`: found, or made, before its actors start.

use super::args::RunArgs;
use super::folder::expect_no_run;
use super::remaining::needs_actors;
use crate::cli::UsageError;
use crate::cli::data::make_packs;
use crate::run::compose::{Composition, Resume};
use crate::run::packs::{Packs, WantedPacks};
use loongforge_core::data::settle_steps;
use loongforge_core::observe::Console;

/// Returns whether the packs of a run are there, if it has any. A scheduler that dies before has begun nothing to take over.
///
/// # Errors
/// Files of the data or the model, or the ledger, cannot be read.
pub fn has_packs(composition: &Composition) -> anyhow::Result<bool> {
    let config = composition.config();
    Ok(!config.packs_first() || WantedPacks::new(config, composition.folder())?.find()?.is_some())
}

/// The process that makes the packs of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PacksOf {
    /// The packs that this process finds or makes.
    ThisProcess,
    /// The packs of others, which must be there: the run's other processes were started apart and do not wait for packs to be made, or
    /// this one takes the place of a scheduler that had its packs.
    Others,
}

/// Sees to it that the run has its packs, and counts its steps in them. A run without such packs is returned as it is. `resumed`: what
/// it goes on from, which was found to fit.
///
/// # Errors
/// The folder has another run, the packs cannot be made, or those of others are not there.
pub fn packed(
    args: &RunArgs,
    packs_of: PacksOf,
    composition: Composition,
    resumed: Option<&Resume>,
    console: &Console,
) -> anyhow::Result<Composition> {
    if !composition.config().packs_first() {
        return Ok(composition);
    }
    if packs_of == PacksOf::Others {
        return composition.settled().map_err(|error| UsageError::of(error).into());
    }
    let config = composition.config();
    let wanted = WantedPacks::new(config, composition.folder())?;
    wanted.restore()?;
    if let (Some(resumed), Some(packs)) = (resumed, wanted.counted()?)
        && is_done(&composition, resumed, &packs)?
    {
        return composition.with_packs(packs).map_err(|error| UsageError::of(error).into());
    }
    let is_good = |packs: &Packs| {
        let damaged = if args.trust { None } else { wanted.damaged(packs) };
        let damaged = damaged.map(|name| wanted.dir.join(name));
        damaged.iter().for_each(|path| {
            console.line(&format!("{} has changed since it was written: the packs are made again", path.display()));
        });
        damaged.is_none()
    };
    let found = wanted.find()?;
    if !found.as_ref().is_some_and(is_good) {
        if resumed.is_none() && !args.overwrite {
            expect_no_run(config)?;
        }
        if found.is_some() {
            wanted.remove()?;
        }
        make_packs(&wanted, composition.folder(), console, None)?;
    }
    let packs = wanted.expect().map_err(UsageError::of)?;
    composition.with_packs(packs).map_err(|error| UsageError::of(error).into())
}

/// Returns whether what is resumed has all steps, and no actor has to evaluate it: packs that were removed since are not needed.
fn is_done(composition: &Composition, resumed: &Resume, packs: &Packs) -> anyhow::Result<bool> {
    let mut config = composition.config().clone();
    settle_steps(&mut config, packs.stats.packs)?;
    Ok(resumed.first_step.0 >= config.train.num_steps() && !needs_actors(&config, composition, resumed)?)
}
