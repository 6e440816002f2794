//! `loongforge plan`: what the scheduler will do with a run, before the run.

use super::forecast::{as_json, human, seconds, table, text};
use super::{UsageError, check, exit};
use crate::calibrate::{Calibration, Stream, calibrate, set_gradients};
use crate::compose::Composition;
use crate::estimate::{DeviceRate, PoolSize, Trunk, costs, memory_bandwidth};
use crate::folder::ModelFolder;
use anyhow::Context;
use clap::Args;
use loongforge_core::config::{self, Device, PoolName, Precision, RunConfig};
use loongforge_core::message::{SampleMeta, StepId, StepPlan};
use loongforge_core::observe::peak_flops;
use loongforge_core::schedule::simulate::{
    Cluster, Costs, Law, Measured, Samples, SimSpec, alternatives, gantt_html, gantt_svg, simulate,
};
use loongforge_core::schedule::{Batch, CoordinatorSpec, SchedulerState, plan_step};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  loongforge plan my.yaml                                       packs of the first steps, memory of every actor
  loongforge plan my.yaml --simulate --calibrate runs/my        a step's time, from what a run on this machine took
  loongforge plan my.yaml --simulate --calibrate runs/my pools.encoder.replicas=4
  loongforge plan my.yaml --simulate --device H200 --mfu 0.4 --devices 64     the best ratio and placement on 64 GPUs
  loongforge plan my.yaml --simulate --device H200 --stages 4 --gantt step.html
  loongforge plan my.yaml --simulate --law vlm                  without the data set: sft, vlm, longtail or a JSON file

Costs come from one of --calibrate, --costs, --device. Runs to calibrate from should have batches of several sizes: one
run whose steps are all alike does not tell what a token costs from what a batch costs.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    /// Config of the run
    file: PathBuf,
    /// Overrides: key=value, +new=value, ~key, group=option
    #[arg(value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Steps to plan, or to simulate
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Run the real scheduler on a virtual clock
    #[arg(long)]
    simulate: bool,
    /// Take costs from finished runs on the machine that is meant
    #[arg(long, value_name = "RUN_DIR", requires = "simulate", conflicts_with_all = ["costs", "device"])]
    calibrate: Vec<PathBuf>,
    /// Take costs from a file that --save-costs wrote
    #[arg(long, value_name = "FILE", requires = "simulate", conflicts_with = "device")]
    costs: Option<PathBuf>,
    /// Write the costs as JSON
    #[arg(long, value_name = "FILE", requires = "simulate")]
    save_costs: Option<PathBuf>,
    /// Take costs from FLOPs on this GPU: H200, H100, A100 …
    #[arg(long, value_name = "GPU", requires = "simulate")]
    device: Option<String>,
    /// Share of the device's peak that a run gets
    #[arg(long, default_value_t = 0.4, value_name = "SHARE", requires = "device")]
    mfu: f64,
    /// Samples by a law instead of the config's data: sft, vlm, longtail, or a JSON histogram
    #[arg(long, value_name = "LAW", requires = "simulate")]
    law: Option<String>,
    /// Samples of the data set that are measured; a longer run goes round
    #[arg(long, default_value_t = 2048, value_name = "N")]
    samples: usize,
    /// Cores that all actors share; on the CPU those of this machine unless given
    #[arg(long, value_name = "CORES", requires = "simulate")]
    cores: Option<f64>,
    /// Pipeline stages of a foundation replica
    #[arg(long, default_value_t = 1, value_name = "P", requires = "simulate")]
    stages: u32,
    /// Standard deviation of every duration, as a share of it
    #[arg(long, default_value_t = 0.0, value_name = "SHARE", requires = "simulate")]
    jitter: f64,
    /// Seed of jitter and law
    #[arg(long, default_value_t = 1, value_name = "SEED", requires = "simulate")]
    seed: u64,
    /// Microseconds of a message between actors, beyond what --calibrate found
    #[arg(long, default_value_t = 0.0, value_name = "MICROSECONDS", requires = "simulate")]
    latency: f64,
    /// Gigabytes a second that one device sends, and that it gets in a reduction
    #[arg(long, value_name = "GB/S", requires = "simulate")]
    bandwidth: Option<f64>,
    /// Try other ratios and placements on so many devices
    #[arg(long, value_name = "N", requires = "simulate")]
    devices: Option<u32>,
    /// Draw the steps after the warm-up: .svg or .html
    #[arg(long, value_name = "FILE", requires = "simulate")]
    gantt: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long, requires = "simulate")]
    json: bool,
}

