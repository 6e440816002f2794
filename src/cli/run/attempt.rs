//! One attempt at a run by the process that has its scheduler: the folder is made ready, the actors run, and the run is judged.

use super::address_file::{AddressFile, port_of_run};
use super::args::{ResumeFrom, RunArgs};
use super::folder::expect_no_run;
use super::former::FormerRun;
use super::left_aside;
use super::meeting::{fingerprint, meeting};
use super::scheduler_process::{JOURNAL, SchedulerProcess};
use super::settings::keep_config;
use crate::cli::part::{Beside, Part};
use crate::cli::{UsageError, check, exit};
use crate::eval::{after_run, held_out_sets, samples};
use crate::run::compose::Composition;
use crate::run::packs;
use crate::run::poison_items;
use crate::run::report::{FirstStep, Report};
use crate::run::uploads;
use anyhow::Context;
use loongforge_actors::checkpoint::{Uploader, Uploads, clean};
use loongforge_actors::journal::{RecoveredRun, unfinished};
use loongforge_actors::launch::net::{Party, Security};
use loongforge_actors::launch::{JournalSpec, LOCAL_RANKS, WantedActor, keeper};
use loongforge_actors::{Meeting, RunError, Start, StopOn, serve_scheduler};
use loongforge_core::checkpoint::latest;
use loongforge_core::config::{Address, Checkpoint, RunConfig};
use loongforge_core::message::{ActorId, Role, SampleId, StepId};
use loongforge_core::observe::read_metrics;
use loongforge_core::schedule::{Failure, Outcome};
use loongforge_torch::native::StoreServer;
use std::cell::Cell;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::rc::Rc;

