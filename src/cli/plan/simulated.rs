//! `loongforge plan --simulate`: what costs, samples and machine are assumed, and what comes of them.

use super::PlanArgs;
use super::case::Case;
use crate::cli::UsageError;
use crate::cli::forecast::{as_json, seconds, table, text};
use crate::estimate::calibrate::{Calibration, Stream, calibrate, set_gradients};
use crate::estimate::flops::{DeviceRate, costs, memory_bandwidth, tower_costs};
use anyhow::Context;
use loongforge_core::config::{Device, FoundationPool, RunConfig};
use loongforge_core::message::{PoolName, SampleMeta, StepId};
use loongforge_core::observe::peak_flops;
use loongforge_core::schedule::{CoordinatorSpec, SchedulerState};
use loongforge_core::simulate::{
    Cluster, Costs, Law, Measured, RoleCosts, Samples, SimSpec, alternatives, gantt_html, gantt_svg, simulate,
};
use loongforge_torch::device::settle;
use std::collections::BTreeMap;
use std::path::Path;

/// Simulated steps unless --steps says otherwise.
const STEPS: u64 = 50;
/// First of them that are left out.
const WARM_UP: u64 = 5;
const DRAWN_STEPS: u64 = 3;
/// The loss of two actors that share a core, as the quick start's with 1 to 4 encoders on two cores were measured.
const SHARING_LOSS: f64 = 0.07;

impl Case {
    /// Prints the times of simulated steps, writes costs and a chart if asked, and with `--devices` compares layouts.
    ///
    /// # Errors
    /// Fails if an option does not fit the run, data or costs cannot be read, a file cannot be written, or the simulated run fails.
    pub fn simulate(&self, args: &PlanArgs) -> anyhow::Result<()> {
        // Known before anything is computed.
        let drawing = args.gantt.as_deref().map(Drawing::of).transpose()?;
        self.expect_alike(args)?;
        let mut spec = SimSpec {
            coordinator: CoordinatorSpec {
                steps: args.steps.unwrap_or(STEPS),
                first_step: StepId(0),
                state: SchedulerState::default(),
                ..in_groups(self.coordinator.clone())
            },
            costs: Costs::default(),
            cluster: self.cluster(args, &self.config),
            threads: self.threads(args, &self.config),
            colocated_trained: self.encoder.trained > 0,
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
            let drawn = match drawing {
                Some(Drawing::Page) => gantt_html(&report, &title),
                _ => gantt_svg(&report.gantt, &title),
            };
            std::fs::write(path, drawn).with_context(|| format!("--gantt: {}", path.display()))?;
        }
        if let Some(devices) = args.devices {
            let lanes = self.config.run.deterministic.then_some(self.config.run.lanes as u32);
            print!("{}", table(devices, &alternatives(&spec, &*samples, devices, lanes)));
        }
        Ok(())
    }

    /// Two foundation pools may have different numbers of replicas; of the rest the simulator knows one.
    fn expect_alike(&self, args: &PlanArgs) -> Result<(), UsageError> {
        let pools = self.config.foundations();
        let split = |pool: FoundationPool| [pool.pipeline_parallel, pool.tensor_parallel * pool.context_parallel];
        let why = match pools.len() {
            1 => return Ok(()),
            _ if args.law.is_some() => {
                "--law: its samples have no noise levels, which choose between the two transformers of this model"
            }
            _ if args.devices.is_some() => {
                "--devices is not supported with two transformers: set their pools and simulate each layout"
            }
            _ if pools.iter().any(|(_, pool)| split(*pool) != split(pools[0].1)) => {
                "--simulate: the pools foundation_high and foundation_low must have the same tensor_parallel, \
                 context_parallel and pipeline_parallel; their replicas may differ"
            }
            _ => return Ok(()),
        };
        Err(UsageError(why.to_owned()))
    }