/// Simulated steps unless --steps says otherwise.
const STEPS: u64 = 50;
/// First of them that are left out.
const WARM_UP: u64 = 5;
const DRAWN_STEPS: u64 = 3;
/// Planned steps unless --steps says otherwise.
const PLANNED_STEPS: u64 = 2;

pub fn plan(args: PlanArgs) -> anyhow::Result<ExitCode> {
    let loaded = match config::load(&args.file, &args.overrides, super::environment()) {
        Ok(loaded) => loaded,
        Err(report) => {
            eprintln!("{report}");
            return Ok(ExitCode::from(exit::USAGE));
        }
    };
    let composition = Composition::new(loaded.config).map_err(|error| UsageError::of(&error))?;
    let folder = composition.folder().clone();
    let (recipe, run) = composition.into_parts();
    let case = Case::new(recipe.config.clone(), folder, run.coordinator)?;
    if args.simulate {
        case.simulate(&args)?
    } else {
        case.show(&args)?
    }
    Ok(ExitCode::SUCCESS)
}

/// A run that is looked at.
struct Case {
    config: RunConfig,
    folder: ModelFolder,
    coordinator: CoordinatorSpec,
    encoder: PoolSize,
    foundation: PoolSize,
}

impl Case {
    fn new(config: RunConfig, folder: ModelFolder, coordinator: CoordinatorSpec) -> anyhow::Result<Self> {
        let parts = check::parts(&config, &folder)?;
        let (foundation, encoder): (Vec<_>, Vec<_>) = parts.iter().partition(|(name, _)| *name == "foundation");
        let size = |parts: Vec<&(_, Vec<_>)>| PoolSize::of(parts.into_iter().flat_map(|(_, specs)| specs));
        Ok(Self { encoder: size(encoder), foundation: size(foundation), config, folder, coordinator })
    }

    fn is_bf16(&self) -> bool {
        self.config.train.precision == Precision::Bf16
    }

    // ---- plan

    fn show(&self, args: &PlanArgs) -> anyhow::Result<()> {
        if self.coordinator.look_ahead.is_some() {
            let fix = "the packs of a stream (data.pack.mode: stream) are not listed; use --simulate";
            return Err(UsageError(fix.to_owned()).into());
        }
        let mut stream = Stream::open(&self.config, &self.folder)?;
        let mut plans = Vec::new();
        for step in 0..args.steps.unwrap_or(PLANNED_STEPS).min(self.coordinator.steps) {
            let (batch, cursor) = stream.batch(self.coordinator.global_batch_size)?;
            plans.push(plan_step(&self.coordinator.plan, StepId(step), &Batch::Samples(batch), cursor)?);
        }
        print!("{}", self.pools());
        plans.iter().for_each(|plan| print!("{}", self.step(plan)));
        print!("{}", self.memory(&plans));
        Ok(())
    }

    fn pools(&self) -> String {
        let (pools, plan) = (self.coordinator.pools, &self.coordinator.plan);
        let placement = match plan.colocated {
            true => format!("{} encoders in the foundation's actors", plan.encoder_replicas),
            false => format!("{} encoder actors", pools.encoder),
        };
        format!(
            "run `{}`: {} data actors, {placement}, {} foundation actors; {} steps of {} samples, packs of {} tokens\n",
            self.config.run.name,
            pools.data,
            pools.foundation,
            self.coordinator.steps,
            self.coordinator.global_batch_size,
            plan.pack.max_tokens,
        )
    }

