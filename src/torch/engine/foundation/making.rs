//! Evaluations that make pictures and clips of prompts: a pack at a time, from noise to latents, which are then decoded. Ranks that
//! share a replica all know the latents of a pack, and each computes its part of the velocity.

use super::rank::Rank;
use crate::engine::stages::{Filled, Stages};
use crate::model::{FoundationModel, MakeSettings, MicroBatch, Noised, SampleRow, Underway, VelocityTape, with_values};
use crate::parallel::pipeline::{PipelineRun, Recorded};
use crate::tape::Execution;
use crate::train::TrainState;
use crate::train::hf::{TensorFile, write_tensor_file};
use loongforge_core::engine::EngineError;
use loongforge_core::message::{Replica, SampleId, StepId};
use loongforge_core::observe::ObserveError;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

const NO_LATENTS: &str = "sample: the model makes no latents";

/// The file of a sample that the transformer of high noise leaves to that of low noise, in an existing folder that the actors of
/// both see.
pub type HandOver = Arc<dyn Fn(StepId, SampleId) -> Result<PathBuf, ObserveError> + Send + Sync>;

/// Says how samples are made of prompts, and what becomes of them.
pub struct SampleMaking {
    pub settings: MakeSettings,
    pub part: SamplePart,
    /// The transformer that this pool does not train, where a run trains one of two.
    pub other: Option<UntrainedPart>,
    /// Decodes the latents `[tokens, width]` of a sample that was made before a step, and writes what they show. Returns the
    /// name of the file in the run's folder.
    pub finish: Finish,
}

/// The steps of a sample that the actors of a pool take.
pub enum SamplePart {
    Whole,
    /// The steps from a noise level on; then the sample goes into a file.
    High(f64, HandOver),
    /// The steps below a noise level; the sample comes out of that file.
    Low(f64, HandOver),
}

/// This rank's part of a transformer that is not trained: it takes the steps of samples that the trained one does not.
pub struct UntrainedPart {
    rank: Rank,
    boundary: f64,
    is_high: bool,
}

impl UntrainedPart {
    /// Takes the steps from the noise level `boundary` on with `is_high`, else those below it. `stages` are on the same ranks as those
    /// of the transformer that is trained.
    pub fn new(replica: Replica, stages: Stages, state: TrainState, boundary: f64, is_high: bool) -> Self {
        Self { rank: Rank { replica, stages, state }, boundary, is_high }
    }
}

impl SampleMaking {
    /// Returns the first part of samples, of which there is nothing to see.
    pub fn high_noise(settings: MakeSettings, boundary: f64, hand_over: HandOver) -> Self {
        let finish =
            |_: StepId, _: &SampleRow, _: &Tensor| Err("the high-noise transformer does not finish samples".into());
        Self { settings, part: SamplePart::High(boundary, hand_over), other: None, finish: Box::new(finish) }
    }

