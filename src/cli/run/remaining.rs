//! Finds out what is left of a run whose steps are all done.

use crate::eval::report::EVAL;
use crate::eval::samples::step_folder;
use crate::eval::{after_run, held_out_sets};
use crate::run::compose::{Composition, Resume, is_own};
use loongforge_core::checkpoint::latest;
use loongforge_core::config::RunConfig;
use loongforge_core::observe::read_evaluations;

/// The work that is left of a run whose steps are all done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Left {
    Nothing,
    /// The evaluation that is made when the run's actors have ended.
    AfterRun,
    /// The evaluation after the last step, which its actors make.
    Evaluation,
}

/// Returns the checkpoint of a run whose steps are all done, and what is left of it, unless its actors have to make that.
///
/// # Errors
/// A file or folder of the run cannot be read.
pub fn all_done<'a>(
    config: &RunConfig,
    composition: &Composition,
    resumed: Option<&'a Resume>,
) -> anyhow::Result<Option<(&'a Resume, Left)>> {
    let steps = config.train.num_steps();
    let Some(done) = resumed.filter(|resumed| resumed.first_step.0 >= steps) else { return Ok(None) };
    let left = left_of(config, composition, done)?;
    Ok((left != Left::Evaluation).then_some((done, left)))
}

/// Returns whether the actors of a run that has its last checkpoint, `done`, still have to evaluate it.
///
/// # Errors
/// A file or folder of the run cannot be read.
pub fn needs_actors(config: &RunConfig, composition: &Composition, done: &Resume) -> anyhow::Result<bool> {
    Ok(left_of(config, composition, done)? == Left::Evaluation)
}

/// Returns the work that is left of a run that has its last checkpoint, `done`, and may have been killed before that was evaluated.
///
/// # Errors
/// A file or folder of the run cannot be read.
fn left_of(config: &RunConfig, composition: &Composition, done: &Resume) -> anyhow::Result<Left> {
    let (steps, dir) = (config.train.num_steps(), &config.run.dir);
    if done.first_step.0 != steps || !is_own(&done.checkpoint, config) {
        return Ok(Left::Nothing);
    }
    let during = held_out_sets::during(config, composition.folder());
    let is_told = during.is_some() && config.log.jsonl;
    let told = if is_told { read_evaluations(&dir.join(EVAL))? } else { Vec::new() };
    let has = |name: &String| told.iter().any(|record| record.step == steps && record.set == *name);
    let names = during.map(|eval| eval.set_names(&config.data)).unwrap_or_default();
    if is_told && !names.iter().any(has) {
        return Ok(Left::Evaluation);
    }
    if after_run::is_made(config)? {
        return Ok(Left::Nothing);
    }
    let lacks_samples = config.sample.is_some() && !dir.join(step_folder(done.first_step)).is_dir();
    if lacks_samples || !names.iter().all(has) {
        return Ok(Left::Evaluation);
    }
    // The newest one is evaluated.
    let newest = latest(&config.checkpoint.dir)?;
    let is_newest = newest.is_some_and(|newest| newest.file_name() == done.checkpoint.file_name());
    let is_evaluated = config.eval.is_some() || config.sample.is_some();
    Ok(if is_newest && is_evaluated { Left::AfterRun } else { Left::Nothing })
}