    /// One step: its packs, how full and how even they are, and who encodes.
    fn step(&self, plan: &StepPlan) -> String {
        let room = plan.packs.len() * self.coordinator.plan.pack.max_tokens;
        let mut text = format!(
            "step {}: {} packs, {:.1} % full ({} tokens, {} of them targets), {} units of {} media items, read up to \
             sample {}\n",
            plan.step,
            plan.packs.len(),
            100.0 * plan.num_tokens() as f64 / room.max(1) as f64,
            plan.num_tokens(),
            plan.num_targets,
            plan.units.len(),
            plan.num_items(),
            plan.cursor,
        );
        let replicas = (0..self.coordinator.pools.foundation).map(|replica| {
            plan.packs_of(replica)
                .flat_map(|pack| &pack.samples)
                .map(|sample| self.coordinator.plan.cost.sample(sample))
                .sum()
        });
        text += &balance("foundation replicas", replicas.collect());
        let encoders = (0..self.coordinator.plan.encoder_replicas).map(|encoder| {
            plan.units.iter().filter(|unit| unit.encoder == encoder).map(|unit| unit.num_patches() as u64).sum()
        });
        text += &balance("encoders", encoders.collect());
        for pack in plan.packs.iter().take(MAX_PACKS) {
            let units = plan.units_of(pack.id).count();
            let patches: usize = plan.units_of(pack.id).map(|unit| unit.num_patches()).sum();
            text += &format!(
                "  {} on foundation/{}: {} samples, {} tokens, {patches} patches in {units} units\n",
                pack.id,
                pack.replica,
                pack.samples.len(),
                pack.num_tokens()
            );
        }
        if plan.packs.len() > MAX_PACKS {
            text += &format!("  and {} more packs\n", plan.packs.len() - MAX_PACKS);
        }
        text
    }

    fn memory(&self, plans: &[StepPlan]) -> String {
        let bf16 = self.is_bf16();
        let vision = Trunk::encoder(&self.folder.json);
        let decoder = &self.folder.config.decoder;
        let language = Trunk {
            layers: decoder.num_layers() as f64,
            hidden_size: decoder.hidden_size as f64,
            full_layers: decoder.num_layers() as f64,
        };
        // A trained encoder keeps what it has encoded until its gradients are back; a frozen one keeps nothing.
        let patches = |plan: &StepPlan| {
            let of =
                |encoder| plan.units.iter().filter(move |unit| unit.encoder == encoder).map(|unit| unit.num_patches());
            let encoders = 0..self.coordinator.plan.encoder_replicas;
            match self.encoder.trained > 0 {
                true => encoders.map(|encoder| of(encoder).sum::<usize>()).max().unwrap_or(0),
                false => 0,
            }
        };
        let patches = plans.iter().map(patches).max().unwrap_or(0);
        let tokens = plans.iter().flat_map(|plan| &plan.packs).map(|pack| pack.num_tokens()).max().unwrap_or(0);
        let targets = plans.iter().flat_map(|plan| &plan.packs);
        let targets =
            targets.map(|pack| pack.samples.iter().map(|sample| u64::from(sample.num_targets)).sum::<u64>()).max();
        // Logits, and their gradient, of the rows that count.
        let logits = 8 * targets.unwrap_or(0) * decoder.vocab_size as u64;
        let mut rows = Vec::new();
        let encoder = (self.encoder, vision.activations(patches as f64, bf16), 0);
        let foundation = (self.foundation, language.activations(tokens as f64, bf16), logits);
        let row = |name: &str, parts: &[(PoolSize, u64, u64)]| {
            let mut sums = [0; 5];
            for (pool, activations, logits) in parts {
                let [weights, gradients, state] = pool.memory(bf16);
                sums.iter_mut()
                    .zip([weights, gradients, state, *activations, *logits])
                    .for_each(|(sum, part)| *sum += part);
            }
            let whole: u64 = sums.iter().sum();
            let cells: Vec<String> =
                sums.iter().chain([&whole]).map(|&bytes| format!("{:>12}", human(bytes))).collect();
            format!("  {name:<22}{}\n", cells.concat())
        };
        match (self.coordinator.plan.colocated, self.coordinator.pools.encoder) {
            (true, _) => rows.push(row("encoder + foundation", &[encoder, foundation])),
            (false, 0) => rows.push(row("foundation", &[foundation])),
            (false, _) => rows.extend([row("encoder", &[encoder]), row("foundation", &[foundation])]),
        }
        format!(
            "memory of one actor, estimated without recomputation\n  {:<22}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}\n{}",
            "",
            "weights",
            "gradients",
            "optimizer",
            "activations",
            "logits",
            "sum",
            rows.concat()
        )
    }

