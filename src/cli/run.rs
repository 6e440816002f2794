//! `loongforge run`: a whole run on this machine, or one role of it.

mod address_file;
mod args;
mod attempt;
mod folder;
mod former;
mod holder;
mod left_aside;
mod lock;
mod meeting;
mod offline;
mod packs_lock;
mod ranks;
mod recipe;
mod remaining;
mod same_trained;
mod scheduler_process;
mod settings;

use super::open_files::expect_open_files_of;
use super::part::Part;
use super::{UsageError, exit};
use crate::model::hub_data;
use crate::preflight::Asked;
use crate::run::compose::Composition;
use crate::run::engines;
use loongforge_actors::launch::net::Party;
use loongforge_actors::launch::{
    LOCAL_RANKS, WantedActor, bind_to_parent, filled_place, is_asked_to_stop, is_takeover, keep, keeper, local_rank,
    stop_around,
};
use loongforge_actors::{Phase, serve_role};
use loongforge_core::checkpoint::MANIFEST;
use loongforge_core::config::{self, Address, Device, Loaded, LogFormat};
use loongforge_core::engine::{error_chain, memory_limit};
use loongforge_core::files::steps_of;
use loongforge_core::message::Role;
use loongforge_core::observe::{Console, init_logging, print_line};
use loongforge_core::schedule::PoolSizes;
use loongforge_torch::native::exit_at_once;
use scheduler_process::SchedulerProcess;
use std::path::Path;
use std::process::{Command, ExitCode};

use holder::Holder;
pub(super) use lock::{RunLock, is_held};
use meeting::{compose, meeting};
pub(super) use packs_lock::{ShareLock, expect_no_shares};

pub use args::RunArgs;

