//! `loongforge run`: a whole run on this machine, or one role of it.

use super::decode_worker::decoder;
use super::part::{Beside, Part, PartArgs};
use super::scale::{ADDRESS, SOCKET};
use super::{UsageError, exit};
use crate::compose::{Composition, Resume, precision_name};
use crate::evaluate;
use crate::folder::{FolderError, ModelFolder};
use crate::killers;
use crate::report::Report;
use crate::roles;
use crate::snapshots::Snapshots;
use anyhow::{Context, bail};
use clap::Args;
use loongforge_actors::checkpoint::{DATA, MANIFEST, Manifest, clean, latest};
use loongforge_actors::journal::{Past, unfinished};
use loongforge_actors::launch::net::{Party, Security};
use loongforge_actors::launch::{Keep, bind_to_parent, follows, keep, keeper};
use loongforge_actors::{Meeting, RunError, Start, StopOn, serve_role, serve_scheduler};
use loongforge_core::config::{self, Address, Loaded, OnChange, RunConfig};
use loongforge_core::data::{Fingerprint, fingerprint as data_fingerprint};
use loongforge_core::message::{ActorId, Role, SampleId, StepId};
use loongforge_core::observe::{Console, init_logging, read_metrics};
use loongforge_core::schedule::{Failure, Outcome, PoolSizes};
use loongforge_torch::native::StoreServer;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Name of the scheduler's journal in a run's folder.
const JOURNAL: &str = "journal";

const EXAMPLES: &str = "\
Examples:
  loongforge run my.yaml                                  train, every actor a thread of this process
  loongforge run my.yaml train.lr=1e-5 run.name=second    change values
  loongforge run my.yaml --resume                         go on from the last checkpoint, or begin
  loongforge run my.yaml --resume=runs/my/checkpoints/step-00000500
  loongforge run my.yaml --processes                      one process per actor
  loongforge run my.yaml --role encoder --join /tmp/run.sock
  loongforge run my.yaml --role encoder --join head:6001 --tls certs
  torchrun --no-python --nnodes 2 --nproc-per-node 8 loongforge run my.yaml --role auto --tls certs

Exit codes: 0 done; 1 failed; 2 wrong config or usage; 3 stopped on request, go on with --resume;
4 lost a process that the run cannot go on without, go on with --resume;
5 loss or gradient not finite too often: see nonfinite-step-N.json in the run's folder; 75 its processes did not come together";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
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
        return Ok(status.code().map_or(ExitCode::from(exit::LOST), |code| ExitCode::from(code as u8)));
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
    let meeting = |address: Address, security: Security, index: Option<u32>| Meeting {
        address,
        security,
        config: fingerprint(&loaded),
        timeout: loaded.config.scheduler.join_timeout.duration(),
        shared_memory: !args.part.no_shared_memory,
        index,
        store: None,
        journal: None,
    };
    let mut pools = PoolSizes::new(composition.config());
    if composition.folder().config.encoder.is_none() {
        pools.encoder = 0;
    }
    let part = args.part.part(pools)?;
    if let Some(Part { scheduler: false, actors, join }) = &part {
        let &(role, index) = actors.first().expect("without the scheduler there is one actor");
        let security = args.part.security(&loaded.config.run.name, Party::Actor(role))?;
        let (recipe, _) = composition.into_parts();
        serve_role(role, meeting(join.clone(), security, index), |assignment| roles::engine(recipe, assignment))?;
        return Ok(ExitCode::SUCCESS);
    }
    supervise(&args, part.as_ref(), &loaded, &console, composition, meeting)
}

fn compose(config: &RunConfig) -> Result<Composition, FolderError> {
    let decoder = decoder(config.security.sandbox, |warning| tracing::warn!("{warning}"));
    Ok(Composition::new(config.clone())?.decoder(decoder))
}

