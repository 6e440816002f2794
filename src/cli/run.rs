//! `loongforge run`: a whole run on this machine, or one role of it.

use super::exit;
use crate::compose::{Composition, Resume};
use crate::report::Report;
use crate::evaluate;
use crate::roles;
use anyhow::{Context, bail};
use clap::Args;
use loongforge_actors::{Meeting, Start, StopOn, serve_role, serve_scheduler};
use loongforge_actors::checkpoint::{Manifest, clean, latest};
use loongforge_core::config::{self, Loaded, RunConfig};
use loongforge_core::message::{Role, StepId};
use loongforge_core::observe::{Console, init_logging};
use loongforge_core::schedule::Outcome;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[derive(Args)]
pub struct RunArgs {
    /// Config of the run
    file: PathBuf,
    /// Overrides: key=value, +new=value, ~key, group=option
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Go on from the last checkpoint of the run, or from this one
    #[arg(long, value_name = "CHECKPOINT", num_args = 0..=1, default_missing_value = "auto", require_equals = true)]
    resume: Option<String>,
    /// Begin anew where a former run left checkpoints, which are removed
    #[arg(long, conflicts_with = "resume")]
    overwrite: bool,
    /// One process per actor instead of one thread
    #[arg(long, conflicts_with_all = ["role", "join"])]
    processes: bool,
    /// Be one actor of a run: scheduler, data, encoder or foundation
    #[arg(long, requires = "join", value_name = "ROLE")]
    role: Option<String>,
    /// Unix socket of the run's scheduler
    #[arg(long, requires = "role", value_name = "SOCKET")]
    join: Option<PathBuf>,
}

pub fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let role = match args.role.as_deref().map(str::parse::<Role>).transpose() {
        Ok(role) => role,
        Err(error) => return Ok(usage(&error)),
    };
    let loaded = match config::load(&args.file, &args.overrides, super::environment()) {
        Ok(loaded) => loaded,
        Err(report) => {
            eprintln!("{report}");
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    let console = Console::stderr();
    init_logging(loaded.config.log.level, &console)?;
    let composition = match Composition::new(loaded.config.clone()) {
        Ok(composition) => composition,
        Err(error) => return Ok(usage(&error)),
    };
    let meeting = |address: PathBuf| Meeting {
        address,
        config: fingerprint(&loaded),
        timeout: loaded.config.scheduler.join_timeout.duration(),
    };
    if let (Some(role @ (Role::Data | Role::Encoder | Role::Foundation)), Some(address)) = (role, &args.join) {
        let (recipe, _) = composition.into_parts();
        serve_role(role, meeting(address.clone()), |assignment| roles::engine(recipe, assignment))?;
        return Ok(ExitCode::SUCCESS);
    }
    let resume = find_resume(&args, &loaded.config)?;
    prepare_folder(&loaded.config, resume.is_some(), args.overwrite)?;
    let composition = composition.resume(resume).stop_on(StopOn::Signals);
    let config = composition.config().clone();
    let first_step = composition.first_step().0;
    let report = Report::new(&config, loaded.composed.clone(), composition.folder(), first_step, console.clone())?;
    let outcome = match args.join.clone() {
        Some(address) => {
            let (_, spec) = composition.into_parts();
            serve_scheduler(spec, meeting(address), None, Box::new(report))?
        }
        None if args.processes => {
            let folder = tempfile::Builder::new().prefix("loongforge-").tempdir()?;
            let (_, spec) = composition.into_parts();
            serve_scheduler(spec, meeting(folder.path().join("run.sock")), Some(child(&args)?), Box::new(report))?
        }
        None => composition.run(Box::new(report))?,
    };
    match outcome {
        Outcome::Completed => {
            evaluate::after_run(&config, &console)?;
            Ok(ExitCode::SUCCESS)
        }
        Outcome::Preempted => {
            console.line("stopped on request; go on with --resume");
            Ok(ExitCode::from(exit::PREEMPTED))
        }
    }
}

/// The command that makes a process of one actor of this run.
fn child(args: &RunArgs) -> anyhow::Result<Start> {
    let (program, file, overrides) = (std::env::current_exe()?, args.file.clone(), args.overrides.clone());
    Ok(Box::new(move |actor, address| {
        let mut command = Command::new(&program);
        command.arg("run").arg(&file).args(&overrides).args(["--role", actor.role.name()]).arg("--join").arg(address);
        command
    }))
}

/// Processes whose configs differ must not train together.
fn fingerprint(loaded: &Loaded) -> String {
    let hash = Sha256::digest(loaded.composed.to_string());
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn usage(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(exit::USAGE)
}

/// The checkpoint that `--resume` means.
fn find_resume(args: &RunArgs, config: &RunConfig) -> anyhow::Result<Option<Resume>> {
    let Some(wanted) = &args.resume else { return Ok(None) };
    let checkpoint = match wanted.as_str() {
        "auto" => match latest(&config.checkpoint.dir)? {
            Some(checkpoint) => checkpoint,
            // A launcher may pass --resume from the first start on.
            None => return Ok(None),
        },
        path => PathBuf::from(path),
    };
    let manifest = Manifest::read(&checkpoint)?;
    let first_step = StepId(manifest.num_steps);
    if first_step.0 >= config.train.steps {
        let (done, path) = (first_step, checkpoint.display());
        bail!("{path} has all {done} steps of the run already; raise train.steps to train on");
    }
    Ok(Some(Resume { checkpoint, first_step, cursor: manifest.cursor }))
}

/// Makes the run's folder, and sees to it that no former run is lost by mistake.
fn prepare_folder(config: &RunConfig, resumes: bool, overwrite: bool) -> anyhow::Result<()> {
    let (dir, checkpoints) = (&config.run.dir, &config.checkpoint.dir);
    if !resumes && let Some(former) = latest(checkpoints)? {
        if !overwrite {
            let former = former.display();
            bail!("run.dir already holds a run ({former}): go on with --resume, begin anew with --overwrite, or set run.name");
        }
        std::fs::remove_dir_all(checkpoints).with_context(|| format!("checkpoint.dir: {}", checkpoints.display()))?;
    }
    writable(dir, "run.dir")?;
    writable(checkpoints, "checkpoint.dir")?;
    Ok(clean(checkpoints)?)
}

fn writable(dir: &Path, key: &str) -> anyhow::Result<()> {
    let named = || format!("{key}: cannot write into {}", dir.display());
    std::fs::create_dir_all(dir).with_context(named)?;
    tempfile::tempfile_in(dir).with_context(named)?;
    Ok(())
}