/// Runs `loongforge run`: all stages of a config, a run of one stage, or one part of a run.
pub fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    expect_equals_sign(&args)?;
    if let Some(code) = recipe::run_stages(&args)? {
        return Ok(code);
    }
    if args.processes && keeper().is_none() {
        return run_under_keeper();
    }
    heed_signals(&args)?;
    let loaded = match config::load(&args.file, &args.overrides, super::environment()) {
        Ok(loaded) => loaded,
        Err(report) => {
            print_line(&report.to_string());
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    let console = Console::stderr();
    init_logging(&loaded.config.log, &console)?;
    // The processes that the scheduler starts have the same variables.
    let tell_ignored = || loaded.ignored.iter().for_each(|line| console.line(&format!("warning: {line}")));
    let is_told = args.part.role.as_deref().is_none_or(|role| role == Role::Scheduler.name());
    if is_told {
        tell_ignored();
        if let Some(limit) = memory_limit() {
            console.line(&format!("warning: this process {limit}: where it needs more, it is aborted"));
        }
    }
    if args.part.role.is_none() {
        hub_data::fetch_data(&loaded.config).map_err(UsageError::of)?;
    }
    let composition = compose(&loaded.config).map_err(UsageError::of)?;
    let pools = PoolSizes::new(composition.config(), composition.folder().config.towers.set());
    let part = args.part.part(&pools)?;
    if let (Some(count), Some(part)) = (args.part.ranks, &part) {
        return ranks::run(count, part, &pools);
    }
    if !is_told && part.as_ref().is_some_and(|part| part.scheduler) {
        tell_ignored();
    }
    if let Some(part) = &part {
        prepare_part(&args, &loaded, part)?;
    } else if !args.processes {
        expect_open_files_of(&pools)?;
    }
    match &part {
        Some(Part { scheduler: false, actors, join }) => {
            let &wanted = actors.first().expect("without the scheduler there is one actor");
            serve_actor(&args, &loaded, composition, wanted, join, &console)
        }
        _ => run_scheduler(&args, &loaded, composition, part.as_ref(), &console),
    }
}

/// Runs this command again in a process that starts another scheduler where one dies. Returns its exit code.
fn run_under_keeper() -> anyhow::Result<ExitCode> {
    let (program, words) = (std::env::current_exe()?, std::env::args_os().skip(1).collect::<Vec<_>>());
    let status = keep(|| {
        let mut command = Command::new(&program);
        command.args(&words);
        command
    })?;
    if exit::is_stopped(status) {
        // A scheduler that follows another one is also killed where it does not heed signals yet.
        print_line(
            "stopped on request before the scheduler was under way; start again with the same command, or with --resume if the \
             run has saved a checkpoint",
        );
    }
    Ok(ExitCode::from(exit::of_status(status)))
}

/// Sees to it that signals end this process before and after its run, in which they are the scheduler's.
fn heed_signals(args: &RunArgs) -> anyhow::Result<()> {
    // One of several stages, or of the processes of a run.
    if args.part.role.is_none() {
        bind_to_parent()?;
    }
    if args.part.role.as_deref().is_none_or(|role| role == Role::Scheduler.name()) {
        stop_around(|phase| {
            let what = match phase {
                Phase::After => "stopped on request; resume with --resume",
                _ => "stopped on request before the run was under way; start it again with the same command",
            };
            // It has to end also where nobody can read that, as after a terminal was closed.
            print_line(what);
            // Nothing waits for this: threads of libtorch may compute.
            exit_at_once(exit::PREEMPTED);
        })?;
    }
    Ok(())
}

/// Fetches the data that this part of a run reads, and refuses to meet the others over an open network.
fn prepare_part(args: &RunArgs, loaded: &Loaded, part: &Part) -> anyhow::Result<()> {
    let reads_held = part.scheduler || part.actors.iter().any(|wanted| wanted.role == Role::Data);
    // Of packs the scheduler compares the files that they were made of, and whoever reads samples that are set aside opens them.
    let sets_aside = loaded.config.data.val_size > 0.0;
    let reads_train = !loaded.config.packs_first() || part.scheduler || (reads_held && sets_aside);
    hub_data::fetch_missing(&loaded.config, reads_train, reads_held).map_err(UsageError::of)?;
    let role = part.actors.first().filter(|_| !part.scheduler).map_or(Role::Scheduler, |wanted| wanted.role);
    let security = args.part.security(&loaded.config.run.name, Party::Actor(role))?;
    Ok(security.expect_secure(&part.join).map_err(UsageError::of)?)
}

/// Serves a run as one of its actors, until the run ends.
fn serve_actor(
    args: &RunArgs,
    loaded: &Loaded,
    composition: Composition,
    wanted: WantedActor,
    join: &Address,
    console: &Console,
) -> anyhow::Result<ExitCode> {
    let security = args.part.security(&loaded.config.run.name, Party::Actor(wanted.role))?;
    let local_rank = local_rank(|name| std::env::var(name).ok()).map_err(UsageError::of)?;
    let recipe = composition.on_local_rank(local_rank).in_place(filled_place()).into_recipe();
    let meeting = meeting(args, loaded, join.clone(), security);
    let name = log_name(wanted);
    console.keep_log(&loaded.config.run.dir.join("logs").join(&name));
    console.name(&name);
    let takes_gpu = wanted.role != Role::Data && loaded.config.device == Device::Cuda(None);
    if takes_gpu && local_rank.is_none() && filled_place().is_none() {
        tracing::info!(
            "no launcher says which rank of its host this process is ({}): it takes a GPU by its number in the run; \
             set LOCAL_RANK, or `device: cuda:N`, to choose one",
            LOCAL_RANKS.join(", ")
        );
    }
    serve_role(wanted, meeting, |assignment| engines::engine(recipe, assignment))?;
    if is_asked_to_stop() {
        // Asked twice, it may still compute.
        exit_at_once(exit::PREEMPTED);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a run's scheduler, with the actors of `part` or, where that is `None`, all of them.
fn run_scheduler(
    args: &RunArgs,
    loaded: &Loaded,
    composition: Composition,
    part: Option<&Part>,
    console: &Console,
) -> anyhow::Result<ExitCode> {
    let computes = |part: &Part| part.actors.iter().any(|wanted| wanted.role != Role::Data);
    let asked = Asked { device: part.is_none_or(computes), weights: args.resume.is_none(), alone: part.is_none() };
    // The run of one that follows another was asked about before, and its actors wait.
    let begun = match args.processes && is_takeover() {
        // Settled when its packs are found.
        true if composition.config().packs_first() => Ok((composition, Vec::new())),
        true => composition.settled().map(|composition| (composition, Vec::new())),
        false => composition.asked(asked),
    };
    let (composition, lines) = begun.map_err(UsageError::of)?;
    lines.iter().for_each(|line| console.line(line));
    let process = SchedulerProcess { args, part, loaded, console };
    match process.supervise(composition) {
        // Whoever reads JSON reads all of it so.
        Err(error) if loaded.config.log.format == LogFormat::Json => {
            console.line(&format!("error: {}", error_chain(error.as_ref())));
            Ok(ExitCode::from(exit::of(&error)))
        }
        Err(error) => {
            console.note(&format!("error: {}", error_chain(error.as_ref())));
            Err(error)
        }
        ended => ended,
    }
}

/// Returns the name of the log file of a process that is one actor: of its place in the run, or where the scheduler gives it one, of its
/// own.
fn log_name(wanted: WantedActor) -> String {
    let pool = wanted.pool;
    match wanted.index {
        Some(index) => format!("{pool}-{index}"),
        None => format!("{pool}-{}", Holder::of(std::process::id()).token),
    }
}

/// `--resume PATH` reads as `--resume` and an override.
fn expect_equals_sign(args: &RunArgs) -> anyhow::Result<()> {
    let is_checkpoint = |word: &&String| {
        let folder = Path::new(word);
        folder.join(MANIFEST).is_file() || folder.join("checkpoints").is_dir() || steps_of(word).is_some()
    };
    match args.overrides.iter().find(is_checkpoint).filter(|_| args.resume.is_some()) {
        Some(path) => Err(UsageError(format!("write --resume={path}, with `=`")).into()),
        None => Ok(()),
    }
}
