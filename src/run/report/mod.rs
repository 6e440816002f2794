//! The reports of a run while it goes on: progress, metrics, TensorBoard, bad samples, checkpoints.

mod events;
mod made;
mod measure;
mod page;
mod skipped_samples;
mod step_times;
mod utilization;

use crate::estimate::memory::{peak_resident, show};
use crate::eval::report::{EVAL, EvalReport};
use crate::eval::samples;
use crate::run::compose::{Composition, publication};
use crate::run::nonfinite::Evidence;
use loongforge_actors::checkpoint::{Publication, Uploader};
use loongforge_actors::watch::{Watch, resident_bytes};
use loongforge_core::checkpoint::latest;
use loongforge_core::config::RunConfig;
use loongforge_core::data::Dataset;
use loongforge_core::message::{ActorId, MemoryReport, SampleId, StepId};
use loongforge_core::observe::{
    Console, EvalRecord, Goodput, MetricsFile, News, ObserveError, Progress, StepMetrics, TensorBoard, TrackedRun,
    Trackers, active_before, read_evaluations, read_metrics,
};
use page::watch;
use serde_json::Value;
use skipped_samples::SkippedSamples;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use step_times::StepTimes;
use utilization::Utilization;

/// The observer of a run on a user's machine.
pub struct Report {
    console: Console,
    progress: Option<Progress>,
    metrics: Option<MetricsFile>,
    tensorboard: Option<TensorBoard>,
    trackers: Trackers,
    skipped: SkippedSamples,
    /// Encoders that were said to be slow.
    slow: BTreeSet<ActorId>,
    times: StepTimes,
    goodput: Goodput,
    evaluations: Option<EvalReport>,
    /// The prompts that pictures and clips are made of.
    prompts: Option<Dataset>,
    /// The losses of the evaluation before the next step.
    eval_loss: BTreeMap<String, f64>,
    every_steps: u64,
    utilization: Option<Utilization>,
    watch: Option<Watch>,
    /// The files of a checkpoint besides the engines' files.
    publication: Publication,
    /// Copies checkpoints into an object store.
    uploader: Option<Uploader>,
    max_failures: usize,
    /// True once a message has said that steps wait for checkpoints.
    is_slowed: bool,
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
    /// `composed` is the whole config, for the manifests; `begin`: the first step that is told of, the first position of the data stream
    /// whose samples are, and the positions before it whose samples are too.
    ///
    /// # Errors
    /// The run's folder cannot be written.
    pub fn new(
        composition: &Composition,
        composed: Value,
        console: Console,
        begin: (StepId, SampleId, Vec<SampleId>),
    ) -> anyhow::Result<Self> {
        let (config, folder, StepId(first_step)) = (composition.config(), composition.folder(), begin.0);
        let dir = &config.run.dir;
        let path = dir.join("metrics.jsonl");
        let active_before = if config.log.jsonl { active_before(&path) } else { 0.0 };
        let metrics = config.log.jsonl.then(|| MetricsFile::open(&path, first_step)).transpose()?;
        let earlier = if metrics.is_some() && first_step > 0 { read_metrics(&path)? } else { Vec::new() };
        let run = TrackedRun { name: &config.run.name, dir, config: &composed, version: env!("CARGO_PKG_VERSION") };
        let trackers = Trackers::open(&config.log, &run, first_step)?;
        let mut earlier_evaluations = if first_step > 0 { read_evaluations(&dir.join(EVAL))? } else { Vec::new() };
        earlier_evaluations.retain(|record| record.step <= first_step);
        let tensorboard = open_tensorboard(config, first_step, &earlier_evaluations)?;
        let evaluations = EvalReport::new(config, folder, first_step, &console)?;
        let progress = Progress::start(&console, first_step, config.train.num_steps(), config.log.every_steps);
        Ok(Self {
            progress: Some(progress.in_epochs(composition.epochs().map(|epochs| epochs.per_step()))),
            goodput: Goodput::of(&earlier),
            watch: watch(config, folder, earlier, &earlier_evaluations, first_step, &console),
            console,
            metrics,
            tensorboard,
            trackers,
            skipped: SkippedSamples::open(dir, begin.1, &begin.2)?,
            slow: BTreeSet::new(),
            times: StepTimes::new(active_before),
            evaluations,
            prompts: samples::prompts(config, folder, None)?,
            eval_loss: BTreeMap::new(),
            every_steps: config.log.every_steps,
            utilization: Utilization::of(config, folder),
            publication: publication(config, composed, folder)?,
            uploader: None,
            max_failures: config.checkpoint.max_failures,
            is_slowed: false,
            evidence: Evidence::new(dir, config.run.seed).resumed(newest_checkpoint(composition, first_step)),
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

    /// Takes it that all actors are on this host, which bounds the devices that they have.
    pub fn on_this_host(mut self) -> Self {
        self.utilization = self.utilization.take().map(Utilization::on_this_host);
        self
    }

    /// Has every published checkpoint copied.
    pub fn uploading(mut self, uploader: Option<Uploader>) -> Self {
        self.uploader = uploader;
        self
    }

    fn is_under_way(&mut self) {
        let Some(first_step) = &mut self.first_step else { return };
        match first_step() {
            Ok(beside) => (self.first_step, self.beside) = (None, beside),
            Err(error) => self.console.line(&format!("warning: {error:#}; this is tried again after the next step")),
        }
    }

    /// Writes the metrics to each of the files and trackers, whatever becomes of the others, and returns the errors of those that could
    /// not be written to.
    fn write(&mut self, metrics: &StepMetrics) -> impl Iterator<Item = ObserveError> + use<> {
        let board = self.tensorboard.as_mut().filter(|_| metrics.step.is_multiple_of(self.every_steps));
        let written = [
            self.metrics.as_mut().map_or(Ok(()), |file| file.write(metrics)),
            board.map_or(Ok(()), |board| board.step(metrics)),
            self.trackers.step(metrics, resident_bytes),
        ];
        written.into_iter().filter_map(Result::err)
    }

    fn tell(&self, news: impl FnOnce() -> News) {
        if let Some(watch) = &self.watch {
            watch.tell(news());
        }
    }
}

/// Returns the newest checkpoint on the disk of a run that goes on at `first_step`; `None` of one that begins.
fn newest_checkpoint(composition: &Composition, first_step: u64) -> Option<PathBuf> {
    let from = composition.resumed_from_disk().map(|resume| resume.checkpoint.clone());
    newest_after(from, first_step, &composition.config().checkpoint.dir)
}

/// Returns the checkpoint that the run was resumed from, or else the newest in `dir` of one that has taken steps: it goes on from memory,
/// or its scheduler has taken the place of one that died.
fn newest_after(resumed_from: Option<PathBuf>, first_step: u64, dir: &Path) -> Option<PathBuf> {
    resumed_from.or_else(|| latest(dir).ok().flatten().filter(|_| first_step > 0))
}

/// Begins another file for TensorBoard, if it is wanted. TensorBoard then hides the values of earlier files from `first_step` on, and the
/// evaluations before that step, which are not made again: they are written once more.
fn open_tensorboard(
    config: &RunConfig,
    first_step: u64,
    evaluations: &[EvalRecord],
) -> Result<Option<TensorBoard>, ObserveError> {
    if !config.log.tensorboard {
        return Ok(None);
    }
    let mut board = TensorBoard::create(&config.run.dir.join("tensorboard"), first_step)?;
    for record in evaluations.iter().filter(|record| record.step == first_step) {
        record.scalars().iter().try_for_each(|(tag, value)| board.scalar(first_step, tag, *value))?;
    }
    Ok(Some(board))
}

impl Drop for Report {
    fn drop(&mut self) {
        if let Some(progress) = self.progress.take() {
            progress.finish();
        }
        if let Some(beside) = self.beside.take() {
            let _ = beside.join();
        }
        let goodput = self.goodput.text();
        for line in self.times.text().into_iter().chain(goodput) {
            self.console.line(&line);
        }
        let memory = self.memory.iter().filter_map(|(name, memory)| Some(format!("{name} {}", show(memory.as_ref()?))));
        let memory: Vec<String> = memory.collect();
        if !memory.is_empty() {
            let resident = peak_resident().map_or(String::new(), |bytes| {
                format!("; resident memory of this process {}", loongforge_core::observe::bytes(bytes))
            });
            self.console.line(&format!("peak tensor memory: {}{resident}", memory.join("; ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::config::load_text;

    const YAML: &str = include_str!("../../../configs/sft_text.yaml");

    #[test]
    fn evaluations_before_the_first_step_of_a_resumed_run_stay_in_tensorboard() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = load_text(YAML).unwrap_or_else(|report| panic!("{report}")).config;
        config.run.dir = dir.path().to_owned();
        config.log.tensorboard = true;
        let record =
            |step, set: &str| EvalRecord { step, set: set.to_owned(), ..EvalRecord::default() }.with_loss(2.0, 4);
        open_tensorboard(&config, 8, &[record(4, "earlier"), record(8, "val")]).unwrap().unwrap();
        let file = std::fs::read_dir(dir.path().join("tensorboard")).unwrap().next().unwrap().unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        let has = |part: &[u8]| bytes.windows(part.len()).any(|found| found == part);
        assert!(has(b"eval/val/loss") && !has(b"eval/earlier/loss"));
        config.log.tensorboard = false;
        assert!(open_tensorboard(&config, 8, &[]).unwrap().is_none());
    }

    #[test]
    fn a_run_that_goes_on_has_a_checkpoint_whoever_knows_where_it_began() {
        let dir = tempfile::tempdir().unwrap();
        let [own, other] = ["checkpoints/step-00000004", "other/step-00000002"].map(|name| dir.path().join(name));
        let checkpoints = dir.path().join("checkpoints");
        let newest = |from: Option<&PathBuf>, first_step| newest_after(from.cloned(), first_step, &checkpoints);
        assert_eq!(newest(None, 6), None, "it has saved none");
        std::fs::create_dir_all(&own).unwrap();
        assert_eq!(newest(None, 6).as_ref(), Some(&own));
        assert_eq!(newest(Some(&other), 2).as_ref(), Some(&other));
        assert_eq!(newest(None, 0), None, "it begins");
    }
}
