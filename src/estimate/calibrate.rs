//! Costs of a machine from runs that it has done: each step's plan is made again, and the times in `metrics.jsonl` are
//! fitted to what it held.

use crate::estimate::flops::ParamCounts;
use crate::model::folder::ModelFolder;
use anyhow::{Context, bail};
use loongforge_core::checkpoint::{Manifest, latest};
use loongforge_core::config::{self, RunConfig};
use loongforge_core::data::{Dataset, InProcess, ProcessorOptions, settle_steps};
use loongforge_core::message::{SampleId, SampleMeta, StepId, Tower};
use loongforge_core::observe::read_metrics;
use loongforge_core::schedule::{Batches, CoordinatorSpec, EncoderPlanSpec, Formed, plan_step};
use loongforge_core::simulate::{Costs, Observation, fit};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// First steps of a run that do not count: memory and caches are cold.
const SKIPPED: u64 = 5;

/// The costs that were fitted to runs.
pub struct Calibration {
    pub costs: Costs,
    /// Lines about how well the costs explain the times, one a pool.
    pub notes: Vec<String>,
    /// Mean step of the first run, without its first steps, in seconds; and its config.
    pub mean_step: f64,
    pub config: RunConfig,
}

/// Says whose costs observations tell: a tower's that has a pool of its own beside other towers, those of all encoders, or the
/// foundation's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Teller {
    Encoders,
    Tower(Tower),
    Foundation,
}

impl Teller {
    fn of(pool: &EncoderPlanSpec, pools: &[EncoderPlanSpec]) -> Self {
        let mut towers = pool.towers.iter();
        match (towers.next(), towers.next()) {
            (Some(tower), None) if pools.len() > 1 => Self::Tower(tower),
            _ => Self::Encoders,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Encoders => "encoder".to_owned(),
            Self::Tower(tower) => format!("{tower} tower"),
            Self::Foundation => "foundation".to_owned(),
        }
    }
}

/// Fits costs to finished runs. Where towers have pools of their own, each gets its own costs.
///
/// # Errors
/// A folder is not of a run with a checkpoint and metrics, or its steps are too few.
pub fn calibrate(runs: &[std::path::PathBuf]) -> anyhow::Result<Calibration> {
    let mut seen: BTreeMap<Teller, Vec<Observation>> = BTreeMap::new();
    let (mut read_seconds, mut num_read) = (0.0, 0);
    let mut first = None;
    for run in runs {
        let mut config = config_of(run)?;
        let metrics = read_metrics(&run.join("metrics.jsonl"))?;
        let folder = ModelFolder::open_settled(&mut config)?;
        let mut stream = Stream::open(&config, &folder)?;
        settle_steps(&mut config, stream.num_samples() as u64)?;
        let coordinator = CoordinatorSpec::new(&config, folder.shape(), None);
        let spec = &coordinator.plan;
        let mut batches = Batches::new(&coordinator);
        let counted: Vec<_> = metrics.iter().filter(|metrics| metrics.step >= SKIPPED).collect();
        let num_replicas = f64::from(spec.foundations.iter().map(|pool| pool.replicas).sum::<u32>());
        let num_stages = stages_of(&config) as f64;
        for step in 0..metrics.last().map_or(0, |metrics| metrics.step + 1) {
            let formed = stream.form(&mut batches)?;
            let Some(metrics) = counted.iter().find(|metrics| metrics.step == step) else { continue };
            let plan = plan_step(spec, StepId(step), formed.batch, formed.cursor)
                .with_context(|| format!("{}: step {step}", run.display()))?;
            if plan.num_tokens() as u64 != metrics.tokens {
                bail!(
                    "{}: step {step} had {} tokens, but has {} when it is planned again: its data or its config has changed, or \
                     it was resumed",
                    run.display(),
                    metrics.tokens,
                    plan.num_tokens()
                );
            }
            let mut observe = |teller: Teller, work: Observation, busy: f64, ranks: f64, stages: f64| {
                let seconds = busy * stages * metrics.step_ms / 1e3;
                seen.entry(teller).or_default().push(Observation { ranks, seconds, ..work });
            };
            for pool in &spec.encoders {
                let units = plan.units.iter().filter(|unit| unit.encoder.pool == pool.pool);
                let busy = metrics.pools.get(&pool.pool).map_or(metrics.encoder_busy, |metrics| metrics.busy);
                let teller = Teller::of(pool, &spec.encoders);
                let is_trained = coordinator.encoder_pool(pool.pool).is_none_or(|rules| rules.trained);
                let work = Observation::of_units(units);
                let work = if is_trained { work } else { work.forward_alone() };
                let replicas = f64::from(pool.replicas);
                observe(teller, work, busy, replicas, replicas);
            }
            let packs = Observation::of_packs(plan.packs.iter());
            observe(Teller::Foundation, packs, metrics.foundation_busy, num_replicas, num_stages);
        }
        (read_seconds, num_read) = (read_seconds + stream.seconds, num_read + stream.num_read);
        if first.is_none() {
            // The median hangs on no hiccup; the mean of steps near it is what a simulation's mean compares with.
            let mut times: Vec<f64> = counted.iter().map(|metrics| metrics.step_ms / 1e3).collect();
            times.sort_by(f64::total_cmp);
            let middle = &times[times.len() / 10..times.len() - times.len() / 10];
            let mean_step = middle.iter().sum::<f64>() / middle.len().max(1) as f64;
            first = Some((config, mean_step));
        }
    }
    let (config, mean_step) = first.context("no run to calibrate from")?;
    let mut costs = Costs::default();
    let mut notes = Vec::new();
    for (teller, observations) in &seen {
        let name = teller.name();
        if observations.iter().all(|seen| seen.batches == 0.0) {
            continue;
        }
        let (fitted, error) = fit(observations).with_context(|| format!("{name}, {} steps", observations.len()))?;
        notes.push(format!("{name}: {} steps, explained within {:.1} %", observations.len(), error * 100.0));
        match *teller {
            Teller::Encoders => costs.encoder = fitted,
            Teller::Tower(tower) => _ = costs.towers.insert(tower, fitted),
            Teller::Foundation => costs.foundation = fitted,
        }
    }
    costs.data.per_sample = read_seconds / f64::from(num_read.max(1));
    notes.push(format!("data: {:.0} samples/s on one thread here", 1.0 / costs.data.per_sample.max(1e-9)));
    Ok(Calibration { costs, notes, mean_step, config })
}

