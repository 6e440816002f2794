//! The run that a folder held before: moved aside while a new one begins, put back where that takes no step, removed when it
//! has taken its first one. A crash at any moment leaves one of the two whole:
//!
//! ```text
//! RUN/.run-before/           checkpoint.dir, a file that says where the checkpoints are; all that was moved aside
//! RUN/.run-before/moved      written when all is aside: what is in RUN from then on is of the new run
//! RUN/.run-before.gone/      by one rename, when the first step is applied: nothing in it is needed
//! CHECKPOINTS/.run-before/   the checkpoints, where their folder is another one
//! RUN/failed-overwrite/      what a run wrote that took no step: metrics, bad samples, evidence; also in CHECKPOINTS
//! ```
//!
//! Whoever starts next puts back where `moved` is missing, or nobody takes over the new run; else goes on removing.

use crate::cli::UsageError;
use crate::eval::after_run::EVALUATED;
use crate::eval::samples::SAMPLES;
use anyhow::{Context, Result};
use loongforge_actors::checkpoint::{BEST, FORMER};
use loongforge_actors::watch::WATCH_FILE;
use loongforge_core::engine::fault;
use loongforge_core::files::{LEFT_ASIDE, if_there, remove_if_there, steps_of};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

const ASIDE: &str = ".run-before";
const GONE: &str = ".run-before.gone";
const DRAFT: &str = ".run-before.new";
const MOVED: &str = "moved";
const PLACE: &str = "checkpoint.dir";
const FAILED: &str = "failed-overwrite";

/// Files and folders that a run writes into `run.dir` and that are a part of its record.
const NAMES: [&str; 21] = [
    EVALUATED,
    "bad.jsonl",
    "config.yaml",
    "eval.jsonl",
    "held_out.png",
    "journal",
    "journal.new",
    "killers.jsonl",
    "log.jsonl",
    "log.txt",
    "logs",
    "loss.png",
    "metrics.jsonl",
    "mlruns",
    "profile",
    "tensorboard",
    "too_long.jsonl",
    "trace.json",
    "tracking.json",
    "wandb",
    WATCH_FILE,
];

/// Returns whether a run made what has this name; the folder may hold what is the user's.
fn is_of_run(name: &str) -> bool {
    let numbered = |start: &str, end: &str| {
        let number = name.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
        number.is_some_and(|number| number.parse::<u64>().is_ok())
    };
    let is_draft = name.starts_with(".step-") && name.ends_with(".tmp");
    let is_report = numbered("config-", ".yaml") || numbered("nonfinite-step-", ".json");
    // What a store is to lose goes with the run that replaced the one there.
    let is_note = [FORMER, LEFT_ASIDE].contains(&name);
    NAMES.contains(&name) || is_note || is_report || is_draft || steps_of(name).is_some()
}

/// Returns whether this is the link to a run's best checkpoint: without that checkpoint it would name one of the next run.
fn is_best(path: &Path) -> bool {
    let names_step = |to: PathBuf| to.to_str().and_then(steps_of).is_some();
    path.file_name().is_some_and(|name| name == BEST) && fs::read_link(path).is_ok_and(names_step)
}

/// Returns whether this is a run's folder of samples, which holds a folder for each step that made some. One that holds anything
/// else is the user's.
fn is_samples(path: &Path) -> bool {
    let is_step = |entry: io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_str().and_then(steps_of).is_some())
    };
    path.file_name().is_some_and(|name| name == SAMPLES)
        && fs::read_dir(path).is_ok_and(|mut listing| listing.all(is_step))
}

/// A run that is moved aside; put back when this is dropped.
pub struct FormerRun {
    /// `run.dir`, and `checkpoint.dir` where that is another folder.
    dirs: Vec<PathBuf>,
    /// True if it is to be restored.
    is_aside: bool,
}

impl FormerRun {
    /// Finds the run that an earlier start moved aside. Where not all of it was moved it is put back at once; else when what is returned
    /// is dropped. The remaining files of a run that is not needed any more are removed.
    ///
    /// # Errors
    /// A file cannot be moved; or it is another run's, or one's with its checkpoints elsewhere, and is named.
    pub fn find(run: &Path, checkpoints: &Path) -> Result<Option<Self>> {
        remove_gone(run)?;
        let mut former = Self::of(run, checkpoints)?;
        if run.join(ASIDE).exists() {
            former.is_aside = true;
            let then = read_place(&run.join(ASIDE))?;
            if let Some(then) = then.filter(|then| *then != former.place()) {
                former.is_aside = false;
                let (run, then) = (run.display(), then.display());
                let what = format!(
                    "{run} was started over with checkpoint.dir {then} and took no step: \
                     start it once with that checkpoint.dir to restore the previous run"
                );
                return Err(UsageError(what).into());
            }
            if former.is_moved() {
                return Ok(Some(former));
            }
            former.restore()?;
        }
        match checkpoints.join(ASIDE).exists() {
            true => {
                let what = format!(
                    "{} holds the checkpoints of another run, which was started over and took no step: \
                     start that run once to restore them",
                    checkpoints.join(ASIDE).display()
                );
                Err(UsageError(what).into())
            }
            false => Ok(None),
        }
    }