    /// Returns the transformers that predict in the steps that are taken here, in the order of these steps, each with its noise levels.
    fn turns<'a>(&'a self, own: &'a Rank) -> Vec<(&'a Rank, Range<f64>)> {
        match (&self.part, &self.other) {
            (SamplePart::High(boundary, _), _) => vec![(own, *boundary..f64::INFINITY)],
            (SamplePart::Low(boundary, _), _) => vec![(own, 0.0..*boundary)],
            (SamplePart::Whole, None) => vec![(own, 0.0..f64::INFINITY)],
            (SamplePart::Whole, Some(UntrainedPart { rank, boundary, is_high })) => {
                let [high, low] = if *is_high { [rank, own] } else { [own, rank] };
                vec![(high, *boundary..f64::INFINITY), (low, 0.0..*boundary)]
            }
        }
    }

    /// Makes the samples of a pack, whose tokens and features are `filled`, on every rank of the replica, and returns the names of files
    /// that show them; the first rank writes these. Without a pack, this rank takes part in the collectives of the replicas that make
    /// theirs.
    ///
    /// # Errors
    /// The model makes no latents, a file cannot be read or written, or a rank of the replica is gone.
    pub(super) fn make(
        &self,
        step: StepId,
        filled: Option<Filled>,
        rank: &Rank,
    ) -> Result<Vec<(SampleId, String)>, EngineError> {
        let _no_grad = tch::no_grad_guard();
        let (stages, device) = (&rank.stages, rank.device());
        let width = self.settings.width(stages.any()).ok_or(NO_LATENTS)?;
        let mut made = None;
        if let Some(filled) = filled {
            let mut chunks = stages.chunks(filled, rank.state.params())?;
            let filled = chunks.pop().filter(|_| chunks.is_empty()).ok_or("sample: samples need whole rows")?;
            let samples = self.begin(step, &filled.batch.samples, width, device)?;
            // Nobody removes what another rank has yet to read.
            stages.mesh.replica.barrier()?;
            made = Some((samples, filled));
        }
        for (rank, levels) in self.turns(rank) {
            self.advance(rank, &levels, width, made.as_mut())?;
        }
        match made {
            Some((samples, filled)) if stages.mesh.is_leader() => self.end(step, samples, stages.any(), &filled),
            _ => Ok(Vec::new()),
        }
    }

    /// Takes the steps of a pack's samples within `levels`, in which the transformer of `rank` predicts; without a pack, this rank takes
    /// part in the collectives of the replicas that have one.
    fn advance(
        &self,
        rank: &Rank,
        levels: &Range<f64>,
        width: i64,
        pack: Option<&mut (Vec<Underway>, Filled)>,
    ) -> Result<(), EngineError> {
        let device = rank.device();
        // Replicas that meet within a forward take as many each.
        let meets_replicas = rank.is_in_step() && !rank.continues_alone();
        let mut left = if meets_replicas { self.settings.max_forwards(levels) } else { 0 };
        if let Some((samples, filled)) = pack {
            let velocity = |at: &Noised| {
                left = left.saturating_sub(1);
                velocity_together(rank, filled, at)
            };
            self.settings.advance(samples, levels, device, velocity)?;
        }
        if left > 0 {
            let batch = MicroBatch { evaluates: true, ..MicroBatch::filler(rank.stages.any().columns(), device) };
            let filler = Filled { batch, features: Vec::new() };
            let latents = Tensor::zeros([1, width], (Kind::Float, device));
            let at = Noised { latents, sigma: vec![1.0], prompt: 0 };
            (0..left).try_for_each(|_| velocity_together(rank, &filler, &at).map(drop))?;
        }
        Ok(())
    }

    /// Returns the samples of a pack before their first step here.
    fn begin(
        &self,
        step: StepId,
        rows: &[SampleRow],
        width: i64,
        device: Device,
    ) -> Result<Vec<Underway>, EngineError> {
        let SamplePart::Low(_, hand_over) = &self.part else {
            return Ok(self.settings.begin(rows, rows.iter().map(|row| self.settings.noise(row, width)).collect()));
        };
        let take_over = |row: &SampleRow| {
            let file = TensorFile::open(&hand_over(step, row.id)?)?;
            let mut tensors = BTreeMap::new();
            for name in file.tensors().keys() {
                tensors.extend(file.read(name)?.map(|tensor| (name.as_str(), tensor.to_device(device))));
            }
            let resumed = self.settings.resume(row, &|name| tensors.get(name).map(Tensor::shallow_clone));
            resumed.map_err(|name| format!("{} lacks {name}", file.path().display()).into())
        };
        rows.iter().map(take_over).collect()
    }

    /// Writes what is made, or hands it over; returns the names of files that show it.
    fn end(
        &self,
        step: StepId,
        samples: Vec<Underway>,
        model: &dyn FoundationModel,
        Filled { batch, features }: &Filled,
    ) -> Result<Vec<(SampleId, String)>, EngineError> {
        if let SamplePart::High(_, hand_over) = &self.part {
            for (row, sample) in batch.samples.iter().zip(&samples) {
                let path = hand_over(step, row.id)?;
                let (folder, name) = (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default());
                write_tensor_file(&sample.tensors(), &[], folder, &name.to_string_lossy())?;
            }
            return Ok(Vec::new());
        }
        let made = self.settings.finish(samples, model, batch, features);
        let finish = |(row, latents): (&SampleRow, Tensor)| {
            let name = (self.finish)(step, row, &latents)?;
            if let SamplePart::Low(_, hand_over) = &self.part {
                std::fs::remove_file(hand_over(step, row.id)?)?;
            }
            Ok((row.id, name))
        };
        batch.samples.iter().zip(made).map(finish).collect()
    }
}

/// Returns the velocity `[T, P]` that the model tells of a pack's latents, on every rank of the replica.
fn velocity_together(rank: &Rank, filled: &Filled, at: &Noised) -> Result<Tensor, EngineError> {
    let (params, stages) = (rank.state.params(), &rank.stages);
    let Filled { batch, features } = filled;
    let row_tokens = batch.num_tokens() as usize;
    let mut run = PipelineRun::new(stages.mesh.clone(), stages.pipeline, &[1]).forward_only();
    let mut told = None;
    while let Some(task) = run.next() {
        let recorded = stages.model(task.stage).record_velocity(batch, at).ok_or(NO_LATENTS)?;
        let VelocityTape { tape, features: slots, inbound, outbound, velocity, own } = recorded;
        let (inputs, key_values) = (with_values(&slots, features), Vec::new());
        let recorded = Recorded { tape, inputs, inbound, outbound, loss: None, key_values, row_tokens, dropout: None };
        let begin = |_, tape, inputs| Ok::<_, EngineError>(Execution::forward_only(tape, params.clone(), inputs));
        let mut value = None;
        run.forward(params, vec![recorded], begin, |_, run| value = velocity.map(|slot| run.value(slot).copy()))?;
        told = value.map(|value| (value, own)).or(told);
    }
    run.finish()?;
    let replica = &stages.mesh.replica;
    if replica.world() == 1 {
        return Ok(told.expect("one rank has the last stage").0);
    }
    // The sum of what ranks have, each its own tokens.
    let mut sum = at.latents.zeros_like();
    if let Some((velocity, own)) = told.filter(|_| stages.counts_loss()) {
        let velocity = velocity.to_kind(sum.kind());
        match own {
            None => sum.copy_(&velocity),
            Some(own) => drop(sum.index_copy_(0, &Tensor::from_slice(&own).to_device(sum.device()), &velocity)),
        }
    }
    replica.all_reduce_sum(&sum)?;
    // As exact as where one rank has the model.
    Ok(sum.to_kind(params.flat().kind()))
}

/// The type of [`SampleMaking::finish`], whose tensor is `[tokens, width]`.
pub type Finish = Box<dyn Fn(StepId, &SampleRow, &Tensor) -> Result<String, EngineError>>;
