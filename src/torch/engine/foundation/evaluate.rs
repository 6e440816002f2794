//! Evaluations: the packs of held-out samples forward only, scored, or continued where this rank has the whole model.

use super::FoundationPart;
use crate::model::{Decoding, FoundationTape, MicroBatch};
use crate::parallel::pipeline::Recorded;
use crate::tape::{Execution, Slot};
use loongforge_core::engine::{EngineError, Ports, Progress};
use loongforge_core::message::{Activity, EvaluationReport, Purpose, SampleId};
use loongforge_core::schedule::Task;
use std::time::Instant;
use tch::Tensor;

/// Holds what an evaluation has come to on this rank.
pub(super) struct Evaluating {
    purpose: Purpose,
    /// Sum of the cross-entropies and number of predicted targets, on the device, and whether the model says the latter.
    scores: Option<[Tensor; 2]>,
    is_silent: bool,
    num_targets: u64,
    outputs: Vec<(SampleId, Vec<i64>)>,
    /// Packs that were continued.
    num_continued: usize,
}

impl Evaluating {
    pub fn of(purpose: Purpose) -> Option<Self> {
        let (scores, outputs) = (None, Vec::new());
        let new = Self { purpose, scores, is_silent: false, num_targets: 0, outputs, num_continued: 0 };
        purpose.is_evaluation().then_some(new)
    }

    /// The most tokens of a continuation, where packs are continued.
    pub fn generates(&self) -> Option<u32> {
        match self.purpose {
            Purpose::Generate { max_new_tokens } => Some(max_new_tokens),
            Purpose::Train | Purpose::Score => None,
        }
    }

    /// Returns whether some of so many packs are still to be continued.
    pub fn has_left(&self, num_packs: usize) -> bool {
        self.generates().is_some() && self.num_continued < num_packs
    }

    fn report(&mut self) -> EvaluationReport {
        let [loss_sum, correct] = self.scores.take().map_or([0.0; 2], |scores| scores.map(|sum| sum.double_value(&[])));
        EvaluationReport {
            loss_sum,
            num_targets: self.num_targets,
            num_correct: (!self.is_silent).then_some(correct as u64),
            outputs: std::mem::take(&mut self.outputs),
        }
    }
}

impl FoundationPart {
    /// Returns what the first step, an evaluation, has come to. Reading it waits for the device.
    pub(in crate::engine) fn take_evaluation(&mut self) -> EvaluationReport {
        let evaluation = self.steps.front_mut().and_then(|step| step.evaluation.as_mut());
        evaluation.map(Evaluating::report).unwrap_or_default()
    }

    /// Scores the micro-batches of these tasks.
    pub(super) fn score(&mut self, tasks: &[Task]) -> Result<(), EngineError> {
        /// Holds what of a micro-batch is read after its forward.
        struct Begun {
            slots: Option<(Slot, Option<Slot>)>,
            num_targets: u64,
        }
        let (params, step) = (self.pool.params().clone(), &mut self.steps[0]);
        let device = params.flat().device();
        let (mut recorded, mut begun) = (Vec::new(), Vec::new());
        for task in tasks {
            let (pack, chunk) = step.micro_batches[task.micro_batch];
            let filler;
            let (batch, features, row_tokens) = match step.packs.get(pack) {
                Some(work) => {
                    let filled = &work.chunks[chunk].filled;
                    (&filled.batch, &filled.features[..], work.pack.num_tokens())
                }
                None => {
                    filler = MicroBatch { evaluates: true, ..MicroBatch::filler(device) };
                    (&filler, &[][..], 1)
                }
            };
            let FoundationTape { tape, features: slots, loss, correct, inbound, outbound, key_values, .. } =
                self.stages.model(task.stage).record(batch);
            let inputs = slots.iter().zip(features).map(|(slot, value)| (*slot, value.shallow_clone())).collect();
            // A filler has no targets, and ranks that compute the same row count it once.
            let counts = self.stages.counts_loss() && pack < step.packs.len();
            let slots = loss.map(|loss| (loss, correct)).filter(|_| counts);
            let count = || batch.targets().iter().filter(|target| **target >= 0).count() as u64;
            begun.push(Begun { num_targets: if slots.is_some() { count() } else { 0 }, slots });
            let dropout = None;
            recorded.push(Recorded { tape, inputs, inbound, outbound, loss, key_values, row_tokens, dropout });
        }
        let Some(evaluation) = &mut step.evaluation else { return Ok(()) };
        let begin = |_, tape, inputs| Ok::<_, EngineError>(Execution::forward_only(tape, params.clone(), inputs));
        step.run.forward(&params, recorded, begin, |at, run| {
            let Begun { slots: Some((loss, correct)), num_targets } = begun[at] else { return };
            evaluation.num_targets += num_targets;
            evaluation.is_silent |= correct.is_none();
            let found = [Some(loss), correct].map(|slot| slot.map_or(Tensor::from(0.0), |slot| run.value(slot).copy()));
            evaluation.scores = Some(match evaluation.scores.take() {
                None => found,
                Some(sums) => {
                    let [loss, correct] = sums;
                    [loss + &found[0], correct + &found[1]]
                }
            });
        })?;
        // A rank of several stages reads a pack more than once.
        for (pack, work) in step.packs.iter_mut().enumerate() {
            if !step.run.left().iter().any(|task| step.micro_batches[task.micro_batch].0 == pack) {
                work.forget();
            }
        }
        Ok(())
    }

    /// Continues the prompts of the next pack, if what it needs is here.
    pub(super) fn generate_next(&mut self, max_new_tokens: u32, ports: &mut Ports) -> Result<Progress, EngineError> {
        let step = &self.steps[0];
        let (id, number) = (step.id, step.evaluation.as_ref().map_or(0, |evaluation| evaluation.num_continued));
        if number == step.packs.len() {
            return Ok(Progress::Idle);
        }
        let Some(filled) = self.assemble(number)? else { return Ok(Progress::Idle) };
        let start = Instant::now();
        let decoding = Decoding {
            max_new_tokens: max_new_tokens as usize,
            stop_token_ids: self.stop_token_ids.clone(),
            sampling: None,
        };
        self.pool.params().set_dropout(None);
        let is_whole = self.stages.mesh.replica.world() == 1 && self.stages.mesh.ep.world() == 1;
        let model = is_whole.then(|| self.stages.any());
        let outputs = model.and_then(|model| model.generate(&filled.batch, &filled.features, &decoding));
        let outputs = outputs.ok_or("eval.generate: this rank does not have a whole model that can generate")?;
        let step = &mut self.steps[0];
        let work = &mut step.packs[number];
        let samples = work.pack.samples.iter().map(|sample| sample.id);
        if let Some(evaluation) = &mut step.evaluation {
            evaluation.outputs.extend(samples.zip(outputs));
            evaluation.num_continued += 1;
        }
        work.forget();
        ports.trace.span(Activity::Forward, Some((id, Some(number as u32))), start);
        Ok(Progress::Busy)
    }
}
