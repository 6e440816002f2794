//! A run by the process that has its scheduler: from its beginning or its last checkpoint to its end.

use super::args::{ResumeFrom, RunArgs};
use super::folder::{Expect, find_resume};
use super::former::FormerRun;
use super::lock::RunLock;
use super::meeting::{compose, fingerprint};
use super::offline::{self, PacksOf};
use super::packs_lock::expect_no_shares;
use super::remaining::{Left, all_done};
use crate::cli::part::Part;
use crate::cli::{UsageError, exit};
use crate::eval::after_run;
use crate::run::compose::{Composition, Resume};
use crate::run::poison_items;
use crate::run::snapshots::Snapshots;
use crate::run::uploads;
use loongforge_actors::checkpoint::{Uploads, clean, restore};
use loongforge_actors::journal::is_open;
use loongforge_actors::launch::{is_takeover, keeper};
use loongforge_core::checkpoint::{MANIFEST, Manifest, latest};
use loongforge_core::config::{Device, KeyOrigin, Loaded, RunConfig};
use loongforge_core::files;
use loongforge_core::observe::Console;
use loongforge_core::text::counted;
use loongforge_torch::device::settle;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Name of the scheduler's journal in a run's folder.
pub(super) const JOURNAL: &str = "journal";
/// Beside the sockets of processes that are kept: the run that `--overwrite` replaces is gone.
const REPLACED: &str = "replaced";

pub struct SchedulerProcess<'a> {
    pub args: &'a RunArgs,
    /// The part of the run that this process is, if its arguments say so.
    pub part: Option<&'a Part>,
    pub loaded: &'a Loaded,
    pub console: &'a Console,
}