    /// Moves what a run has left in these folders aside; `None` where there is nothing.
    ///
    /// # Errors
    /// Something cannot be moved; what was moved is put back.
    pub fn set_aside(run: &Path, checkpoints: &Path) -> Result<Option<Self>> {
        remove_gone(run)?;
        let mut former = Self::of(run, checkpoints)?;
        let found: Vec<Vec<String>> = former.dirs.iter().map(|dir| of_run(dir)).collect::<Result<_>>()?;
        if found.iter().all(Vec::is_empty) {
            return Ok(None);
        }
        point("aside_begin")?;
        let draft = run.join(DRAFT);
        fs::create_dir(&draft).with_context(|| draft.display().to_string())?;
        write(&draft.join(PLACE), former.place().as_os_str().as_encoded_bytes())?;
        move_to(&draft, &run.join(ASIDE))?;
        // From here on it is put back where anything fails.
        former.is_aside = true;
        sync(run)?;
        for (dir, names) in former.dirs.iter().zip(found) {
            let aside = dir.join(ASIDE);
            fs::create_dir_all(&aside).with_context(|| aside.display().to_string())?;
            for name in names {
                point("aside_move")?;
                move_to(&dir.join(&name), &aside.join(&name))?;
            }
            sync(&aside)?;
            sync(dir)?;
        }
        point("aside_moved")?;
        write(&run.join(ASIDE).join(MOVED), b"")?;
        sync(&run.join(ASIDE))?;
        // The new run's page has the same token and port: one that is open goes on.
        let page = run.join(WATCH_FILE);
        if_there(fs::copy(run.join(ASIDE).join(WATCH_FILE), &page)).with_context(|| page.display().to_string())?;
        Ok(Some(former))
    }

    /// Removes it: the new run has taken its first step. The removal is decided when this returns; the files are deleted while steps go
    /// on.
    ///
    /// # Errors
    /// The folder cannot be renamed: to be tried again. It is not put back all the same.
    pub fn remove(&mut self) -> Result<JoinHandle<()>> {
        self.is_aside = false;
        let run = self.dirs[0].clone();
        point("aside_remove")?;
        move_to(&run.join(ASIDE), &run.join(GONE))?;
        sync(&run)?;
        let files = move || {
            if let Err(error) = point("aside_removed").and_then(|()| remove_gone(&run)) {
                tracing::warn!("the rest of the previous run is removed at the next start: {error:#}");
            }
        };
        Ok(std::thread::Builder::new().name("run-before".into()).spawn(files)?)
    }

    /// Returns a run in these folders of which nothing is aside yet.
    fn of(run: &Path, checkpoints: &Path) -> Result<Self> {
        let is_one = real(run)? == real(checkpoints)?;
        let dirs = if is_one { vec![run.to_owned()] } else { vec![run.to_owned(), checkpoints.to_owned()] };
        Ok(Self { dirs, is_aside: false })
    }

    fn is_moved(&self) -> bool {
        self.dirs[0].join(ASIDE).join(MOVED).exists()
    }

    /// Returns where the checkpoints are, from `run.dir` on where they are below it: a folder may have been moved
    /// since.
    fn place(&self) -> PathBuf {
        let real = |dir: &Path| real(dir).unwrap_or_else(|_| dir.to_owned());
        let (run, checkpoints) = (real(&self.dirs[0]), real(self.dirs.last().expect("run.dir is one")));
        checkpoints.strip_prefix(&run).map(Path::to_owned).unwrap_or(checkpoints)
    }

    /// Puts it back: the run that was to replace it is not gone on with.
    ///
    /// # Errors
    /// A file cannot be moved.
    pub fn restore(mut self) -> Result<()> {
        self.is_aside = false;
        self.put_back()
    }

    fn put_back(&self) -> Result<()> {
        let run = &self.dirs[0];
        let had_begun = self.is_moved();
        if had_begun {
            // What is there is of the run that took no step.
            for dir in &self.dirs {
                for name in of_run(dir)? {
                    point("back_clear")?;
                    keep_failed(dir, &name)?;
                }
                sync(dir)?;
            }
            point("back_cleared")?;
            remove(&run.join(ASIDE).join(MOVED))?;
            sync(&run.join(ASIDE))?;
        }
        for dir in &self.dirs {
            for name in of_run(&dir.join(ASIDE))? {
                point("back_move")?;
                move_to(&dir.join(ASIDE).join(&name), &dir.join(&name))?;
            }
            sync(dir)?;
        }
        point("back_done")?;
        move_to(&run.join(ASIDE), &run.join(GONE))?;
        let failed = run.join(FAILED);
        let kept = match had_begun && failed.is_dir() {
            true => format!("; what it wrote is in {}", failed.display()),
            false => String::new(),
        };
        tracing::warn!("{}: the previous run was restored, since the new one took no step{kept}", run.display());
        remove_gone(run)
    }
}