/// Runs, and begins again at the last checkpoint where a child that the run cannot go on without has died.
fn supervise(
    args: &RunArgs,
    part: Option<&Part>,
    loaded: &Loaded,
    console: &Console,
    composition: Composition,
    meeting: impl Fn(Address, Security, Option<u32>) -> Meeting,
) -> anyhow::Result<ExitCode> {
    let (mut composition, mut resume) = (composition, args.resume.clone());
    let snapshots = snapshots(args, loaded, console);
    for restart in 0.. {
        // One that follows another begins where that was.
        let again = args.processes && restart == 0 && follows();
        let wanted = resume.as_deref().filter(|_| !again);
        let resumed = find_resume(wanted, &composition, snapshots.as_ref(), console)?;
        if let Some(snapshots) = &snapshots {
            clean(snapshots.path())?;
        }
        let known = resume.as_ref().map(|_| killers::read(&loaded.config.run.dir)).unwrap_or_default();
        composition = composition.resume(resumed).knowing(known).snapshots_in(snapshots.as_ref().map(Snapshots::path));
        let error = match conduct(args, part, loaded, console, composition, again, &meeting) {
            Err(error) => error,
            ended => return ended,
        };
        if !args.processes || exit::of(&error) != exit::LOST || restart >= loaded.config.run.max_restarts {
            return Err(error);
        }
        console.line(&format!("{error}; beginning again at the last checkpoint"));
        resume = Some("auto".to_owned());
        composition = compose(&loaded.config)?;
    }
    unreachable!("the loop ends with an error")
}