    fn cluster(&self, args: &PlanArgs, config: &RunConfig) -> Cluster {
        let on_cpu = is_on_cpu(args, config);
        let here = || std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
        let threads = |pool| if on_cpu { config.threads_for(pool) as f64 } else { 1.0 };
        let bandwidth = args.bandwidth.map_or(f64::INFINITY, |gigabytes| gigabytes * 1e9);
        Cluster {
            cores: args.cores.or_else(|| on_cpu.then(here)),
            sharing_loss: SHARING_LOSS,
            encoder_threads: threads(PoolName::ENCODER),
            foundation_threads: threads(config.foundations()[0].0),
            control_latency: args.latency * 1e-6,
            latency: args.latency * 1e-6,
            bandwidth,
            reduce_bandwidth: bandwidth,
            stages: args.stages.unwrap_or(config.foundations()[0].1.pipeline_parallel as u32).max(1),
            bytes_per_hidden: self.coordinator.plan.shape.hidden_size as f64 * if self.is_bf16() { 2.0 } else { 4.0 },
            jitter: args.jitter,
            seed: args.seed,
        }
    }

    /// Returns the cores that an encoder uses when it computes, by pool.
    fn threads(&self, args: &PlanArgs, config: &RunConfig) -> BTreeMap<PoolName, f64> {
        let on_cpu = is_on_cpu(args, config);
        let pools = config.pools.encoders(self.folder.config.towers.set()).into_iter();
        pools.map(|(name, ..)| (name, if on_cpu { config.threads_for(name) as f64 } else { 1.0 })).collect()
    }

    fn samples(&self, args: &PlanArgs) -> anyhow::Result<Box<dyn Samples>> {
        let max_tokens = self.coordinator.plan.pack.max_tokens;
        if let Some(name) = &args.law {
            let law = match Path::new(name).extension() {
                Some(extension) if extension == "json" => {
                    let text =
                        loongforge_core::files::read_text(Path::new(name)).with_context(|| format!("--law: {name}"))?;
                    Law::from_json(&text).with_context(|| format!("--law: {name}"))?
                }
                _ => name.parse().map_err(UsageError::of)?,
            };
            let samples = law.samples(args.seed, max_tokens);
            let has_encoder = !self.coordinator.plan.encoders.is_empty();
            return Ok(if has_encoder { Box::new(samples) } else { Box::new(TextOnly(Box::new(samples))) });
        }
        let samples = Stream::open(&self.config, &self.folder)?.samples(args.samples.max(1))?;
        Ok(Box::new(Measured::new(samples).context("--samples: no sample can be measured")?))
    }

    fn costs(&self, args: &PlanArgs, spec: &SimSpec, samples: &dyn Samples) -> anyhow::Result<Costs> {
        if let Some(path) = &args.costs {
            let text =
                loongforge_core::files::read_text(path).with_context(|| format!("--costs: {}", path.display()))?;
            return serde_json::from_str(&text).with_context(|| format!("--costs: {}", path.display()));
        }
        if let Some(name) = &args.device {
            let Some(peak) = peak_flops(&name.to_uppercase(), self.is_bf16()) else {
                return Err(UsageError(format!(
                    "--device: the peak performance of `{name}` is not known; use H200, H100, A100 or L40S"
                ))
                .into());
            };
            let rate = DeviceRate { flops: peak * args.mfu, memory_bandwidth: memory_bandwidth(&name.to_uppercase()) };
            return self.costs_at(rate);
        }
        if args.calibrate.is_empty() {
            let fix = "--simulate needs costs: --calibrate RUN_DIR, --costs FILE or --device GPU";
            return Err(UsageError(fix.to_owned()).into());
        }
        let mut calibration = calibrate(&args.calibrate).map_err(UsageError::of_any)?;
        set_gradients(&mut calibration.costs, self.encoder, self.foundation);
        for (&tower, costs) in &mut calibration.costs.towers {
            costs.gradient_bytes = 4.0 * self.tower(tower)?.trained as f64;
        }
        calibration.notes.iter().for_each(|note| eprintln!("calibrated {note}"));
        self.find_latency(args, spec, samples, &mut calibration);
        Ok(calibration.costs)
    }