/// Counts the pipeline stages of all foundation replicas: each has its share of a pack's time.
fn stages_of(config: &RunConfig) -> usize {
    config.foundations().iter().map(|(_, pool)| pool.replicas * pool.pipeline_parallel).sum()
}

/// Sizes of gradients are the model's, whoever ran it.
pub fn set_gradients(costs: &mut Costs, encoder: ParamCounts, foundation: ParamCounts) {
    costs.encoder.gradient_bytes = 4.0 * encoder.trained as f64;
    costs.foundation.gradient_bytes = 4.0 * foundation.trained as f64;
}

/// Returns the config that a run's last checkpoint holds.
fn config_of(run: &Path) -> anyhow::Result<RunConfig> {
    let Some(checkpoint) = latest(&run.join("checkpoints"))? else {
        bail!("{}: no run with a checkpoint; --calibrate takes a finished run's folder", run.display());
    };
    let composed = Manifest::read(&checkpoint)?.config;
    match config::load_text(&composed.to_string()) {
        Ok(loaded) => Ok(loaded.config),
        Err(report) => bail!("{}: {report}", checkpoint.display()),
    }
}

/// A run's samples in order, as its data actors measure them.
pub struct Stream {
    dataset: Dataset,
    num_data: u64,
    next: u64,
    /// Spent reading.
    seconds: f64,
    num_read: u32,
}

/// Bad samples in a row after which there is nothing to plan.
const MAX_BAD: u64 = 1000;

impl Stream {
    /// # Errors
    /// The data set cannot be opened.
    pub fn open(config: &RunConfig, folder: &ModelFolder) -> anyhow::Result<Self> {
        let options = ProcessorOptions::of_run(config, &config.data);
        let maker = folder.maker(&options, Arc::new(InProcess))?;
        let dataset = Dataset::open(&config.training_data(), maker, config.run.seed)?;
        let num_data = config.pools.data.replicas as u64;
        Ok(Self { dataset, num_data, next: 0, seconds: 0.0, num_read: 0 })
    }

    /// Returns the number of samples of one epoch.
    pub fn num_samples(&self) -> usize {
        self.dataset.len()
    }

    /// Returns the next good samples.
    ///
    /// # Errors
    /// Nothing but bad samples for long.
    pub fn samples(&mut self, count: usize) -> anyhow::Result<Vec<SampleMeta>> {
        (0..count).map(|_| self.next()).collect()
    }

    /// Returns the next global batch, as a run forms it: of a packed stream its whole window is read first.
    ///
    /// # Errors
    /// Nothing but bad samples for long, or a sample that fits no pack.
    pub fn form(&mut self, batches: &mut Batches) -> anyhow::Result<Formed> {
        loop {
            if let Some(formed) = batches.pop() {
                return Ok(formed);
            }
            let sample = self.next()?;
            batches.push(sample, SampleId(self.next)).map_err(anyhow::Error::msg)?;
        }
    }

    fn next(&mut self) -> anyhow::Result<SampleMeta> {
        for num_bad in 1.. {
            let position = self.next;
            self.next += 1;
            let start = Instant::now();
            let sample = self.dataset.sample(position);
            self.seconds += start.elapsed().as_secs_f64();
            self.num_read += 1;
            match sample {
                Ok(sample) => {
                    let owner = (position % self.num_data) as u32;
                    return Ok(SampleMeta { id: SampleId(position), owner, ..sample.meta });
                }
                Err(bad) if num_bad > MAX_BAD => {
                    let bad = bad.into_message(SampleId(position));
                    bail!("{num_bad} bad samples in a row; the last: {}: {}", bad.source, bad.reason);
                }
                Err(_) => {}
            }
        }
        unreachable!("bad samples end")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_of_all_replicas_share_the_time_of_packs() {
        let text = include_str!("../../configs/sft_text.yaml");
        let mut config = config::load_text(text).unwrap_or_else(|report| panic!("{report}")).config;
        (config.pools.foundation.replicas, config.pools.foundation.pipeline_parallel) = (3, 2);
        assert_eq!(stages_of(&config), 6);
    }
}
