//! A run that is resumed from an earlier step than its folder has, or from elsewhere, leaves checkpoints aside: from then on the newest
//! checkpoint is the newest of what it goes on with.

use crate::cli::UsageError;
use crate::run::compose::{Composition, is_own};
use crate::run::uploads;
use anyhow::Context;
use loongforge_core::checkpoint::MANIFEST;
use loongforge_core::config::RunConfig;
use loongforge_core::files::{LEFT_ASIDE, LeftAside, step_name};
use loongforge_core::observe::Console;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Checkpoints that are named in one line.
const MAX_NAMED: usize = 3;

/// Returns the checkpoint that the run was resumed from by name where it has saved none since; `None`: it was not.
///
/// # Errors
/// The checkpoint is not there any more.
pub fn beginning(config: &RunConfig, console: &Console) -> anyhow::Result<Option<PathBuf>> {
    let dir = &config.checkpoint.dir;
    let Some(left) = LeftAside::read(dir).with_context(|| dir.display().to_string())? else { return Ok(None) };
    let path = left.resumed_from.display();
    if !left.resumed_from.join(MANIFEST).is_file() {
        if left.checkpoints.is_empty() && is_own(&left.resumed_from, config) {
            return Ok(None);
        }
        let what = format!(
            "--resume: the run was last resumed from {path}, which is not there any more, and has saved nothing since; name the \
             checkpoint to continue from with --resume=PATH{}",
            listed(&left).map_or(String::new(), |names| format!(" ({} has {names})", dir.display()))
        );
        return Err(UsageError(what).into());
    }
    console.line(&format!("resuming from {path}, as before: the run has saved nothing since"));
    Ok(Some(left.resumed_from))
}

/// Tells what a run that goes on from this checkpoint leaves aside.
///
/// # Errors
/// The folder of checkpoints cannot be read.
pub fn tell(checkpoint: &Path, num_steps: u64, config: &RunConfig, console: &Console) -> anyhow::Result<()> {
    if let Some(names) = listed(&left_by(checkpoint, num_steps, config, false)?) {
        let (checkpoint, dir) = (checkpoint.display(), config.checkpoint.dir.display());
        console.line(&format!(
            "warning: the run continues from {checkpoint} and leaves {names} in {dir} aside: --resume without a path continues from \
             what this run saves, and --resume=PATH from one of those"
        ));
    }
    Ok(())
}

/// Notes what the run leaves aside, for the next `--resume` without a path. `is_named`: the checkpoint that it was resumed from was
/// named; else what it leaves in its store is known from earlier.
///
/// # Errors
/// The folder of checkpoints cannot be read or written.
pub fn note(composition: &Composition, is_named: bool) -> anyhow::Result<()> {
    let Some(resumed) = composition.resumed_from_disk() else { return Ok(()) };
    let (config, checkpoint) = (composition.config(), &resumed.checkpoint);
    let dir = &config.checkpoint.dir;
    let left = left_by(checkpoint, resumed.first_step.0, config, is_named)?;
    // The store may have a record of before, which this one replaces, although nothing is in it.
    let replaces = config.checkpoint.upload.is_some() && (is_named || dir.join(LEFT_ASIDE).exists());
    let noted = match left.checkpoints.is_empty() && is_own(checkpoint, config) && !replaces {
        true => LeftAside::remove(dir),
        false => left.write(dir),
    };
    noted.with_context(|| dir.display().to_string())
}

fn left_by(checkpoint: &Path, num_steps: u64, config: &RunConfig, asks_store: bool) -> anyhow::Result<LeftAside> {
    let dir = &config.checkpoint.dir;
    let named = || dir.display().to_string();
    let from = std::path::absolute(checkpoint).with_context(named)?;
    let after = is_own(checkpoint, config).then_some(num_steps);
    let mut left = LeftAside::of(dir, from, after).with_context(named)?;
    let earlier = LeftAside::read(dir).with_context(named)?;
    left.noted_at = match asks_store {
        true => UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs()),
        false => earlier.as_ref().map_or(0, |earlier| earlier.noted_at),
    };
    let stored = if asks_store { uploads::stored_after(config, after).map(Some) } else { Ok(None) };
    match stored {
        Ok(Some(stored)) => {
            let own = std::fs::read(checkpoint.join(MANIFEST)).ok();
            let others = stored.iter().filter(|(_, text)| own.as_ref() != Some(text));
            others.for_each(|(num_steps, text)| left.add(*num_steps, text));
        }
        Ok(None) => earlier.into_iter().for_each(|earlier| left.add_earlier(earlier, after)),
        Err(error) => {
            tracing::warn!("checkpoint.upload cannot be read: what is left aside there is taken from earlier: {error}");
            earlier.into_iter().for_each(|earlier| left.add_earlier(earlier, after));
        }
    }
    Ok(left)
}