/// Memory for checkpoints, where they are wanted and of use. Without it a run goes on as well.
fn snapshots(args: &RunArgs, loaded: &Loaded, console: &Console) -> Option<Snapshots> {
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

fn conduct(
    args: &RunArgs,
    part: Option<&Part>,
    loaded: &Loaded,
    console: &Console,
    composition: Composition,
    again: bool,
    meeting: impl Fn(Address, Security, Option<u32>) -> Meeting,
) -> anyhow::Result<ExitCode> {
    let composition = composition.stop_on(StopOn::Signals);
    composition.expect_weights().map_err(|error| UsageError::of(&error))?;
    super::check::open(composition.config()).map_err(|error| UsageError::of(error.as_ref()))?;
    let config = composition.config().clone();
    let journal = config.run.dir.join(JOURNAL);
    let is_kept = args.processes || part.is_some_and(|part| part.actors.is_empty());
    let takes_over = if args.processes { again } else { is_kept && !composition.resumes() && !args.overwrite };
    let past = match takes_over {
        true => unfinished(&journal, &fingerprint(loaded)),
        false => None,
    };
    if again && past.is_none() {
        let cause = "the scheduler died before the run was under way".into();
        return Err(RunError::Failed(Failure::loss(ActorId::SCHEDULER, cause)).into());
    }
    let (begin, again) = match &past {
        Some(_) => {
            let told = read_metrics(&config.run.dir.join("metrics.jsonl")).unwrap_or_default();
            console.line("going on in the place of a scheduler that has died; --resume or --overwrite begin anew");
            let told = StepId(told.last().map_or(0, |last| last.step + 1));
            ((told, SampleId(u64::MAX)), Some(told))
        }
        None => {
            prepare_folder(&loaded.config, composition.resumes(), args.overwrite)?;
            killers::keep(&config.run.dir, composition.killers())?;
            ((composition.first_step(), composition.cursor()), None)
        }
    };
    let journal = is_kept.then_some(Keep { path: journal, again });
    let report = Report::new(&composition, loaded.composed.clone(), console.clone(), begin)?;
    let name = &config.run.name;
    let outcome = match part {
        Some(Part { actors, join, .. }) => {
            let security = args.part.security(name, Party::Actor(Role::Scheduler))?;
            let _sign = matches!(join, Address::Tcp { .. }).then(|| Sign::put_up(&config.run.dir, join));
            let (start, mut beside) = (child(args)?, Beside::default());
            for &(role, index) in actors {
                beside.start(start(ActorId::new(role, index.unwrap_or(0)), join), index)?;
            }
            let (_, spec) = composition.into_parts();
            // Pools on several hosts have no folder in common.
            let store = match join {
                Address::Tcp { host, .. } if !join.is_local() => {
                    Some(StoreServer::start(host, past.as_ref().and_then(Past::store).unwrap_or(0))?)
                }
                _ => None,
            };
            let store_port = store.as_ref().map(StoreServer::port);
            let meeting = Meeting { store: store_port, journal, ..meeting(join.clone(), security, None) };
            serve_scheduler(spec, meeting, None, Box::new(report))?
        }
        None if args.processes => {
            let folder = keeper().context("a scheduler of processes has a keeper")?;
            let (_, spec) = composition.into_parts();
            let address = match args.part.no_shared_memory {
                true => port_of_run(&folder, past.is_some())?,
                false => Address::Unix(folder.join("run.sock")),
            };
            let _sign = Sign::put_up(&config.run.dir, &address);
            let meeting = Meeting { journal, ..meeting(address, Security::plain(name, false), None) };
            serve_scheduler(spec, meeting, Some(child(args)?), Box::new(report))?
        }
        None => composition.run(Box::new(report))?,
    };
    match outcome {
        Outcome::Completed => {
            evaluate::after_run(&config, console)?;
            Ok(ExitCode::SUCCESS)
        }
        Outcome::Preempted => {
            console.line("stopped on request; go on with --resume");
            Ok(ExitCode::from(exit::PREEMPTED))
        }
    }
}

/// A port of this machine's, for who shall not share memory: the same for who follows.
fn port_of_run(folder: &Path, again: bool) -> anyhow::Result<Address> {
    let kept = folder.join("address");
    if again {
        return std::fs::read_to_string(&kept)?.parse().map_err(|error: String| anyhow::anyhow!(error));
    }
    let address = Address::Tcp { host: "127.0.0.1".into(), port: free_port()? };
    std::fs::write(&kept, address.to_string())?;
    Ok(address)
}

/// A port of loopback that nobody listens at.
fn free_port() -> anyhow::Result<u16> {
    Ok(std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// In the run's folder, where its scheduler listens, for who looks for the run: a link to its socket, or a file with its
/// address. Gone with the run.
struct Sign(PathBuf);

impl Sign {
    /// A folder without links is no reason not to run.
    fn put_up(dir: &Path, address: &Address) -> Self {
        let sign = match address {
            Address::Unix(_) => dir.join(SOCKET),
            Address::Tcp { .. } => dir.join(ADDRESS),
        };
        let _ = std::fs::remove_file(&sign);
        let _ = match address {
            Address::Unix(path) => std::os::unix::fs::symlink(path, &sign),
            Address::Tcp { .. } => std::fs::write(&sign, address.to_string()),
        };
        Self(sign)
    }
}

impl Drop for Sign {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The command that makes a process of one actor of this run.
fn child(args: &RunArgs) -> anyhow::Result<Start> {
    let (program, file, overrides) = (std::env::current_exe()?, args.file.clone(), args.overrides.clone());
    let part = args.part.clone();
    Ok(Box::new(move |actor, address| {
        let mut command = Command::new(&program);
        command.arg("run").arg(&file).args(&overrides).args(part.words(actor.role, address));
        command
    }))
}

/// Processes whose configs differ must not train together.
fn fingerprint(loaded: &Loaded) -> String {
    let hash = Sha256::digest(loaded.composed.to_string());
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// `--resume PATH` reads as `--resume` and an override.
fn expect_equals_sign(args: &RunArgs) -> anyhow::Result<()> {
    let is_checkpoint = |word: &&String| Path::new(word).join(MANIFEST).is_file();
    match args.overrides.iter().find(is_checkpoint).filter(|_| args.resume.is_some()) {
        Some(path) => Err(UsageError(format!("write --resume={path}, with `=`")).into()),
        None => Ok(()),
    }
}

/// The checkpoint that `--resume` means; the one in memory where that is of a later step.
fn find_resume(
    wanted: Option<&str>,
    composition: &Composition,
    snapshots: Option<&Snapshots>,
    console: &Console,
) -> anyhow::Result<Option<Resume>> {
    let Some(wanted) = wanted else { return Ok(None) };
    let config = composition.config();
    let on_disk = latest(&config.checkpoint.dir)?;
    let newest = snapshots.map_or(Ok(None), Snapshots::newest).unwrap_or_else(|error| {
        console.line(&format!("warning: not from memory: {error}"));
        None
    });
    if let Some((checkpoint, manifest)) = newest
        && on_disk
            .as_ref()
            .and_then(|path| Manifest::read(path).ok())
            .is_none_or(|on_disk| on_disk.num_steps < manifest.num_steps)
    {
        console.line(&format!("from memory: {} steps are done", manifest.num_steps));
        let first_step = StepId(manifest.num_steps);
        return Ok(Some(Resume { checkpoint, first_step, state: manifest.scheduler }));
    }
    let checkpoint = match wanted {
        "auto" => match on_disk {
            Some(checkpoint) => checkpoint,
            // A launcher may pass --resume from the first start on.
            None => return Ok(None),
        },
        path => PathBuf::from(path),
    };
    let manifest = Manifest::read(&checkpoint)?;
    composition.folder().expect_same(&ModelFolder::open_plain(&checkpoint)?)?;
    let (theirs, ours) = (manifest.precision.as_str(), precision_name(config.train.precision));
    if theirs != ours {
        let path = checkpoint.display();
        bail!("{path} has train.precision {theirs}, this run {ours}: resume with train.precision={theirs}");
    }
    expect_same_data(&checkpoint, config)?;
    let first_step = StepId(manifest.num_steps);
    if first_step.0 >= config.train.steps {
        let (done, path) = (first_step, checkpoint.display());
        bail!("{path} has all {done} steps of the run already; raise train.steps to train on");
    }
    Ok(Some(Resume { checkpoint, first_step, state: manifest.scheduler }))
}

/// A position in the stream means the same sample only while the files are the same.
fn expect_same_data(checkpoint: &Path, config: &RunConfig) -> anyhow::Result<()> {
    let path = checkpoint.join(DATA);
    if !path.exists() {
        return Ok(());
    }
    let named = || path.display().to_string();
    let then: Fingerprint = serde_json::from_slice(&std::fs::read(&path).with_context(named)?).with_context(named)?;
    let Some(difference) = then.difference(&data_fingerprint(&config.data)?) else { return Ok(()) };
    let what = format!("the data changed since {}: {difference}", checkpoint.display());
    match config.data.on_change {
        OnChange::Refuse => bail!("{what}; to go on at its place in the new order, set data.on_change=accept"),
        OnChange::Accept => eprintln!("warning: {what}"),
    }
    Ok(())
}

/// Makes the run's folder, and sees to it that no former run is lost by mistake.
fn prepare_folder(config: &RunConfig, resumes: bool, overwrite: bool) -> anyhow::Result<()> {
    let (dir, checkpoints) = (&config.run.dir, &config.checkpoint.dir);
    // Only checkpoints are removed: the folder may hold what is not ours.
    while !resumes && let Some(former) = latest(checkpoints)? {
        if !overwrite {
            let former = former.display();
            let what = format!(
                "run.dir already holds a run ({former}): go on with --resume, begin anew with --overwrite, or set run.name"
            );
            return Err(UsageError(what).into());
        }
        std::fs::remove_dir_all(&former).with_context(|| format!("checkpoint.dir: {}", former.display()))?;
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