    // ---- simulation

    fn simulate(&self, args: &PlanArgs) -> anyhow::Result<()> {
        let mut spec = SimSpec {
            coordinator: CoordinatorSpec {
                steps: args.steps.unwrap_or(STEPS),
                first_step: StepId(0),
                state: SchedulerState::default(),
                ..self.coordinator.clone()
            },
            costs: Costs::default(),
            cluster: self.cluster(args, &self.config),
            encoder_trained: self.encoder.trained > 0,
            warm_up: WARM_UP.min(args.steps.unwrap_or(STEPS).saturating_sub(1)),
            drawn_steps: if args.gantt.is_some() { DRAWN_STEPS } else { 0 },
        };
        let samples = self.samples(args)?;
        spec.costs = self.costs(args, &spec, &*samples)?;
        if let Some(path) = &args.save_costs {
            let text = serde_json::to_string_pretty(&spec.costs)?;
            std::fs::write(path, text + "\n").with_context(|| format!("--save-costs: {}", path.display()))?;
        }
        let report = simulate(&spec, &*samples)?;
        if args.json {
            println!("{}", serde_json::to_string_pretty(&as_json(&report))?);
        } else {
            print!("{}{}", self.pools(), text(&report, &spec));
        }
        if let Some(path) = &args.gantt {
            let title = format!("{}: {} a step", self.config.run.name, seconds(report.mean_step()));
            let is_page = path.extension().is_some_and(|extension| extension == "html");
            let drawn = if is_page { gantt_html(&report, &title) } else { gantt_svg(&report.gantt, &title) };
            std::fs::write(path, drawn).with_context(|| format!("--gantt: {}", path.display()))?;
        }
        if let Some(devices) = args.devices {
            let lanes = self.config.run.deterministic.then(|| self.config.num_lanes() as u32);
            print!("{}", table(devices, &alternatives(&spec, &*samples, devices, lanes)));
        }
        Ok(())
    }

    fn cluster(&self, args: &PlanArgs, config: &RunConfig) -> Cluster {
        let on_cpu = config.device == Device::Cpu && args.device.is_none();
        let here = || std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
        let threads = |pool| if on_cpu { config.threads_for(pool) as f64 } else { 1.0 };
        let bandwidth = args.bandwidth.map_or(f64::INFINITY, |gigabytes| gigabytes * 1e9);
        Cluster {
            cores: args.cores.or_else(|| on_cpu.then(here)),
            encoder_threads: threads(PoolName::Encoder),
            foundation_threads: threads(PoolName::Foundation),
            control_latency: args.latency * 1e-6,
            latency: args.latency * 1e-6,
            bandwidth,
            reduce_bandwidth: bandwidth,
            stages: args.stages.max(1),
            bytes_per_hidden: self.coordinator.plan.shape.hidden_size as f64 * if self.is_bf16() { 2.0 } else { 4.0 },
            jitter: args.jitter,
            seed: args.seed,
        }
    }

    fn samples(&self, args: &PlanArgs) -> anyhow::Result<Box<dyn Samples>> {
        let max_tokens = self.coordinator.plan.pack.max_tokens;
        if let Some(name) = &args.law {
            let law = match Path::new(name).extension() {
                Some(extension) if extension == "json" => {
                    let text = std::fs::read_to_string(name).with_context(|| format!("--law: {name}"))?;
                    Law::from_json(&text).with_context(|| format!("--law: {name}"))?
                }
                _ => name.parse().map_err(|error| UsageError::of(&error))?,
            };
            let samples = law.samples(args.seed, max_tokens);
            let has_encoder = self.coordinator.plan.encoder_replicas > 0;
            return Ok(if has_encoder { Box::new(samples) } else { Box::new(TextOnly(Box::new(samples))) });
        }
        let (samples, _) = Stream::open(&self.config, &self.folder)?.batch(args.samples.max(1))?;
        Ok(Box::new(Measured::new(samples).context("--samples: no sample to go by")?))
    }

