//! A run by the process that has its scheduler: from its beginning or its last checkpoint to its end.

use super::address_file::{AddressFile, port_of_run};
use super::args::RunArgs;
use super::folder::{Expect, find_resume, prepare_folder};
use super::former::FormerRun;
use super::lock::RunLock;
use super::meeting::{compose, fingerprint, meeting};
use super::offline;
use super::settings::keep_config;
use crate::cli::part::{Beside, Part};
use crate::cli::{UsageError, check, exit};
use crate::eval::{after_run, held_out_sets, samples};
use crate::run::compose::Composition;
use crate::run::poison_items;
use crate::run::report::{FirstStep, Report};
use crate::run::snapshots::Snapshots;
use crate::run::uploads;
use anyhow::Context;
use loongforge_actors::checkpoint::{Uploader, Uploads, clean};
use loongforge_actors::journal::{RecoveredRun, is_open, unfinished};
use loongforge_actors::launch::net::{Party, Security};
use loongforge_actors::launch::{Keep, LOCAL_RANKS, WantedActor, is_takeover, keeper};
use loongforge_actors::{Meeting, RunError, Start, StopOn, serve_scheduler};
use loongforge_core::config::{Address, Device, Loaded};
use loongforge_core::message::{ActorId, Role, SampleId, StepId};
use loongforge_core::observe::{Console, read_metrics};
use loongforge_core::schedule::{Failure, Outcome};
use loongforge_torch::device::settle;
use loongforge_torch::native::StoreServer;
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Name of the scheduler's journal in a run's folder.
const JOURNAL: &str = "journal";
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
    pub fn supervise(&self, composition: Composition) -> anyhow::Result<ExitCode> {
        let Self { loaded, console, .. } = *self;
        let (run, checkpoints) = (&loaded.config.run.dir, &loaded.config.checkpoint.dir);
        // A scheduler that follows another one finds its keeper's lock.
        let pid = if keeper().is_some() { parent_id() } else { std::process::id() };
        let _lock = RunLock::take(&[("run.dir", run), ("checkpoint.dir", checkpoints)], pid, console)?;
        let composition = offline::packed(self.args, self.part.is_some(), composition, console)?;
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
        let mut former = FormerRun::find(run, checkpoints)?;
        let mut resume = args.resume.clone();
        let snapshots = self.snapshots();
        let settled = composition.config().clone();
        if loaded.config.device == Device::Auto {
            console.line(&settle(Device::Auto).1);
        }
        for restart in 0.. {
            // One that follows another begins where that was.
            let takes_over = args.processes && restart == 0 && is_takeover();
            let may_take_over =
                (takes_over || self.is_alone()) && resume.as_deref().is_none_or(|wanted| wanted == "auto");
            let goes_on = || may_take_over && is_open(&run.join(JOURNAL), &fingerprint(loaded));
            if let Some(former) = former.take_if(|_| !goes_on()) {
                former.restore()?;
            }
            let wanted = resume.as_deref().filter(|_| !takes_over);
            // What a run has saved is here when it is started again.
            let stored = restart == 0;
            let expect = Expect { composed: &loaded.composed, trust: args.trust, strict: args.strict, stored };
            let resumed = find_resume(wanted, &expect, &composition, snapshots.as_ref(), console)?;
            // A launcher may start again what has ended.
            let steps = settled.train.num_steps();
            if let Some(done) = resumed.as_ref().filter(|resumed| resumed.first_step.0 >= steps) {
                let (path, done) = (done.checkpoint.display(), done.first_step);
                let asked = match loaded.config.train.epochs {
                    Some(epochs) => format!("train.epochs {epochs} comes to {steps}"),
                    None => format!("train.steps is {steps}"),
                };
                console.line(&format!("nothing to do: {path} has {done} steps, and {asked}; raise it to train on"));
                uploads::finish(uploads::start(&settled, false, console)?, &settled, console)?;
                return Ok(ExitCode::SUCCESS);
            }
            if let Some(snapshots) = &snapshots {
                clean(snapshots.path())?;
            }
            let known = resume.as_ref().map(|_| poison_items::read(&loaded.config.run.dir)).unwrap_or_default();
            composition =
                composition.resume(resumed).knowing(known).snapshots_in(snapshots.as_ref().map(Snapshots::path));
            let ended = self.run_actors(composition, takes_over, former.take(), uploads);
            let restarts = ended.as_ref().is_err_and(|error| exit::of(error) == exit::LOST) && args.processes;
            if !restarts || restart >= loaded.config.run.max_restarts {
                return match (ended, uploads::finish(uploads.take(), &settled, console)) {
                    (Ok(code), Err(error)) if code == ExitCode::SUCCESS => Err(error.into()),
                    // Who stopped the run starts it again by this code.
                    (ended, copied) => {
                        copied.unwrap_or_else(|error| console.line(&format!("warning: {error}")));
                        ended
                    }
                };
            }
            let Err(error) = ended else { unreachable!("a run that has ended is not restarted") };
            console.line(&format!("{error}; restarting from the last checkpoint"));
            // The run before is no place to go on from.
            resume = if self.is_replaced() { Some("auto".to_owned()) } else { None };
            composition = compose(&settled)?.settled().map_err(|error| UsageError::of(&error))?;
        }
        unreachable!("the loop ends with an error")
    }

    /// Returns whether this process has the scheduler, and no actor: another one may take over from its journal.
    fn is_alone(&self) -> bool {
        self.part.is_some_and(|part| part.actors.is_empty()) && !self.args.overwrite
    }

    /// Marks that the former run is gone, for schedulers that follow this one.
    fn replaced() -> Option<PathBuf> {
        Some(keeper()?.join(REPLACED))
    }

    /// Returns whether what is in the folders is of this run.
    fn is_replaced(&self) -> bool {
        !self.args.overwrite || Self::replaced().is_some_and(|mark| mark.exists())
    }

    /// Memory for checkpoints, where they are wanted and of use. Without it a run goes on as well.
    fn snapshots(&self) -> Option<Snapshots> {
        let Self { args, loaded, console, .. } = *self;
        if loaded.config.checkpoint.snapshot_every == 0 {
            return None;
        }
        if !args.processes {
            console.line("warning: checkpoint.snapshot_every is for runs with --processes");
            return None;
        }
        let opened = Snapshots::new();
        opened.inspect_err(|error| console.line(&format!("warning: checkpoint.snapshot_every: {error:#}"))).ok()
    }

    /// One life of the run; `is_takeover`: in the place of a scheduler that has died. `former`: the run that the one which is taken
    /// over has moved aside and not replaced yet.
    fn run_actors(
        &self,
        composition: Composition,
        is_takeover: bool,
        former: Option<FormerRun>,
        uploads: &mut Option<Uploads>,
    ) -> anyhow::Result<ExitCode> {
        let Self { args, part, loaded, console } = *self;
        let composition = composition.stop_on(StopOn::Signals);
        composition.expect_weights().map_err(|error| UsageError::of(&error))?;
        let config = composition.config().clone();
        let journal = config.run.dir.join(JOURNAL);
        let is_kept = args.processes || part.is_some_and(|part| part.actors.is_empty());
        let takes_over =
            if args.processes { is_takeover } else { is_kept && !composition.resumes() && !args.overwrite };
        let past = match takes_over {
            true => unfinished(&journal, &fingerprint(loaded)),
            false => None,
        };
        if is_takeover && past.is_none() {
            let cause = "the scheduler died before the run was under way".into();
            return Err(RunError::Failed(Failure::loss(ActorId::SCHEDULER, cause)).into());
        }
        let (begin, take_over_at, former) = match &past {
            Some(_) => {
                console.keep_log(&config.run.dir.join("log"));
                let reported = read_metrics(&config.run.dir.join("metrics.jsonl")).unwrap_or_default();
                console.line("taking over from a scheduler that died; --resume or --overwrite start over");
                let reported = StepId(reported.last().map_or(0, |last| last.step + 1));
                ((reported, SampleId(u64::MAX)), Some(reported), former)
            }
            None => {
                former.map(FormerRun::restore).transpose()?;
                let former = prepare_folder(&loaded.config, composition.resumes(), args.overwrite)?;
                poison_items::keep(&config.run.dir, composition.killers())?;
                keep_config(&config.run.dir, &loaded.to_yaml())?;
                console.keep_log(&config.run.dir.join("log"));
                ((composition.first_step(), composition.cursor()), None, former)
            }
        };
        let replaces = former.is_some();
        // Put back where the run ends before.
        let mut first_step = first_step(former);
        if let Some(epochs) = composition.epochs() {
            console.line(&check::duration(epochs, config.packs_first()));
        }
        offline::lines(&composition)?.into_iter().for_each(|line| console.line(&line));
        console.line(&check::summary(&config, composition.folder())?);
        held_out_sets::summary(&config, composition.folder()).into_iter().for_each(|line| console.line(&line));
        samples::summary(&config).into_iter().for_each(|line| console.line(&line));
        let journal = is_kept.then_some(Keep { path: journal, take_over_at, cut_after: Keep::CUT_AFTER });
        let report = Report::new(&composition, loaded.composed.clone(), console.clone(), begin)?;
        if uploads.is_none() {
            let begins_anew = replaces || (past.is_none() && !composition.resumes());
            *uploads = uploads::start(&config, begins_anew, console)?;
        }
        let uploader = uploads.as_ref().map(Uploads::uploader);
        let forgetting = uploader.clone();
        let first_step: FirstStep = Box::new(move || {
            forgetting.iter().try_for_each(Uploader::note_former)?;
            let beside = first_step()?;
            // From here on the former run is not put back.
            forgetting.iter().for_each(Uploader::forget_former);
            Ok(beside)
        });
        let report = report.on_first_step(first_step).uploading(uploader);
        let name = &config.run.name;
        let outcome = match part {
            Some(Part { actors, join, .. }) => {
                let security = args.part.security(name, Party::Actor(Role::Scheduler))?;
                let _sign = matches!(join, Address::Tcp { .. }).then(|| AddressFile::put_up(&config.run.dir, join));
                let (start, mut beside) = (child(args)?, Beside::default());
                for &WantedActor { role, pool, index } in actors {
                    beside.start(start(ActorId { role, pool, index: index.unwrap_or(0) }, join), index)?;
                }
                let (_, spec) = composition.into_parts();
                // Pools on several hosts have no folder in common.
                let store = match join {
                    Address::Tcp { host, .. } if !join.is_local() => {
                        Some(StoreServer::start(host, past.as_ref().and_then(RecoveredRun::store).unwrap_or(0))?)
                    }
                    _ => None,
                };
                let store_port = store.as_ref().map(StoreServer::port);
                let meeting = Meeting { store: store_port, journal, ..meeting(args, loaded, join.clone(), security) };
                serve_scheduler(spec, meeting, None, Box::new(report))?
            }
            None if args.processes => {
                let folder = keeper().context("a scheduler of processes has a keeper")?;
                let (_, spec) = composition.into_parts();
                let address = match args.part.no_shared_memory {
                    true => port_of_run(&folder, past.is_some())?,
                    false => Address::Unix(folder.join("run.sock")),
                };
                let _sign = AddressFile::put_up(&config.run.dir, &address);
                let meeting = Meeting { journal, ..meeting(args, loaded, address, Security::plain(name, false)) };
                serve_scheduler(spec, meeting, Some(child(args)?), Box::new(report))?
            }
            None => composition.run(Box::new(report))?,
        };
        match outcome {
            Outcome::Completed => {
                after_run::after_run(&config, console)?;
                Ok(ExitCode::SUCCESS)
            }
            Outcome::Preempted => {
                after_run::after_stop(&config, console);
                console.line("stopped on request; resume with --resume");
                Ok(ExitCode::from(exit::PREEMPTED))
            }
        }
    }
}

/// Returns what is due when the run has taken its first step: the former run goes.
fn first_step(mut former: Option<FormerRun>) -> FirstStep {
    Box::new(move || {
        let files = former.as_mut().map(FormerRun::remove).transpose();
        if let Some(mark) = SchedulerProcess::replaced() {
            // A restart without it begins anew.
            let _ = std::fs::write(mark, "");
        }
        files
    })
}

/// The command that makes a process of one actor of this run.
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
