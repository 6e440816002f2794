//! The two runs, and the faults of one of them.

use super::processes::Members;
use super::report::Report;
use super::traces::Traces;
use anyhow::{Context, bail};
use loongforge_actors::drill::{Fault, FaultRule, Injected, PROXY, Proxy, Script, Span, Target};
use loongforge_core::config::RunConfig;
use loongforge_core::engine::fault::FAULTS;
use loongforge_core::message::PoolName;
use loongforge_core::schedule::PoolSizes;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Sets how often it is looked how far the run is.
const LOOK: Duration = Duration::from_millis(5);
/// Lines of a failed run that are shown.
const SHOWN: usize = 30;

/// The settings of a drill.
pub struct Plan {
    pub file: PathBuf,
    pub overrides: Vec<String>,
    pub script: Script,
    pub seed: u64,
    /// Folder of a run without faults; else one is run.
    pub twin: Option<PathBuf>,
    pub out: PathBuf,
}

/// A drill that can be run.
pub struct Drill {
    plan: Plan,
    config: RunConfig,
}

impl Drill {
    /// `pools`: those of the run.
    ///
    /// # Errors
    /// The script asks for what cannot be done here.
    pub fn new(plan: Plan, config: RunConfig, pools: &PoolSizes) -> anyhow::Result<Self> {
        if !config.log.jsonl {
            bail!("a drill compares the steps in metrics.jsonl: set log.jsonl=true");
        }
        let known = names(pools);
        for fault in &plan.script.faults {
            for pool in fault.target.pools() {
                if !known.contains(&pool) {
                    let known = known.iter().map(|pool| format!("`{pool}`")).collect::<Vec<_>>().join(", ");
                    bail!("`{fault}`: the run has no pool `{pool}`; its pools are {known}");
                }
            }
            if let (Target::Process(pattern), Fault::Kill { point: Some(_) } | Fault::Freeze { point: Some(_) }) =
                (&fault.target, &fault.verb)
                && (pattern.pool.is_none() || pattern.index.is_none())
            {
                bail!("`{fault}`: name the process that reaches that point, as in encoder/1");
            }
        }
        Ok(Self { plan, config })
    }

    /// Runs both, and compares.
    ///
    /// # Errors
    /// A run cannot be started; the one without faults fails.
    pub fn run(&self) -> anyhow::Result<Report> {
        let twin = match &self.plan.twin {
            Some(dir) => Traces::read(dir)?,
            None => {
                let dir = self.plan.out.join("twin");
                eprintln!("the run without faults: {}", dir.display());
                // Through a proxy as well, so that the two differ by the faults alone.
                let Ended { status, seconds, .. } = self.with(&dir, &Script::default())?;
                if !status.success() {
                    bail!("the run without faults failed ({status}): {}", tail(&dir)?);
                }
                Traces { seconds, ..Traces::read(&dir)? }
            }
        };
        let dir = self.plan.out.join("faulty");
        eprintln!("the run with faults: {}", dir.display());
        let Ended { status, injected, seconds } = self.with(&dir, &self.plan.script)?;
        if !status.success() {
            eprintln!("the run with faults failed ({status}): {}", tail(&dir)?);
        }
        let faulty = Traces { seconds, ..Traces::read(&dir)? };
        Ok(Report { injected, twin, faulty, has_ended_well: status.success() })
    }