/// Names of the checkpoints, the newest first; `None`: there are none.
fn listed(left: &LeftAside) -> Option<String> {
    let names: Vec<String> = left.checkpoints.keys().rev().map(|steps| step_name(*steps)).collect();
    let more = names.len().saturating_sub(MAX_NAMED);
    let shown = names.get(..MAX_NAMED).unwrap_or(&names).join(", ");
    match (names.is_empty(), more) {
        (true, _) => None,
        (false, 0) => Some(shown),
        (false, more) => Some(format!("{shown} and {more} more")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::checkpoint::{Manifest, StoredCheckpoints};
    use loongforge_core::config::load_text;
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;

    const YAML: &str = include_str!("../../../configs/sft_text.yaml");

    #[test]
    fn a_run_that_was_resumed_from_elsewhere_and_saved_nothing_begins_there_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = load_text(YAML).unwrap_or_else(|report| panic!("{report}")).config;
        config.checkpoint.dir = dir.path().join("checkpoints");
        let elsewhere = dir.path().join("elsewhere/step-00000004");
        for path in [elsewhere.clone(), config.checkpoint.dir.join("step-00000009")] {
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join(MANIFEST), "{}").unwrap();
        }
        assert!(!is_own(&elsewhere, &config) && is_own(&config.checkpoint.dir.join("step-00000009"), &config));
        let console = Console::stderr();
        assert_eq!(beginning(&config, &console).unwrap(), None);
        let left = left_by(&elsewhere, 4, &config, true).unwrap();
        assert_eq!(listed(&left).as_deref(), Some("step-00000009"));
        left.write(&config.checkpoint.dir).unwrap();
        assert_eq!(beginning(&config, &console).unwrap(), Some(elsewhere.clone()));
        fs::remove_dir_all(&elsewhere).unwrap();
        let error = beginning(&config, &console).unwrap_err().to_string();
        assert!(
            error.contains("step-00000004, which is not there any more") && error.contains("--resume=PATH"),
            "{error}"
        );
        assert!(error.contains("has step-00000009"), "{error}");
        // A record that leaves nothing aside is there for the store.
        let own = config.checkpoint.dir.join("step-00000003");
        LeftAside::of(&config.checkpoint.dir, own, Some(9)).unwrap().write(&config.checkpoint.dir).unwrap();
        assert_eq!(beginning(&config, &console).unwrap(), None);
    }

    #[test]
    fn what_only_the_store_has_is_left_as_well() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = load_text(YAML).unwrap_or_else(|report| panic!("{report}")).config;
        config.checkpoint.dir = dir.path().to_owned();
        config.checkpoint.upload = Some("memory:///aside".to_owned());
        let stored = StoredCheckpoints::new("memory:///aside");
        let saved = |num_steps: u64| {
            let path = dir.path().join(step_name(num_steps));
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join(MANIFEST), Manifest::of_files(num_steps, BTreeMap::new()).to_text()).unwrap();
            stored.send(&path, &mut BTreeSet::new()).unwrap();
            path
        };
        let [second, third, fifth] = [2, 3, 5].map(saved);
        fs::remove_dir_all(third).unwrap();
        let left = |asks_store| left_by(&second, 2, &config, asks_store).unwrap();
        assert_eq!(listed(&left(false)).as_deref(), Some("step-00000005"));
        left(true).write(dir.path()).unwrap();
        // A resume without a path knows it from there.
        assert_eq!(listed(&left(false)).as_deref(), Some("step-00000005, step-00000003"));
        assert_eq!(left(false).noted_at, LeftAside::read(dir.path()).unwrap().unwrap().noted_at);
        assert!(left(false).noted_at > 0);
        assert_eq!(uploads::newest_to_resume(&config).unwrap(), Some(2));
        // From a copy of one that the store has: that one is not left.
        let copy = dir.path().join("copy/step-00000005");
        fs::create_dir_all(&copy).unwrap();
        fs::copy(fifth.join(MANIFEST), copy.join(MANIFEST)).unwrap();
        fs::remove_dir_all(fifth).unwrap();
        assert_eq!(listed(&left_by(&copy, 5, &config, true).unwrap()).as_deref(), Some("step-00000003, step-00000002"));
    }

    #[test]
    fn few_of_many_checkpoints_are_named() {
        let left = |numbers: std::ops::Range<u64>| LeftAside {
            resumed_from: PathBuf::new(),
            checkpoints: numbers.map(|number| (number, BTreeSet::new())).collect(),
            noted_at: 0,
        };
        assert_eq!(listed(&left(0..0)), None);
        assert_eq!(listed(&left(1..4)).as_deref(), Some("step-00000003, step-00000002, step-00000001"));
        assert_eq!(listed(&left(1..7)).as_deref(), Some("step-00000006, step-00000005, step-00000004 and 3 more"));
    }
}