    fn costs(&self, args: &PlanArgs, spec: &SimSpec, samples: &dyn Samples) -> anyhow::Result<Costs> {
        if let Some(path) = &args.costs {
            let text = std::fs::read_to_string(path).with_context(|| format!("--costs: {}", path.display()))?;
            return serde_json::from_str(&text).with_context(|| format!("--costs: {}", path.display()));
        }
        if let Some(name) = &args.device {
            let Some(peak) = peak_flops(&name.to_uppercase(), self.is_bf16()) else {
                return Err(
                    UsageError(format!("--device: no peak is known of `{name}`; try H200, H100, A100, L40S")).into()
                );
            };
            let rate = DeviceRate { flops: peak * args.mfu, memory_bandwidth: memory_bandwidth(&name.to_uppercase()) };
            return Ok(costs(&self.folder, self.encoder, self.foundation, rate, self.is_bf16()));
        }
        if args.calibrate.is_empty() {
            let fix = "--simulate needs costs: --calibrate RUN_DIR, --costs FILE or --device GPU";
            return Err(UsageError(fix.to_owned()).into());
        }
        let mut calibration = calibrate(&args.calibrate)?;
        set_gradients(&mut calibration.costs, self.encoder, self.foundation);
        calibration.notes.iter().for_each(|note| eprintln!("calibrated {note}"));
        self.find_latency(args, spec, samples, &mut calibration);
        Ok(calibration.costs)
    }

    /// What the first run's steps took beyond what its work explains is taken for the way of its messages.
    fn find_latency(&self, args: &PlanArgs, spec: &SimSpec, samples: &dyn Samples, calibration: &mut Calibration) {
        let config = &calibration.config;
        let mut past = spec.clone();
        past.coordinator = CoordinatorSpec {
            steps: spec.coordinator.steps,
            ..CoordinatorSpec::new(config, self.folder.shape(), None)
        };
        past.cluster = self.cluster(args, config);
        past.drawn_steps = 0;
        let mean = |latency: f64| {
            let costs = Costs { latency, ..calibration.costs };
            simulate(&SimSpec { costs, ..past.clone() }, samples).map(|report| report.mean_step())
        };
        // By the secant: a step grows as the latency does, so many messages one after the other.
        let Ok(without) = mean(0.0) else { return };
        let probe = 0.05 * calibration.mean_step;
        let Ok(with) = mean(probe) else { return };
        let messages = (with - without) / probe;
        let latency = (calibration.mean_step - without) / messages;
        eprintln!(
            "calibrated steps: {} measured, {} from work alone",
            seconds(calibration.mean_step),
            seconds(without)
        );
        if latency > 0.0 && latency.is_finite() {
            calibration.costs.latency = latency;
        }
    }
}

/// Packs that are listed.
const MAX_PACKS: usize = 8;

/// A law's samples for a model without an encoder: their pictures become text.
struct TextOnly(Box<dyn Samples>);

impl Samples for TextOnly {
    fn sample(&self, position: u64) -> SampleMeta {
        SampleMeta { items: Vec::new(), ..self.0.sample(position) }
    }
}

/// `  encoders: the dearest does 1.03 times the mean`.
fn balance(name: &str, loads: Vec<u64>) -> String {
    let (sum, most) = (loads.iter().sum::<u64>(), loads.iter().max().copied().unwrap_or(0));
    if loads.len() < 2 || sum == 0 {
        return String::new();
    }
    format!("  {name}: the dearest does {:.3} times the mean\n", most as f64 * loads.len() as f64 / sum as f64)
}
