//! `loongforge run`: a whole run on this machine, or one role of it.

mod folder;
mod former;
mod holder;
mod lock;
mod ranks;
mod settings;
mod sign;
mod whole;

use super::decode_worker::decoder;
use super::part::{Part, PartArgs};
use super::{UsageError, exit};
use crate::model::folder::FolderError;
use crate::preflight::Asked;
use crate::run::compose::Composition;
use crate::run::roles;
use clap::Args;
use loongforge_actors::launch::net::{Party, Security};
use loongforge_actors::launch::{bind_to_parent, follows, keep, keeper, local_rank};
use loongforge_actors::{Meeting, serve_role};
use loongforge_core::checkpoint::MANIFEST;
use loongforge_core::config::{self, Address, Loaded, RunConfig};
use loongforge_core::message::Role;
use loongforge_core::observe::{Console, init_logging};
use loongforge_core::schedule::PoolSizes;
use rustix::process::Signal;
use sha2::{Digest, Sha256};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use whole::Whole;

const EXAMPLES: &str = "\
Examples:
  loongforge run my.yaml                                  train, all actors as threads of this process
  loongforge run my.yaml train.lr=1e-5 run.name=second    change values
  loongforge run my.yaml --resume                         resume from the last checkpoint, or start
  loongforge run my.yaml --resume=runs/my/checkpoints/step-00000500
  loongforge run my.yaml --processes                      one process per actor
  loongforge run my.yaml --role encoder --join /tmp/run.sock
  loongforge run my.yaml --role encoder --join head:6001 --tls certs
  torchrun --no-python --nnodes 2 --nproc-per-node 8 loongforge run my.yaml --role auto --tls certs

Exit codes: 0 done; 1 failed; 2 wrong config or usage, or another run has the folder;
3 stopped on request, resume with --resume; 4 lost a process that the run needs, resume with --resume;
5 loss or gradient not finite too often: see nonfinite-step-N.json in the run's folder; 75 the processes of the run did not all join";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Config of the run
    file: PathBuf,
    /// Overrides: key=value, +new=value, ~key, group=option
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Resume from the last checkpoint of the run, or from this one
    #[arg(long, value_name = "CHECKPOINT", num_args = 0..=1, default_missing_value = "auto", require_equals = true)]
    resume: Option<String>,
    /// Resume without verifying the hashes of the checkpoint's files
    #[arg(long, requires = "resume")]
    trust: bool,
    /// Refuse to resume with other settings than the checkpoint was written with
    #[arg(long, requires = "resume")]
    strict: bool,
    /// Delete the existing run in this folder and start over; it is kept until the new run has taken its first step
    #[arg(long, conflicts_with = "resume")]
    overwrite: bool,
    /// One process per actor instead of one thread
    #[arg(long, conflicts_with_all = ["role", "join"])]
    processes: bool,
    #[command(flatten)]
    part: PartArgs,
}

pub fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    expect_equals_sign(&args)?;
    if args.processes && keeper().is_none() {
        let (program, words) = (std::env::current_exe()?, std::env::args_os().skip(1).collect::<Vec<_>>());
        let status = keep(|| {
            let mut command = Command::new(&program);
            command.args(&words);
            command
        })?;
        // Killed by what asks it to stop: it was not under way.
        let is_stopped = [Signal::INT, Signal::TERM].iter().any(|asked| status.signal() == Some(asked.as_raw()));
        let of_signal = if is_stopped { exit::PREEMPTED } else { exit::LOST };
        return Ok(ExitCode::from(status.code().map_or(of_signal, |code| code as u8)));
    }
    if args.processes {
        bind_to_parent()?;
    }
    let loaded = match config::load(&args.file, &args.overrides, super::environment()) {
        Ok(loaded) => loaded,
        Err(report) => {
            eprintln!("{report}");
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    let console = Console::stderr();
    init_logging(loaded.config.log.level, &console)?;
    let composition = match compose(&loaded.config) {
        Ok(composition) => composition,
        Err(error) => return Err(UsageError::of(&error).into()),
    };
    let mut pools = PoolSizes::new(composition.config());
    if composition.folder().config.towers.is_empty() {
        pools.encoder = 0;
    }
    let part = args.part.part(pools)?;
    if let (Some(count), Some(part)) = (args.part.ranks, &part) {
        return ranks::run(count, part, pools);
    }
    if let Some(part) = &part {
        let role = part.actors.first().filter(|_| !part.scheduler).map_or(Role::Scheduler, |&(role, _)| role);
        let security = args.part.security(&loaded.config.run.name, Party::Actor(role))?;
        security.expect_secure(&part.join).map_err(|error| UsageError::of(&error))?;
    }
    if let Some(Part { scheduler: false, actors, join }) = &part {
        let &(role, index) = actors.first().expect("without the scheduler there is one actor");
        let security = args.part.security(&loaded.config.run.name, Party::Actor(role))?;
        let local_rank = local_rank(|name| std::env::var(name).ok()).map_err(|error| UsageError::of(&error))?;
        let recipe = composition.on_local_rank(local_rank).into_recipe();
        let meeting = meeting(&args, &loaded, join.clone(), security, index);
        serve_role(role, meeting, |assignment| roles::engine(recipe, assignment))?;
        return Ok(ExitCode::SUCCESS);
    }
    let computes = |part: &Part| part.actors.iter().any(|(role, _)| *role != Role::Data);
    let asked =
        Asked { device: part.as_ref().is_none_or(computes), weights: args.resume.is_none(), alone: part.is_none() };
    // The run of one that follows another was asked about before, and its actors wait.
    let begun = match args.processes && follows() {
        true => composition.settled().map(|composition| (composition, Vec::new())),
        false => composition.preflight(asked),
    };
    let (composition, lines) = begun.map_err(|error| UsageError::of(&error))?;
    lines.iter().for_each(|line| console.line(line));
    Whole { args: &args, part: part.as_ref(), loaded: &loaded, console: &console }.supervise(composition)
}

fn compose(config: &RunConfig) -> Result<Composition, FolderError> {
    let decoder = decoder(config.security.sandbox, |warning| tracing::warn!("{warning}"));
    Ok(Composition::unsettled(config.clone())?.decoder(decoder))
}

/// Returns where the processes of the run meet, and how.
fn meeting(args: &RunArgs, loaded: &Loaded, address: Address, security: Security, index: Option<u32>) -> Meeting {
    Meeting {
        address,
        security,
        config: fingerprint(loaded),
        timeout: loaded.config.scheduler.join_timeout.duration(),
        shared_memory: !args.part.no_shared_memory,
        index,
        store: None,
        journal: None,
    }
}

/// Processes whose configs differ must not train together.
fn fingerprint(loaded: &Loaded) -> String {
    let hash = Sha256::digest(loaded.composed.to_string());
    loongforge_core::text::hex(&hash[..8])
}

/// `--resume PATH` reads as `--resume` and an override.
fn expect_equals_sign(args: &RunArgs) -> anyhow::Result<()> {
    let is_checkpoint = |word: &&String| Path::new(word).join(MANIFEST).is_file();
    match args.overrides.iter().find(is_checkpoint).filter(|_| args.resume.is_some()) {
        Some(path) => Err(UsageError(format!("write --resume={path}, with `=`")).into()),
        None => Ok(()),
    }
}