    /// Makes a run in `dir` with these faults.
    fn with(&self, dir: &Path, script: &Script) -> anyhow::Result<Ended> {
        fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("run").arg(&self.plan.file).args(&self.plan.overrides);
        command.arg(format!("run.dir={}", dir.display()));
        command.arg(format!("checkpoint.dir={}", dir.join("checkpoints").display()));
        // The weights that are compared are those of the last step.
        command.arg("checkpoint.at_end=true");
        // Without it the two differ by rounding, whatever happens.
        command.args(["run.deterministic=true", "--overwrite", "--processes", "--no-shared-memory"]);
        let proxy = Proxy::start(script, self.plan.seed)?;
        command.env(PROXY, proxy.address().to_string()).env(FAULTS, points(script));
        let log = File::create(dir.join("drill.log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let metrics = dir.join("metrics.jsonl");
        let _ = fs::remove_file(&metrics);
        let mut run = command.spawn()?;
        let mut done = Done::new(script);
        let (status, seconds) = watch(&mut run, &metrics, &proxy, &mut done, self.config.train.num_steps())?;
        let mut injected = proxy.injected();
        injected.iter_mut().zip(&done.counts).for_each(|(injected, done)| injected.count += done);
        Ok(Ended { status, injected, seconds })
    }
}

/// A run that has ended.
struct Ended {
    status: ExitStatus,
    injected: Vec<Injected>,
    /// Seconds from the end of its first step to that of its last one, restarts included.
    seconds: f64,
}

/// Returns the pools whose actors a fault may be about.
fn names(pools: &PoolSizes) -> Vec<PoolName> {
    let own = pools.encoders.iter().chain(&pools.foundations).map(|pool| pool.name);
    [PoolName::SCHEDULER, PoolName::DATA].into_iter().chain(own).collect()
}

/// Watches the run until it ends: tells the proxy of steps, and does to processes what is to be done. Returns how it ended, and the
/// seconds from the end of its first step to that of its last one.
fn watch(
    run: &mut Child,
    metrics: &Path,
    proxy: &Proxy,
    done: &mut Done,
    steps: u64,
) -> anyhow::Result<(ExitStatus, f64)> {
    let mut before = 0;
    let mut first = None;
    let mut seconds = 0.0;
    let mut members = Members::new(run.id());
    loop {
        if let Some(status) = run.try_wait()? {
            return Ok((status, seconds));
        }
        let now = fs::read(metrics).map_or(0, |text| text.iter().filter(|&&byte| byte == b'\n').count() as u64);
        if now != before {
            before = now;
            seconds = first.get_or_insert_with(Instant::now).elapsed().as_secs_f64();
            proxy.advance(now);
        }
        if now < steps {
            done.advance(now, &mut members);
        }
        std::thread::sleep(LOOK);
    }
}

/// Faults of processes that begin with a step, and how far they are.
struct Done {
    faults: Vec<FaultRule>,
    counts: Vec<u64>,
    /// Frozen processes, and when they go on: by the fault.
    frozen: Vec<(u32, Instant)>,
}

impl Done {
    fn new(script: &Script) -> Self {
        Self { faults: script.faults.clone(), counts: vec![0; script.faults.len()], frozen: Vec::new() }
    }

    fn advance(&mut self, step: u64, members: &mut Members) {
        for (fault, count) in self.faults.iter().zip(&mut self.counts) {
            let Target::Process(pattern) = fault.target else { continue };
            if *count > 0 || step < fault.from_step {
                continue;
            }
            match &fault.verb {
                Fault::Kill { point: None } => *count += members.kill(pattern),
                Fault::Freeze { point: None } => {
                    let frozen = members.freeze(pattern);
                    *count += frozen.len() as u64;
                    let until = match fault.span {
                        Some(Span::Time(span)) => Instant::now() + span,
                        _ => continue,
                    };
                    self.frozen.extend(frozen.into_iter().map(|process| (process, until)));
                }
                // It is the process's own to do.
                Fault::Kill { .. } | Fault::Freeze { .. } => *count = 1,
                _ => {}
            }
        }
        let now = Instant::now();
        self.frozen.retain(|(process, until)| {
            let over = *until <= now;
            if over {
                members.thaw(*process);
            }
            !over
        });
    }
}

/// Faults at points of an engine's life, as its process reads them.
fn points(script: &Script) -> String {
    let rules = script.faults.iter().filter_map(|fault| {
        let Target::Process(pattern) = fault.target else { return None };
        let (action, (point, nth)) = match &fault.verb {
            Fault::Kill { point } => ("kill", point.as_ref()?),
            Fault::Freeze { point } => ("freeze", point.as_ref()?),
            _ => return None,
        };
        Some(format!("{}/{}@{point}:{nth}={action}", pattern.pool?, pattern.index?))
    });
    rules.collect::<Vec<_>>().join(" ")
}

/// Returns the last lines of what a run has said.
fn tail(dir: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(dir.join("drill.log"))?;
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(SHOWN)..].join("\n"))
}