impl SchedulerProcess<'_> {
    /// Runs, and begins again at the last checkpoint where a child that the run cannot go on without has died. The run's
    /// folders are this run's alone before anything in them is looked at.
    ///
    /// # Errors
    /// Fails if another run has the folders, or this one fails and cannot begin again.
    pub fn supervise(&self, composition: Composition) -> anyhow::Result<ExitCode> {
        let Self { loaded, console, .. } = *self;
        let (run, checkpoints) = (&loaded.config.run.dir, &loaded.config.checkpoint.dir);
        // A scheduler that follows another one finds its keeper's lock.
        let pid = if keeper().is_some() { parent_id() } else { std::process::id() };
        let _lock = RunLock::take(&[("run.dir", run), ("checkpoint.dir", checkpoints)], pid, console)?;
        if loaded.config.packs_first() {
            expect_no_shares(run, None, console)?;
        }
        let mut uploads = None;
        let ended = self.run_to_end(composition, &mut uploads);
        // Only where a run that has lost a process cannot begin again.
        let copied = uploads::finish(uploads, &loaded.config, console);
        copied.unwrap_or_else(|error| console.line(&format!("warning: {error}")));
        ended
    }

    /// Runs, as often as it may begin again.
    fn run_to_end(&self, mut composition: Composition, uploads: &mut Option<Uploads>) -> anyhow::Result<ExitCode> {
        let Self { args, loaded, console, .. } = *self;
        let (run, checkpoints) = (&loaded.config.run.dir, &loaded.config.checkpoint.dir);
        restore(checkpoints)?;
        let mut former = FormerRun::find(run, checkpoints)?;
        let mut resume = args.resume.clone();
        let snapshots = self.snapshots();
        let (mut settled, mut epochs) = (composition.config().clone(), None);
        if loaded.config.device == Device::Auto {
            console.line(&settle(Device::Auto).1);
        }
        for restart in 0.. {
            // One that follows another begins where that was.
            let takes_over = args.processes && restart == 0 && is_takeover() && offline::has_packs(&composition)?;
            let may_take_over = (takes_over || self.is_alone()) && !resume.as_ref().is_some_and(ResumeFrom::is_named);
            let goes_on = || may_take_over && is_open(&run.join(JOURNAL), &fingerprint(loaded));
            if let Some(former) = former.take_if(|_| !goes_on()) {
                former.restore()?;
            }
            let wanted = resume.as_ref().filter(|_| !takes_over);
            // What a run has saved is here when it is started again.
            let stored = restart == 0;
            let expect = Expect { composed: &loaded.composed, trust: args.trust, strict: args.strict, stored };
            let resumed = find_resume(wanted, &expect, &composition, snapshots.as_ref(), console)?;
            if wanted.is_some() && resumed.is_none() && !goes_on() {
                if restart == 0 {
                    expect_not_moved(&args.file, loaded)?;
                }
                let dir = checkpoints.display();
                console.line(&format!("{dir} has no checkpoint, so that the run starts from its first step"));
            }
            if restart == 0 {
                // What would be refused is by now, and packs are made only then.
                let packs_of = if self.part.is_some() || takes_over { PacksOf::Others } else { PacksOf::ThisProcess };
                composition = offline::packed(args, packs_of, composition, resumed.as_ref(), console)?;
                (settled, epochs) = (composition.config().clone(), composition.epochs());
            }
            // A launcher may start again what has ended.
            if let Some((done, left)) = all_done(&settled, &composition, resumed.as_ref())? {
                return self.conclude(&settled, done, left, uploads);
            }
            if let Some(snapshots) = &snapshots {
                clean(snapshots.path())?;
            }
            let known = resume.as_ref().map(|_| poison_items::read(&loaded.config.run.dir)).unwrap_or_default();
            composition =
                composition.resume(resumed).knowing(known).snapshots_in(snapshots.as_ref().map(Snapshots::path));
            // One that died before that has left no journal, and what it was to resume from holds on.
            let has_begun = !takes_over || is_open(&run.join(JOURNAL), &fingerprint(loaded));
            let ended = self.attempt(composition, takes_over, former.take(), uploads);
            let restarts = ended.as_ref().is_err_and(|error| exit::of(error) == exit::LOST) && args.processes;
            if !restarts || restart >= loaded.config.run.max_restarts {
                return self.finish(ended, &settled, uploads.take());
            }
            let Err(error) = ended else { unreachable!("a run that has ended is not restarted") };
            console.line(&format!("{error}; restarting from the last checkpoint"));
            let asked = args.resume.clone().filter(|_| !has_begun);
            // The newest one that the run has not left aside. The run before is no place to go on from.
            resume = if self.is_replaced() { asked.or(Some(ResumeFrom::Newest)) } else { None };
            composition = compose(&settled)?.settled().map_err(UsageError::of)?.of_epochs(epochs);
        }
        unreachable!("the loop ends with an error")
    }

    /// Ends a run whose steps are all done: evaluates its last checkpoint where that is `left`, and waits until checkpoints are copied.
    fn conclude(
        &self,
        config: &RunConfig,
        done: &Resume,
        left: Left,
        uploads: &mut Option<Uploads>,
    ) -> anyhow::Result<ExitCode> {
        let Self { loaded, console, .. } = *self;
        if uploads.is_none() {
            *uploads = uploads::start(config, false, console)?;
        }
        let (path, steps) = (done.checkpoint.display(), config.train.num_steps());
        let evaluated = if left == Left::AfterRun {
            console.keep_log(&config.run.dir.join("log"));
            let all = if steps == 1 { "its step".to_owned() } else { format!("all {steps} steps") };
            console.line(&format!("{path} has {all}, but was not evaluated after the run: doing so now"));
            after_run::after_run(config, console)
        } else {
            let train = &loaded.config.train;
            let asked = match train.epochs.filter(|_| train.steps != Some(steps)) {
                Some(epochs) => format!("train.epochs {epochs} comes to {steps}"),
                None => format!("train.steps is {steps}"),
            };
            let taken = counted(done.first_step.0, "step");
            console.line(&format!("nothing to do: {path} has {taken}, and {asked}; raise it to train on"));
            Ok(())
        };
        self.finish(evaluated.map(|()| ExitCode::SUCCESS), config, uploads.take())
    }

    /// Waits until checkpoints are copied. A checkpoint that could not be copied is an error of a run that has succeeded, and otherwise a
    /// warning.
    fn finish(
        &self,
        ended: anyhow::Result<ExitCode>,
        config: &RunConfig,
        uploads: Option<Uploads>,
    ) -> anyhow::Result<ExitCode> {
        match (ended, uploads::finish(uploads, config, self.console)) {
            (Ok(code), Err(error)) if code == ExitCode::SUCCESS => Err(error.into()),
            // Who stopped the run starts it again by this code.
            (ended, copied) => {
                copied.unwrap_or_else(|error| self.console.line(&format!("warning: {error}")));
                // After --overwrite without a step, the checkpoints are those of the previous run again.
                if self.is_replaced() && ended.as_ref().is_err_and(|error| exit::of(error) == exit::LOST) {
                    self.console.line(&way_on(&config.checkpoint.dir));
                }
                ended
            }
        }
    }

    /// Returns whether this process has the scheduler, and no actor: another one may take over from its journal.
    fn is_alone(&self) -> bool {
        self.part.is_some_and(|part| part.actors.is_empty()) && !self.args.overwrite
    }

    /// Marks that the former run is gone, for schedulers that follow this one.
    pub(super) fn replaced() -> Option<PathBuf> {
        Some(keeper()?.join(REPLACED))
    }

    /// Returns whether what is in the folders is of this run.
    fn is_replaced(&self) -> bool {
        !self.args.overwrite || Self::replaced().is_some_and(|mark| mark.exists())
    }

    /// Returns memory for checkpoints, where it is wanted and of use. A run goes on without it as well.
    fn snapshots(&self) -> Option<Snapshots> {
        let Self { args, loaded, console, .. } = *self;
        if loaded.config.checkpoint.snapshot_every == 0 {
            return None;
        }
        if !args.processes {
            console.line("warning: checkpoint.snapshot_every has no effect without --processes");
            return None;
        }
        let opened = Snapshots::new();
        opened.inspect_err(|error| console.line(&format!("warning: checkpoint.snapshot_every: {error:#}"))).ok()
    }
}

