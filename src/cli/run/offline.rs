//! The packs of a run with `data.pack.mode: offline`: found, or made, before its actors start.

use super::args::RunArgs;
use super::folder::{expect_no_run, expect_same_data, named};
use crate::cli::UsageError;
use crate::cli::data::make_packs;
use crate::run::compose::Composition;
use crate::run::packs::{Packs, WantedPacks};
use loongforge_actors::launch::is_takeover;
use loongforge_core::checkpoint::{Manifest, latest};
use loongforge_core::data::settle_steps_of;
use loongforge_core::observe::Console;
use loongforge_core::store::is_store_url;
use std::path::{Path, PathBuf};

/// Sees to it that the run has its packs, and counts its steps in them. A run without such packs is returned as it is. `is_part`:
/// its other processes were started apart.
///
/// # Errors
/// The folder has another run, the packs are others than those that a resumed run began with, or they cannot be made; or this is
/// one of several processes that were started apart, which do not wait for packs to be made.
pub fn packed(
    args: &RunArgs,
    is_part: bool,
    composition: Composition,
    console: &Console,
) -> anyhow::Result<Composition> {
    if !composition.config().packs_first() {
        return Ok(composition);
    }
    let usage = |error: &(dyn std::error::Error + 'static)| UsageError::of(error);
    if is_part || (args.processes && is_takeover()) {
        return composition.settled().map_err(|error| usage(&error).into());
    }
    let config = composition.config();
    if args.resume.is_none() && !args.overwrite {
        expect_no_run(config)?;
    }
    let wanted = WantedPacks::new(config, composition.folder())?;
    let resumed = resumed(&composition, args.resume.as_deref())?;
    if let Some(checkpoint) = &resumed {
        // Before packs are made in the place of those that the run began with.
        expect_same_data(checkpoint, &composition)?;
    }
    let known = wanted.counted()?;
    if let (Some(checkpoint), Some(packs)) = (&resumed, &known)
        && is_done(&composition, checkpoint, packs)?
    {
        return composition.counted(packs.stats.packs).map_err(|error| usage(&error).into());
    }
    let is_good = |packs: &Packs| {
        let damaged = if args.trust { None } else { wanted.damaged(packs) };
        let damaged = damaged.map(|name| wanted.dir.join(name));
        damaged.iter().for_each(|path| {
            console.line(&format!("{} is not what was written: the packs are made again", path.display()));
        });
        damaged.is_none()
    };
    match wanted.find()? {
        Some(packs) if is_good(&packs) => {}
        Some(_) => {
            wanted.remove()?;
            make_packs(config, composition.folder(), console, None)?;
        }
        None => make_packs(config, composition.folder(), console, None)?,
    }
    composition.settled().map_err(|error| usage(&error).into())
}

/// Returns the checkpoint that `--resume` means, where it is a folder here.
fn resumed(composition: &Composition, wanted: Option<&str>) -> anyhow::Result<Option<PathBuf>> {
    Ok(match wanted {
        None => None,
        Some("auto") => latest(&composition.config().checkpoint.dir)?,
        Some(url) if is_store_url(url) => None,
        Some(path) => Some(named(path)?),
    })
}

/// Returns whether a checkpoint has all steps: packs that were removed since are not needed.
fn is_done(composition: &Composition, checkpoint: &Path, packs: &Packs) -> anyhow::Result<bool> {
    let mut config = composition.config().clone();
    settle_steps_of(&mut config, packs.stats.packs)?;
    Ok(Manifest::read(checkpoint)?.num_steps >= config.train.num_steps())
}

/// Returns the lines that describe a run's packs before it begins.
///
/// # Errors
/// There are no packs of this config.
pub fn lines(composition: &Composition) -> anyhow::Result<Vec<String>> {
    let config = composition.config();
    if !config.packs_first() {
        return Ok(Vec::new());
    }
    Ok(WantedPacks::new(config, composition.folder())?.expect()?.lines(config))
}