impl SchedulerProcess<'_> {
    /// Runs until the end, or until a process is lost; `is_takeover`: in the place of a scheduler that has died. `former`: the run
    /// that the one which is taken over has moved aside and not replaced yet.
    pub(super) fn attempt(
        &self,
        composition: Composition,
        is_takeover: bool,
        former: Option<FormerRun>,
        uploads: &mut Option<Uploads>,
    ) -> anyhow::Result<ExitCode> {
        let Self { loaded, console, .. } = *self;
        let composition = composition.stop_on(StopOn::Signals);
        composition.expect_weights().map_err(UsageError::of)?;
        let config = composition.config().clone();
        let past = self.past(&composition, is_takeover)?;
        let Beginning { reported, take_over_at, former } = match &past {
            Some(past) => self.take_over(&config.run.dir, past.first_step(), former),
            None => self.begin(&composition, former)?,
        };
        let begins_anew = former.is_some() || (past.is_none() && !composition.resumes());
        let is_own = Rc::new(Cell::new(former.is_none()));
        // Put back where the run ends before.
        let first_step = noting(is_own.clone(), first_step(former, &config));
        self.describe(&composition)?;
        let report = Report::new(&composition, loaded.composed.clone(), console.clone(), reported)?;
        let report = if self.part.is_none() { report.on_this_host() } else { report };
        if uploads.is_none() {
            *uploads = uploads::start(&config, begins_anew, console)?;
        }
        let uploader = uploads.as_ref().map(Uploads::uploader);
        let first_step = forgetting_uploads(first_step, uploader.clone());
        let report = report.on_first_step(first_step).uploading(uploader);
        let journal = config.run.dir.join(JOURNAL);
        let journal = self.keeps_journal().then_some(JournalSpec {
            path: journal,
            take_over_at,
            cut_after: JournalSpec::CUT_AFTER,
        });
        match self.run_actors(composition, journal, past.as_ref(), report)? {
            Outcome::Completed => {
                after_run::after_run(&config, console)?;
                Ok(ExitCode::SUCCESS)
            }
            Outcome::Preempted => {
                after_run::after_stop(&config, console);
                console.line(stopped(&config.checkpoint, is_own.get()));
                Ok(ExitCode::from(exit::PREEMPTED))
            }
        }
    }

    /// Returns whether another scheduler can take this one's place.
    fn keeps_journal(&self) -> bool {
        self.args.processes || self.part.is_some_and(|part| part.actors.is_empty())
    }

    /// Returns the run that the replaced scheduler wrote to its journal; `None`: this one replaces none.
    ///
    /// # Errors
    /// It takes the place of one that died before the run had begun.
    fn past(&self, composition: &Composition, is_takeover: bool) -> anyhow::Result<Option<RecoveredRun>> {
        let Self { args, loaded, .. } = *self;
        let takes_over = match args.processes {
            true => is_takeover,
            false => self.keeps_journal() && !composition.resumes() && !args.overwrite,
        };
        let journal = composition.config().run.dir.join(JOURNAL);
        let past = if takes_over { unfinished(&journal, &fingerprint(loaded)) } else { None };
        if is_takeover && past.is_none() {
            let cause = "the scheduler died before the run was under way".into();
            return Err(RunError::Failed(Failure::loss(ActorId::SCHEDULER, cause)).into());
        }
        Ok(past)
    }

    /// Goes on behind the last step that the scheduler which has died reported: one before `first`, where its journal begins, or with
    /// `log.jsonl: false` where nothing tells which.
    fn take_over(&self, dir: &Path, first: StepId, former: Option<FormerRun>) -> Beginning {
        let console = self.console;
        console.keep_log(&dir.join("log"));
        let reported = read_metrics(&dir.join("metrics.jsonl")).unwrap_or_default();
        console.line("taking over from a scheduler that died; --resume or --overwrite start over");
        let step = first.max(StepId(reported.last().map_or(0, |last| last.step + 1)));
        Beginning { reported: (step, SampleId(u64::MAX), Vec::new()), take_over_at: Some(step), former }
    }

    /// Makes the run's folder ready for an attempt that begins by itself. The files of a former run are moved aside where this one begins
    /// anew.
    fn begin(&self, composition: &Composition, former: Option<FormerRun>) -> anyhow::Result<Beginning> {
        let Self { args, loaded, console, .. } = *self;
        let (dir, checkpoints) = (&loaded.config.run.dir, &loaded.config.checkpoint.dir);
        former.map(FormerRun::restore).transpose()?;
        if !composition.resumes() && !args.overwrite {
            expect_no_run(&loaded.config)?;
        }
        let former = if composition.resumes() { None } else { FormerRun::set_aside(dir, checkpoints)? };
        clean(checkpoints)?;
        left_aside::note(composition, args.resume.as_ref().is_some_and(ResumeFrom::is_named))?;
        poison_items::keep(dir, composition.poison_items())?;
        keep_config(dir, &loaded.to_yaml())?;
        console.keep_log(&dir.join("log"));
        let reported = (composition.first_step(), composition.cursor(), composition.held());
        Ok(Beginning { reported, take_over_at: None, former })
    }

    /// Prints what the run is going to do.
    fn describe(&self, composition: &Composition) -> anyhow::Result<()> {
        let (config, console) = (composition.config(), self.console);
        if let Some(epochs) = composition.epochs() {
            console.line(&check::duration(epochs, config.packs_first()));
        }
        composition.packs().iter().flat_map(|packs| packs.lines(config)).for_each(|line| console.line(&line));
        console.line(&check::summary(config, composition.folder())?);
        held_out_sets::summary(config, composition.folder()).into_iter().for_each(|line| console.line(&line));
        samples::summary(config).into_iter().for_each(|line| console.line(&line));
        config.unsaved().into_iter().for_each(|line| console.line(&line));
        Ok(())
    }

    /// Carries the actors' run to its end: in this process, in children of it, or in processes that others start.
    fn run_actors(
        &self,
        composition: Composition,
        journal: Option<JournalSpec>,
        past: Option<&RecoveredRun>,
        report: Report,
    ) -> anyhow::Result<Outcome> {
        let Self { args, part, loaded, .. } = *self;
        let (name, dir) = (composition.config().run.name.clone(), composition.config().run.dir.clone());
        match part {
            Some(Part { actors, join, .. }) => {
                let security = args.part.security(&name, Party::Actor(Role::Scheduler))?;
                // The file goes when this is dropped.
                let _address = matches!(join, Address::Tcp { .. }).then(|| AddressFile::put_up(&dir, join));
                let (start, mut beside) = (child(args)?, Beside::default());
                for &WantedActor { role, pool, index } in actors {
                    beside.start(start(ActorId { role, pool, index: index.unwrap_or(0) }, join), index)?;
                }
                let (_, spec) = composition.into_parts();
                // Pools on several hosts have no folder in common.
                let store = match join {
                    Address::Tcp { host, .. } if !join.is_local() => {
                        Some(StoreServer::start(host, past.and_then(RecoveredRun::store).unwrap_or(0))?)
                    }
                    _ => None,
                };
                let store_port = store.as_ref().map(StoreServer::port);
                let meeting = Meeting { store: store_port, journal, ..meeting(args, loaded, join.clone(), security) };
                Ok(serve_scheduler(spec, meeting, None, Box::new(report))?)
            }
            None if args.processes => {
                let folder = keeper().context("a scheduler of processes has a keeper")?;
                let (_, spec) = composition.into_parts();
                let address = match args.part.no_shared_memory {
                    true => port_of_run(&folder, past.is_some())?,
                    false => Address::Unix(folder.join("run.sock")),
                };
                let _address = AddressFile::put_up(&dir, &address);
                let meeting = Meeting { journal, ..meeting(args, loaded, address, Security::plain(&name)) };
                Ok(serve_scheduler(spec, meeting, Some(child(args)?), Box::new(report))?)
            }
            None => Ok(composition.run(Box::new(report))?),
        }
    }
}