impl Drop for FormerRun {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.is_aside.then(|| self.put_back()) {
            let run = self.dirs[0].display();
            tracing::warn!("{run}: the next start restores the previous run: {error:#}");
        }
    }
}

/// Names of what a run left in a folder, in order.
fn of_run(dir: &Path) -> Result<Vec<String>> {
    let named = || dir.display().to_string();
    let Some(listing) = if_there(fs::read_dir(dir)).with_context(named)? else { return Ok(Vec::new()) };
    let names = listing.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<io::Result<Vec<String>>>().with_context(named)?;
    names.retain(|name| is_of_run(name) || is_best(&dir.join(name)) || is_samples(&dir.join(name)));
    names.sort();
    Ok(names)
}

/// Keeps what a run that took no step wrote, since it says why; drafts of checkpoints do not.
fn keep_failed(dir: &Path, name: &str) -> Result<()> {
    if name.starts_with('.') {
        return remove(&dir.join(name));
    }
    let kept = dir.join(FAILED);
    fs::create_dir_all(&kept).with_context(|| kept.display().to_string())?;
    remove(&kept.join(name))?;
    move_to(&dir.join(name), &kept.join(name))
}

/// Returns where the checkpoints were when they were moved aside.
fn read_place(aside: &Path) -> Result<Option<PathBuf>> {
    let path = aside.join(PLACE);
    let text = if_there(fs::read_to_string(&path)).with_context(|| path.display().to_string())?;
    Ok(text.map(PathBuf::from))
}

/// Removes what is left of a run that is not needed any more; the folder that says so last.
fn remove_gone(run: &Path) -> Result<()> {
    remove(&run.join(DRAFT))?;
    let gone = run.join(GONE);
    if let Some(checkpoints) = read_place(&gone)? {
        remove(&run.join(checkpoints).join(ASIDE))?;
    }
    remove(&gone)
}

fn real(dir: &Path) -> Result<PathBuf> {
    dir.canonicalize().with_context(|| dir.display().to_string())
}

fn remove(path: &Path) -> Result<()> {
    remove_if_there(path).with_context(|| path.display().to_string())
}

fn move_to(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).with_context(|| format!("cannot move {} to {}", from.display(), to.display()))
}

fn write(path: &Path, contents: &[u8]) -> Result<()> {
    let written = fs::write(path, contents).and_then(|()| File::open(path)?.sync_all());
    written.with_context(|| path.display().to_string())
}

fn sync(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all()).with_context(|| dir.display().to_string())
}

/// A moment at which a test kills the process, or has the disk refuse.
fn point(name: &'static str) -> Result<()> {
    Ok(fault::io(loongforge_core::message::ActorId::SCHEDULER, name)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_a_run_that_begins_anew_is_found_where_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (run, page) = (dir.path(), dir.path().join(WATCH_FILE));
        fs::write(&page, "before").unwrap();
        let former = FormerRun::set_aside(run, run).unwrap().unwrap();
        assert_eq!(fs::read_to_string(&page).unwrap(), "before");
        fs::write(&page, "after").unwrap();
        former.restore().unwrap();
        assert_eq!(fs::read_to_string(&page).unwrap(), "before");
        let mut former = FormerRun::set_aside(run, run).unwrap().unwrap();
        former.remove().unwrap().join().unwrap();
        assert!(page.exists() && !run.join(ASIDE).exists());
    }

    #[test]
    fn a_note_about_the_store_goes_with_the_run_that_wrote_it() {
        let dir = tempfile::tempdir().unwrap();
        let (run, checkpoints) = (dir.path(), dir.path().join("checkpoints"));
        fs::create_dir(&checkpoints).unwrap();
        let note = checkpoints.join(FORMER);
        fs::write(run.join("metrics.jsonl"), "{}\n").unwrap();
        for earlier in [None, Some("s3://bucket/earlier")] {
            if let Some(earlier) = earlier {
                fs::write(&note, earlier).unwrap();
            }
            let former = FormerRun::set_aside(run, &checkpoints).unwrap().unwrap();
            assert!(!note.exists());
            fs::write(&note, "s3://bucket/run").unwrap();
            former.restore().unwrap();
            assert!(run.join("metrics.jsonl").exists());
            assert_eq!(fs::read_to_string(&note).ok().as_deref(), earlier);
        }
    }
}