    /// Returns the costs at the rate of a device. Several towers have their own, divided by the ranks of their own pools.
    fn costs_at(&self, rate: DeviceRate) -> anyhow::Result<Costs> {
        let (is_bf16, foundation) = (self.is_bf16(), self.config.foundations()[0].1.layout());
        let mut costs = costs(&self.folder, self.encoder, self.foundation, rate, is_bf16);
        costs.foundation = shared(costs.foundation, foundation.tp * foundation.cp);
        let towers = self.folder.config.towers.set();
        let is_alone = towers.iter().count() == 1;
        for (_, pool, held) in self.config.pools.encoders(towers) {
            let ranks = pool.layout().tp;
            if is_alone {
                costs.encoder = shared(costs.encoder, ranks);
                continue;
            }
            for tower in held.iter() {
                let own = tower_costs(&self.folder, tower, self.tower(tower)?, rate, is_bf16);
                costs.towers.insert(tower, shared(own, ranks));
            }
        }
        Ok(costs)
    }

    /// Estimates the latency: what the first run's steps took beyond what its work explains is taken for the way of its
    /// messages.
    fn find_latency(&self, args: &PlanArgs, spec: &SimSpec, samples: &dyn Samples, calibration: &mut Calibration) {
        let config = &calibration.config;
        let mut past = spec.clone();
        past.coordinator = CoordinatorSpec {
            steps: spec.coordinator.steps,
            ..in_groups(CoordinatorSpec::new(config, self.folder.shape(), None))
        };
        (past.cluster, past.threads) = (self.cluster(args, config), self.threads(args, config));
        past.drawn_steps = 0;
        let mean = |latency: f64| {
            let costs = Costs { latency, ..calibration.costs.clone() };
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

/// The form of the chart that --gantt draws, by the file's name.
enum Drawing {
    Page,
    Picture,
}

impl Drawing {
    fn of(path: &Path) -> Result<Self, UsageError> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("html") => Ok(Self::Page),
            Some("svg") => Ok(Self::Picture),
            _ => Err(UsageError(format!("--gantt: `{}` must end in .svg or .html", path.display()))),
        }
    }
}

/// Returns whether the actors of a simulated run compute on cores.
fn is_on_cpu(args: &PlanArgs, config: &RunConfig) -> bool {
    settle(config.device).0 == Device::Cpu && args.device.is_none()
}

/// Tensor- and context-parallel ranks do the same at the same time: a replica's are one rank of the simulation, of each
/// pipeline stage.
fn in_groups(mut spec: CoordinatorSpec) -> CoordinatorSpec {
    let plan = &mut spec.plan;
    plan.foundations.iter_mut().for_each(|pool| pool.replica_ranks = 1);
    plan.encoders.iter_mut().for_each(|pool| pool.replica_ranks = 1);
    for (pool, plan) in spec.pools.foundations.iter_mut().zip(&plan.foundations) {
        pool.actors = plan.replicas;
    }
    if plan.colocated {
        let num_foundations = spec.pools.num_foundations();
        plan.encoders.iter_mut().for_each(|pool| pool.replicas = num_foundations);
    }
    for pool in &mut spec.pools.encoders {
        let replicas = plan.encoder_pool(pool.name).map_or(0, |pool| pool.replicas);
        pool.actors = pool.actors.min(replicas);
    }
    spec
}

/// Returns the costs of work that so many ranks share without a loss.
fn shared(costs: RoleCosts, ranks: usize) -> RoleCosts {
    let share = 1.0 / ranks as f64;
    RoleCosts {
        per_square: costs.per_square * share,
        per_token: costs.per_token * share,
        per_step: costs.per_step * share,
        gradient_bytes: costs.gradient_bytes * share,
        ..costs
    }
}

/// A law's samples for a model without an encoder: their pictures become text.
struct TextOnly(Box<dyn Samples>);

impl Samples for TextOnly {
    fn sample(&self, position: u64) -> SampleMeta {
        SampleMeta { items: Vec::new(), ..self.0.sample(position) }
    }
}
