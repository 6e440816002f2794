//! Describes what a run shows and writes while it goes on: progress, metrics, TensorBoard, bad samples, checkpoints.

use crate::compose::{Composition, publication, publisher};
use crate::eval_report::EvalReport;
use crate::evidence::{Evidence, skipped};
use crate::folder::ModelFolder;
use crate::killers;
use crate::memory::{peak_resident, show};
use crate::size::ModelSize;
use loongforge_actors::checkpoint::Publication;
use loongforge_actors::watch::Watch;
use loongforge_actors::{Observer, Publisher};
use loongforge_core::config::{Device, Placement, Precision, RunConfig};
use loongforge_core::data::BadSampleList;
use loongforge_core::message::{ActorId, BadSample, MemoryReport, Role, SampleId, SaveTo, StepId, Timings, Trace};
use loongforge_core::observe::{
    Board, Console, MetricsFile, News, ObserveError, Progress, RunInfo, StepMetrics, TensorBoard, gpu_name, peak_flops,
    read_metrics,
};
use loongforge_core::schedule::{
    CheckpointDraft, EvaluationSummary, FailedSave, Failure, FittedCosts, Killer, MAX_DEATHS, NonFinite, Outcome,
    PoolChange, PoolSizes, StepSummary, Straggler,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bad samples that are shown; the others are only listed in `bad.jsonl`.
const MAX_SHOWN_BAD: u64 = 5;

/// The observer of a run on a user's machine.
pub struct Report {
    console: Console,
    progress: Option<Progress>,
    metrics: Option<MetricsFile>,
    tensorboard: Option<TensorBoard>,
    bad: BadSampleList,
    /// Samples that are longer than a pack.
    too_long: BadSampleList,
    num_shown_bad: u64,
    /// Encoders that were said to be slow.
    slow: BTreeSet<ActorId>,
    last_step: Instant,
    /// Seconds of every step but the first, which waits for the run's beginning.
    step_seconds: Vec<f64>,
    num_steps: usize,
    evaluations: Option<EvalReport>,
    /// The losses of the evaluation before the next step.
    eval_loss: BTreeMap<String, f64>,
    every_steps: u64,
    utilization: Option<Utilization>,
    watch: Option<Watch>,
    /// Holds what a checkpoint holds besides the engines' files.
    publication: Publication,
    max_failures: usize,
    evidence: Evidence,
    dir: PathBuf,
    /// Called when a step was applied, until it succeeds; what it begins is done beside the steps. Dropped after all that
    /// writes into the folder at its end.
    first_step: Option<FirstStep>,
    beside: Option<JoinHandle<()>>,
    /// Tensors of the encoder and the foundation actor that have taken the most.
    memory: [(&'static str, Option<MemoryReport>); 2],
}

/// Something that is due when a run has taken its first step, and after each until it succeeds.
pub type FirstStep = Box<dyn FnMut() -> anyhow::Result<Option<JoinHandle<()>>>>;

impl Report {
    /// `composed` is the whole config, for the manifests; `begin`: the first step that is told of, and the first position of
    /// the data stream whose samples are.
    ///
    /// # Errors
    /// The run's folder cannot be written.
    pub fn new(
        composition: &Composition,
        composed: Value,
        console: Console,
        begin: (StepId, SampleId),
    ) -> anyhow::Result<Self> {
        let (config, folder, StepId(first_step)) = (composition.config(), composition.folder(), begin.0);
        let dir = &config.run.dir;
        let metrics =
            config.log.jsonl.then(|| MetricsFile::open(&dir.join("metrics.jsonl"), first_step)).transpose()?;
        let earlier = match (&metrics, &config.watch.listen) {
            (Some(_), Some(_)) if first_step > 0 => read_metrics(&dir.join("metrics.jsonl"))?,
            _ => Vec::new(),
        };
        let tensorboard =
            config.log.tensorboard.then(|| TensorBoard::create(&dir.join("tensorboard"), first_step)).transpose()?;
        let evaluations = EvalReport::new(config, folder, first_step, &console)?;
        Ok(Self {
            progress: Some(Progress::start(&console, first_step, config.train.num_steps(), config.log.every_steps)),
            watch: watch(config, folder, earlier, first_step, &console),
            console,
            metrics,
            tensorboard,
            bad: BadSampleList::open(&dir.join("bad.jsonl"), begin.1)?,
            too_long: BadSampleList::open(&dir.join("too_long.jsonl"), begin.1)?,
            num_shown_bad: 0,
            slow: BTreeSet::new(),
            last_step: Instant::now(),
            step_seconds: Vec::new(),
            num_steps: 0,
            evaluations,
            eval_loss: BTreeMap::new(),
            every_steps: config.log.every_steps,
            utilization: Utilization::of(config, folder),
            publication: publication(config, composed, folder),
            max_failures: config.checkpoint.max_failures,
            evidence: Evidence::new(dir, config.run.seed),
            dir: dir.clone(),
            first_step: None,
            beside: None,
            memory: [("encoder", None), ("foundation", None)],
        })
    }

    /// Calls this when the first step was applied, or the run is done without one.
    pub fn on_first_step(mut self, first_step: FirstStep) -> Self {
        self.first_step = Some(first_step);
        self
    }

    fn is_under_way(&mut self) {
        let Some(first_step) = &mut self.first_step else { return };
        match first_step() {
            Ok(beside) => (self.first_step, self.beside) = (None, beside),
            Err(error) => self.console.line(&format!("warning: {error:#}; tried again after the next step")),
        }
    }

    fn measure(&mut self, summary: &StepSummary) -> StepMetrics {
        let seconds = self.last_step.elapsed().as_secs_f64();
        self.last_step = Instant::now();
        if self.num_steps > 0 {
            self.step_seconds.push(seconds);
        }
        self.num_steps += 1;
        let [encoder_cost, foundation_cost] = summary.costs.as_ref().map_or([None; 2], FittedCosts::seconds);
        StepMetrics {
            step: summary.step.0,
            loss: summary.loss,
            grad_norm: summary.grad_norm,
            learning_rate: summary.learning_rate,
            tokens: summary.num_tokens as u64,
            images: summary.num_items as u64,
            cached_images: summary.timings.iter().map(|(_, timings)| u64::from(timings.cached_items)).sum(),
            tokens_per_s: summary.num_tokens as f64 / seconds,
            images_per_s: summary.num_items as f64 / seconds,
            step_ms: seconds * 1e3,
            encoder_busy: busy(summary, Role::Encoder),
            foundation_busy: busy(summary, Role::Foundation),
            pack_fill: summary.balance.fill,
            encoder_imbalance: summary.balance.encoder.predicted,
            foundation_imbalance: summary.balance.foundation.predicted,
            encoder_imbalance_measured: summary.balance.encoder.measured,
            foundation_imbalance_measured: summary.balance.foundation.measured,
            encoder_cost,
            foundation_cost,
            mfu: self.utilization.as_ref().map(|utilization| utilization.mfu(summary, seconds)),
            aux_loss: summary.routing.as_ref().and_then(|routing| routing.aux_loss),
            z_loss: summary.routing.as_ref().and_then(|routing| routing.z_loss),
            indexer_loss: summary.routing.as_ref().and_then(|routing| routing.indexer_loss),
            expert_loads: summary.routing.as_ref().map_or(Vec::new(), |routing| routing.loads.clone()),
            encoder_memory: memory(summary, Role::Encoder),
            foundation_memory: memory(summary, Role::Foundation),
            ledger: summary.ledger.to_string(),
            skipped: !summary.applied,
            bad_samples: self.bad.len(),
            eval_loss: std::mem::take(&mut self.eval_loss),
            too_long: self.too_long.len(),
        }
    }

    fn write(&mut self, metrics: &StepMetrics) -> Result<(), ObserveError> {
        if let Some(file) = &mut self.metrics {
            file.write(metrics)?;
        }
        if let Some(tensorboard) = self.tensorboard.as_mut().filter(|_| metrics.step.is_multiple_of(self.every_steps)) {
            tensorboard.step(metrics)?;
        }
        Ok(())
    }

    fn tell(&self, news: impl FnOnce() -> News) {
        if let Some(watch) = &self.watch {
            watch.tell(news());
        }
    }

    fn show_bad(&mut self, sample: &BadSample) {
        self.num_shown_bad += 1;
        if self.num_shown_bad <= MAX_SHOWN_BAD {
            self.console.line(&format!("skipped {}: {}", sample.source, sample.reason));
        } else if self.num_shown_bad == MAX_SHOWN_BAD + 1 {
            self.console.line(&format!("more samples are skipped: see {}", self.bad.path().display()));
        }
    }
}

/// The page of the run; without it the run goes on as well.
fn watch(
    config: &RunConfig,
    folder: &ModelFolder,
    earlier: Vec<StepMetrics>,
    first_step: u64,
    console: &Console,
) -> Option<Watch> {
    let mut pools = PoolSizes::new(config);
    if folder.config.encoder.is_none() {
        pools.encoder = 0;
    }
    let info = RunInfo {
        name: config.run.name.clone(),
        dir: config.run.dir.display().to_string(),
        actors: pools.actors().collect(),
        first_step,
        num_steps: config.train.num_steps(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let board = Board::new(info, config.watch.history, config.watch.trace_steps).with_history(earlier);
    match Watch::start(config.watch.listen.as_ref()?, &config.run.dir, board) {
        Ok(watch) => {
            console.line(&format!("watch: {}", watch.url()));
            Some(watch)
        }
        Err(error) => {
            console.line(&format!("warning: {error}; the run continues without a page"));
            None
        }
    }
}

/// Holds what the model FLOPs utilization is computed from. Only the language model's FLOPs count, so that it is a
/// lower bound where there is an encoder, and recomputation does not.
struct Utilization {
    size: ModelSize,
    /// The peak of all devices together, FLOP/s.
    peak: f64,
}

impl Utilization {
    /// `None` where the device's peak is not known.
    fn of(config: &RunConfig, folder: &ModelFolder) -> Option<Self> {
        let is_bf16 = config.train.precision == Precision::Bf16;
        let known = || match config.device {
            Device::Cpu | Device::Auto => None,
            Device::Cuda(_) => peak_flops(&gpu_name()?, is_bf16),
        };
        let peak = config.log.peak_tflops.map(|tflops| tflops * 1e12).or_else(known)?;
        let pools = &config.pools;
        let num_devices = match (config.device, pools.placement, folder.config.encoder.is_some()) {
            (Device::Cuda(None), Placement::Separate, true) => {
                pools.foundation.layout().ranks() + pools.encoder.layout().ranks()
            }
            (Device::Cuda(None), ..) => pools.foundation.layout().ranks(),
            // One processor or one GPU, whoever shares it.
            _ => 1,
        };
        Some(Self { size: ModelSize::of(&folder.config, &folder.json), peak: peak * num_devices as f64 })
    }

    fn mfu(&self, summary: &StepSummary, seconds: f64) -> f64 {
        // Samples of a pack do not attend to each other.
        let seq_len = summary.num_tokens / summary.num_samples.max(1);
        summary.num_tokens as f64 * self.size.flops_per_token(seq_len) / (seconds * self.peak)
    }
}

impl Report {
    /// Names who has become slow, or is slow no more.
    fn show_slow(&mut self, stragglers: &[Straggler]) {
        for straggler in stragglers.iter().filter(|straggler| !self.slow.contains(&straggler.actor)) {
            let (actor, times) = (straggler.actor, straggler.times_slower);
            let line = format!("slow: takes {times:.1} × as long as the others for its work, and gets less of it");
            self.console.line(&format!("warning: {actor} is {line}"));
            self.tell(|| News::Actor(actor, line));
        }
        let now: BTreeSet<ActorId> = stragglers.iter().map(|straggler| straggler.actor).collect();
        for &actor in self.slow.difference(&now) {
            self.console.line(&format!("{actor} is no longer slow"));
            self.tell(|| News::Actor(actor, String::new()));
        }
        self.slow = now;
    }
}

/// Fewer steps say nothing of the slow ones.
const MIN_STEPS: usize = 20;

/// Returns how long steps took: the median, and what the slowest of twenty took at least.
fn durations(seconds: &mut [f64]) -> Option<String> {
    if seconds.len() < MIN_STEPS {
        return None;
    }
    seconds.sort_by(f64::total_cmp);
    let at = |part: usize| 1e3 * seconds[(seconds.len() * part / 100).min(seconds.len() - 1)];
    Some(format!("median step {:.0} ms, slowest 5 % over {:.0} ms", at(50), at(95)))
}

/// Returns what the tensors of the role's actor took that has taken the most.
fn memory(summary: &StepSummary, role: Role) -> Option<MemoryReport> {
    let of_role = summary.timings.iter().filter(|(actor, _)| actor.role == role).map(|(_, timings)| timings.memory);
    of_role.max_by_key(MemoryReport::total).filter(|memory| memory.total() > 0)
}

/// Share of the time in which the engines of a role computed.
fn busy(summary: &StepSummary, role: Role) -> f64 {
    let of_role = summary.timings.iter().filter(|(actor, _)| actor.role == role);
    let (busy, whole) = of_role.fold((0.0, 0.0), |(busy, whole), (_, timings): &(_, Timings)| {
        (busy + timings.busy, whole + timings.busy + timings.idle)
    });
    if whole > 0.0 { busy / whole } else { 0.0 }
}

impl Observer for Report {
    fn step(&mut self, summary: &StepSummary) {
        if summary.applied {
            self.is_under_way();
        }
        let metrics = self.measure(summary);
        if let Err(error) = self.write(&metrics) {
            // A full disk must not end a run that computes.
            self.console.line(&format!("warning: {error}"));
        }
        if !summary.applied {
            self.console.line(&skipped(summary));
        }
        if let Some(progress) = &mut self.progress {
            progress.step(&metrics);
        }
        self.show_slow(&summary.stragglers);
        for ((_, most), now) in self.memory.iter_mut().zip([metrics.encoder_memory, metrics.foundation_memory]) {
            *most = now.or(*most);
        }
        self.tell(|| News::Step(Box::new(metrics), summary.timings.clone()));
    }

    fn evaluated(&mut self, summary: &EvaluationSummary) {
        let Some(evaluations) = &mut self.evaluations else { return };
        let records = evaluations.evaluated(summary);
        let losses: Vec<_> = records.iter().filter_map(|record| Some((record.set.clone(), record.loss?))).collect();
        for record in &records {
            for (tag, value) in record.scalars() {
                if let Some(Err(error)) = self.tensorboard.as_mut().map(|board| board.scalar(record.step, &tag, value))
                {
                    self.console.line(&format!("warning: {error}"));
                }
            }
        }
        self.eval_loss = losses.iter().cloned().collect();
        self.tell(|| News::Evaluated { step: summary.step.0, losses });
        // The next step is not to count for slow.
        self.last_step = Instant::now();
    }

    fn pool(&mut self, change: &PoolChange) {
        let names = |actors: &[ActorId]| actors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        for &actor in &change.joined {
            self.tell(|| News::Actor(actor, String::new()));
        }
        for (actor, reason) in &change.left {
            self.tell(|| News::Actor(*actor, format!("has left: {reason}")));
            self.console.line(&format!("{actor} has left: {reason}"));
        }
        if !change.joined.is_empty() {
            self.console.line(&format!("{} joined", names(&change.joined)));
        }
        self.console.line(&format!("encoders: {}", names(&change.members)));
    }

    fn bad(&mut self, samples: &[BadSample]) {
        for sample in samples {
            let list = if sample.too_long { &mut self.too_long } else { &mut self.bad };
            let listed = list.append(sample);
            if !sample.too_long {
                self.show_bad(sample);
            } else if self.too_long.len() == 1 {
                let (source, reason, path) = (&sample.source, &sample.reason, self.too_long.path().display());
                self.console.line(&format!("skipped {source}: {reason}; such samples are listed in {path}"));
            }
            if let Err(error) = listed {
                self.console.line(&format!("warning: {error}"));
            }
        }
    }

    fn killed(&mut self, items: &[Killer]) {
        for Killer { item, deaths } in items {
            let (sample, index) = (item.sample, item.index);
            self.console.line(&format!(
                "warning: an encoder died of media item {index} of sample {sample}, or of one beside it: {deaths} of {MAX_DEATHS}"
            ));
        }
        if let Err(error) = killers::append(&self.dir, items) {
            self.console.line(&format!("warning: {error}; a resumed run will not know about it"));
        }
    }

    fn trace(&mut self, actor: ActorId, trace: Trace) {
        self.tell(|| News::Trace(actor, trace));
    }

    fn finished(&mut self, result: &Result<Outcome, Failure>) {
        if matches!(result, Ok(Outcome::Completed)) {
            self.is_under_way();
        }
        self.tell(|| {
            News::Ended(match result {
                Ok(Outcome::Completed) => "done".into(),
                Ok(Outcome::Preempted) => "stopped on request".into(),
                Err(failure) => format!("failed: {failure}"),
            })
        });
    }

    fn publisher(&mut self) -> Publisher {
        publisher(self.publication.clone())
    }

    fn save_failed(&mut self, failed: &FailedSave) {
        let FailedSave { to, error, num_failures, .. } = failed;
        let steps = failed.step.0 + 1;
        match (to, num_failures) {
            (SaveTo::Memory, _) => self.console.line(&format!("warning: no checkpoint in memory: {error}")),
            (_, 0) => self.console.line(&format!("warning: the checkpoint of {steps} steps is started over: {error}")),
            (_, num) => {
                self.console.line(&format!(
                    "ALARM: the checkpoint of {steps} steps could not be written ({num} of {} in a row that end the run): {error}",
                    self.max_failures
                ));
            }
        }
    }

    fn not_finite(&mut self, found: &NonFinite) {
        match self.evidence.write(found) {
            Ok(path) => self.console.line(&format!("evidence: {}", path.display())),
            Err(error) => self.console.line(&format!("warning: the report of this step cannot be written: {error}")),
        }
    }

    fn published(&mut self, draft: &CheckpointDraft, dir: &Path, took: Duration) {
        if draft.to == SaveTo::Memory {
            return;
        }
        self.evaluations.iter_mut().for_each(EvalReport::published);
        self.evidence.published(draft, dir);
        self.tell(|| News::Checkpoint { step: draft.step.0 + 1, took });
        self.console.line(&format!("checkpoint {}", dir.display()));
        if let Some(costs) = &draft.state.costs {
            for (pool, cost) in ["encoder", "foundation"].into_iter().zip(costs.seconds()) {
                let [pair, token, one] = cost.unwrap_or_default().map(|seconds| seconds * 1e9);
                self.console.line(&format!("costs of {pool}, ns: {pair:.4} a pair, {token:.1} a token, {one:.0} each"));
            }
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if let Some(progress) = self.progress.take() {
            progress.finish();
        }
        if let Some(beside) = self.beside.take() {
            let _ = beside.join();
        }
        if let Some(line) = durations(&mut self.step_seconds) {
            self.console.line(&line);
        }
        let memory = self.memory.iter().filter_map(|(name, memory)| Some(format!("{name} {}", show(memory.as_ref()?))));
        let memory: Vec<String> = memory.collect();
        if !memory.is_empty() {
            let resident = peak_resident().map_or(String::new(), |bytes| {
                format!("; this process had {} resident", loongforge_core::observe::bytes(bytes))
            });
            self.console.line(&format!("memory of tensors at most: {}{resident}", memory.join("; ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_steps_are_told_apart_from_the_median() {
        assert_eq!(durations(&mut [1.0; 5]), None);
        let mut seconds = [0.044; 40];
        seconds[3..6].fill(0.31);
        assert_eq!(durations(&mut seconds).unwrap(), "median step 44 ms, slowest 5 % over 310 ms");
    }
}