/// The point where an attempt at the run begins.
struct Beginning {
    /// The first step and position in the data stream of which nothing is reported yet, and such positions before that one.
    reported: (StepId, SampleId, Vec<SampleId>),
    /// The first step that nobody was told of, where this process takes the place of a scheduler that has died.
    take_over_at: Option<StepId>,
    /// The run in the same folder before this one, which goes with the first step.
    former: Option<FormerRun>,
}

/// Says what becomes of a run that was stopped on request. `is_own`: checkpoints in the folder are its own, and not those of a run that
/// it was to replace, which is put back.
fn stopped(checkpoint: &Checkpoint, is_own: bool) -> &'static str {
    let has_saved = is_own && !matches!(latest(&checkpoint.dir), Ok(None));
    match checkpoint.save_points().any() {
        true if has_saved => "stopped on request; resume with --resume",
        true => "stopped on request before anything was saved; start it again with the same command",
        false => "stopped on request; no checkpoint was written (checkpoint.at_end: false)",
    }
}

/// Returns the work of the first step, which notes that the folder is this run's.
fn noting(is_own: Rc<Cell<bool>>, mut first_step: FirstStep) -> FirstStep {
    Box::new(move || {
        is_own.set(true);
        first_step()
    })
}

/// Returns the work of the first step, after which the uploader forgets the former run: it is put back no more.
fn forgetting_uploads(mut first_step: FirstStep, uploader: Option<Uploader>) -> FirstStep {
    Box::new(move || {
        uploader.iter().try_for_each(Uploader::note_former)?;
        let beside = first_step()?;
        // From here on the former run is not put back.
        uploader.iter().for_each(Uploader::forget_former);
        Ok(beside)
    })
}

/// Returns the work that is due when the run has taken its first step: the former run goes.
fn first_step(mut former: Option<FormerRun>, config: &RunConfig) -> FirstStep {
    let config = config.clone();
    Box::new(move || {
        let files = former.as_mut().map(FormerRun::remove).transpose();
        if config.packs_first() {
            let forgotten = packs::forget_former(&config);
            forgotten.unwrap_or_else(|error| {
                tracing::warn!("old packs could not be removed, and are removed at the next first step: {error}")
            });
        }
        if let Err(error) = after_run::forget(&config) {
            tracing::warn!("{}: {error}", config.run.dir.join(after_run::EVALUATED).display());
        }
        if let Some(mark) = SchedulerProcess::replaced() {
            // A restart without it begins anew.
            let _ = std::fs::write(mark, "");
        }
        files
    })
}

/// Returns the command that makes a process of one actor of this run.
fn child(args: &RunArgs) -> anyhow::Result<Start> {
    let (program, file, overrides) = (std::env::current_exe()?, args.file.clone(), args.overrides.clone());
    let (part, processes) = (args.part.clone(), args.processes);
    Ok(Box::new(move |actor, address| {
        let mut command = Command::new(&program);
        if processes {
            // The launcher's rank is this process's, and its children take one GPU after the other.
            LOCAL_RANKS.iter().for_each(|name| {
                command.env_remove(name);
            });
        }
        command.arg("run").arg(&file).args(&overrides).args(part.words(actor, address));
        command
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::checkpoint::MANIFEST;
    use loongforge_core::files::step_name;

    #[test]
    fn a_stopped_run_is_resumed_only_where_it_has_saved_something() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint { dir: dir.path().join("checkpoints"), ..Checkpoint::default() };
        let says = |is_own, part: &str| assert!(stopped(&checkpoint, is_own).contains(part), "{is_own} {part}");
        says(false, "before anything was saved; start it again");
        // Stopped while the encoders that it needed for the first checkpoint were gone.
        says(true, "before anything was saved; start it again");
        let former = checkpoint.dir.join(step_name(3));
        std::fs::create_dir_all(&former).unwrap();
        std::fs::write(former.join(MANIFEST), "{}").unwrap();
        says(true, "resume with --resume");
        // What is there is of the run that this one was to replace.
        says(false, "before anything was saved; start it again");
        let never = Checkpoint { at_end: false, ..checkpoint.clone() };
        assert!(stopped(&never, true).contains("checkpoint.at_end: false"));
    }

    #[test]
    fn the_first_step_notes_that_the_folder_is_its_own() {
        let is_own = Rc::new(Cell::new(false));
        let mut first_step = noting(is_own.clone(), Box::new(|| Ok(None)));
        assert!(!is_own.get());
        assert!(first_step().unwrap().is_none() && is_own.get());
    }
}
