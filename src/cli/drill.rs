//! `loongforge drill`: runs with injected faults, and checks whether they changed anything.

use super::UsageError;
use super::outputs::local_path;
use crate::drill::{Drill, Plan};
use crate::model::hub_data;
use crate::run::compose::Composition;
use clap::Args;
use loongforge_actors::drill::Script;
use loongforge_core::config;
use loongforge_core::schedule::PoolSizes;
use std::path::PathBuf;
use std::process::ExitCode;

const EXAMPLES: &str = "\
A fault is `WHO: WHAT [at step N] [for 2s | for 3 steps]`; separate faults by semicolons or newlines; # starts a comment.
  WHO   encoder/1, foundation/*, data/0: a process;  A -> B, A <-> B: messages between two processes, * is any
  WHAT  of a process:   kill [at POINT N], freeze [at POINT N]      (POINT: before_reduce, after_send, …)
        between two:    partition, delay 50ms, delay 10ms..80ms, throttle 1Mbit, drop, reset, cut after 10000 bytes,
                        flip, duplicate, reorder, lose: one message, or a fraction of all, as in `flip 1%`

Examples:
  loongforge drill my.yaml --faults \"encoder/1: kill at step 5\"
  loongforge drill my.yaml --faults \"encoder/1: freeze at step 5 for 8s; * -> *: duplicate 10%\"
  loongforge drill my.yaml --faults \"encoder/1 <-> scheduler: partition at step 5 for 2s\"
  loongforge drill my.yaml --faults \"* <-> *: reset at step 8\" --seed 3 train.steps=20
  loongforge drill my.yaml --script faults.txt --twin runs/my-drill/twin

Exit codes: 0 the faults changed nothing; 1 they did, or the run failed; 2 wrong config, script or usage";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DrillArgs {
    /// Config of the run
    file: PathBuf,
    /// Overrides: key=value, +new=value, ~key, group=option
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Faults to inject
    #[arg(long, required_unless_present = "script")]
    faults: Option<String>,
    /// File of faults to inject
    #[arg(long, value_name = "FILE", conflicts_with = "faults")]
    script: Option<PathBuf>,
    /// Seed of random faults
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Folder of a fault-free run of the same config to compare with [default: one is run first]
    #[arg(long, value_name = "DIR")]
    twin: Option<PathBuf>,
    /// Folder for the two runs [default: the run's folder with `-drill` appended]
    #[arg(long, value_name = "DIR", value_parser = local_path())]
    out: Option<PathBuf>,
}

/// Runs `loongforge drill`: a run with faults and one without; the exit code is 0 if they have the same results.
pub fn drill(args: DrillArgs) -> anyhow::Result<ExitCode> {
    let text = match (&args.faults, &args.script) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => loongforge_core::files::read_text(path)
            .map_err(|error| UsageError(format!("--script {}: {error}", path.display())))?,
        (None, None) => unreachable!("clap requires one of the two"),
    };
    let script: Script = text.parse().map_err(UsageError::of)?;
    let loaded = match config::load(&args.file, &args.overrides, super::environment()) {
        Ok(loaded) => loaded,
        Err(report) => {
            eprintln!("{report}");
            return Ok(ExitCode::from(super::exit::USAGE));
        }
    };
    super::tell_ignored(&loaded);
    let mut config = loaded.config;
    hub_data::fetch_data(&config).map_err(UsageError::of)?;
    let composition = Composition::unsettled(config.clone()).map_err(UsageError::of)?;
    let pools = PoolSizes::new(composition.config(), composition.folder().config.towers.set());
    if config.train.epochs.is_some() {
        // The runs settle the same for themselves.
        config.train = composition.settled().map_err(UsageError::of)?.config().train.clone();
    }
    let dir = &config.run.dir;
    let out = args.out.unwrap_or_else(|| {
        let name = dir.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned());
        dir.with_file_name(format!("{name}-drill"))
    });
    let plan = Plan { file: args.file, overrides: args.overrides, script, seed: args.seed, twin: args.twin, out };
    let report = Drill::new(plan, config, &pools).map_err(UsageError::of_any)?.run()?;
    println!("{report}");
    Ok(if report.is_identical() && report.is_drilled() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(super::exit::FAILED)
    })
}