/// The config in a run's folder names that folder: where it was moved, a resume would begin anew in the former place.
///
/// # Errors
/// `checkpoint.dir` is from `file`, and checkpoints that were written with the same one are beside that.
fn expect_not_moved(file: &Path, loaded: &Loaded) -> anyhow::Result<()> {
    let here = format!("{}:", file.display());
    let is_from_file = |it: &KeyOrigin| it.path == "checkpoint.dir" && it.from.starts_with(&here);
    let folder = file.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let beside = folder.join("checkpoints");
    if !loaded.origins.iter().any(is_from_file) {
        return Ok(());
    }
    let Some(newest) = latest(&beside)? else { return Ok(()) };
    // Another run may have its checkpoints beside this config.
    let text = files::read(&newest.join(MANIFEST), files::MAX_TEXT_BYTES).unwrap_or_default();
    let then = Manifest::parse(&text, &newest).map(|manifest| manifest.config).unwrap_or_default();
    if then.pointer("/checkpoint/dir") != loaded.composed.pointer("/checkpoint/dir") {
        return Ok(());
    }
    let (named, file, newest) = (loaded.config.checkpoint.dir.display(), file.display(), newest.display());
    let (folder, beside) = (folder.display(), beside.display());
    Err(UsageError(format!(
        "{named}, checkpoint.dir of {file}, has no checkpoint, but {newest} is beside this config: to resume a run whose \
         folder was moved, set run.dir={folder} checkpoint.dir={beside}; to begin a new run, leave --resume out"
    ))
    .into())
}

/// Returns what to do about a run that has lost a process and does not begin again by itself.
fn way_on(checkpoints: &Path) -> String {
    match latest(checkpoints) {
        Ok(Some(newest)) => format!("resume with --resume; the last checkpoint is {}", newest.display()),
        _ => format!("{} has no checkpoint: start again with the same command", checkpoints.display()),
    }
}
