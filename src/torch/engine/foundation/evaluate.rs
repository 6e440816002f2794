//! Evaluations: the packs of held-out samples forward only, scored or continued.

use super::FoundationWorker;
use super::evaluating::Evaluating;
use crate::comm::Started;
use crate::engine::stages::{Filled, Stages};
use crate::model::{Decoding, FoundationTape, MicroBatch, TARGETS, with_values};
use crate::parallel::pipeline::Recorded;
use crate::params::ZeroStage;
use crate::tape::{Execution, Slot};
use loongforge_core::engine::{EngineError, Ports, Progress};
use loongforge_core::message::{Activity, EvaluationReport};
use loongforge_core::schedule::Task;
use std::time::Instant;
use tch::{Kind, Tensor};

/// The slot that tells what is right of a micro-batch.
#[derive(Clone, Copy)]
pub(super) enum Judged {
    /// What the model predicts at the targets.
    Tokens(Slot),
    /// What is measured of pairs of answers.
    Pairs(Slot),
}

impl Judged {
    /// The slot of the tokens that the model predicts.
    pub(super) fn tokens(self) -> Option<Slot> {
        if let Judged::Tokens(slot) = self { Some(slot) } else { None }
    }
}

/// Records a micro-batch that gets no backward. Returns with it what tells which targets are right, where the stage has it.
pub(super) fn record_forward(
    stages: &Stages,
    stage: usize,
    batch: &MicroBatch,
    features: &[Vec<Tensor>],
    row_tokens: usize,
) -> (Recorded, Option<Judged>) {
    let FoundationTape { tape, features: slots, loss, predicted, measures, inbound, outbound, key_values, .. } =
        stages.model(stage).record(batch);
    let inputs = with_values(&slots, features);
    let judged = measures.map(Judged::Pairs).or(predicted.map(Judged::Tokens));
    (Recorded { tape, inputs, inbound, outbound, loss, key_values, row_tokens, dropout: None }, judged)
}

impl FoundationWorker {
    /// Returns what the first step, an evaluation, has come to. Reading it waits for the device.
    pub(in crate::engine) fn take_evaluation(&mut self) -> EvaluationReport {
        let evaluation = self.steps.front_mut().and_then(|step| step.evaluation.as_mut());
        evaluation.map(Evaluating::report).unwrap_or_default()
    }

    /// Scores the micro-batches of these tasks.
    pub(super) fn score(&mut self, tasks: &[Task]) -> Result<(), EngineError> {
        /// Holds what of a micro-batch is read after its forward.
        struct Begun {
            slots: Option<(Slot, Option<Judged>)>,
            /// The number of tokens, or samples, that count.
            num_targets: u64,
            /// The counted tokens of a language model.
            labels: Option<Tensor>,
        }
        let (params, step) = (self.state.params().clone(), &mut self.steps[0]);
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
                    filler = MicroBatch { evaluates: true, ..MicroBatch::filler(self.stages.any().columns(), device) };
                    (&filler, &[][..], 1)
                }
            };
            let (forward, judged) = record_forward(&self.stages, task.stage, batch, features, row_tokens);
            // A filler has no targets, and ranks that compute the same row count it once.
            let counts = self.stages.counts_loss() && pack < step.packs.len();
            let slots = forward.loss.map(|loss| (loss, judged)).filter(|_| counts);
            // A policy has tokens, and predicts none of them; of pairs each counts once.
            let labels = batch.columns.find(TARGETS).filter(|_| matches!(judged, Some(Judged::Tokens(_))));
            let labels = labels.map(|targets| targets.masked_select(&targets.ge(0)));
            let of_rows = || batch.samples.iter().map(|sample| u64::from(sample.num_targets)).sum();
            let num_targets = labels.as_ref().map_or_else(of_rows, |labels| labels.numel() as u64);
            begun.push(Begun { num_targets, labels, slots });
            recorded.push(forward);
        }
        let Some(evaluation) = &mut step.evaluation else { return Ok(()) };
        let begin = |_, tape, inputs| Ok::<_, EngineError>(Execution::forward_only(tape, params.clone(), inputs));
        step.run.forward(&params, recorded, begin, |at, run| {
            let Begun { slots: Some((loss, judged)), num_targets, labels } = &begun[at] else { return };
            evaluation.num_targets += num_targets;
            let correct = match (judged, labels) {
                (Some(Judged::Tokens(slot)), Some(labels)) => {
                    Some(run.value(*slot).eq_tensor(&labels.to_device(device)).sum(Kind::Int64))
                }
                (Some(Judged::Pairs(slot)), _) => Some(run.value(*slot).get(1)),
                _ => None,
            };
            evaluation.is_silent |= correct.is_none();
            let found = [run.value(*loss).copy(), correct.unwrap_or_else(|| Tensor::from(0.0))];
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
        let Some(evaluation) = step.evaluation.as_ref().filter(|evaluation| evaluation.has_left()) else {
            return Ok(Progress::Idle);
        };
        let (id, number, has_pack) = (step.id, evaluation.num_continued, evaluation.num_continued < step.packs.len());
        let filled = if has_pack { self.assemble(number)? } else { None };
        if has_pack && filled.is_none() {
            return Ok(Progress::Idle);
        }
        let start = Instant::now();
        let decoding = Decoding {
            max_new_tokens: max_new_tokens as usize,
            stop_token_ids: self.stop_token_ids.clone(),
            ..Decoding::default()
        };
        self.state.params().set_dropout(None);
        let outputs = match &filled {
            Some(Filled { batch, features }) if self.continues_alone() => {
                self.stages.any().generate(batch, features, &decoding)
            }
            _ => self.continue_together(filled, &decoding)?,
        };
        let outputs = outputs.ok_or("eval.generate: the model does not say which tokens it predicts")?;
        let is_leader = self.stages.mesh.is_leader();
        let step = &mut self.steps[0];
        step.sent.drain(..).try_for_each(Started::wait)?;
        let Some(evaluation) = &mut step.evaluation else { return Ok(Progress::Idle) };
        evaluation.num_continued += 1;
        if let Some(work) = step.packs.get_mut(number) {
            let samples = work.pack.samples.iter().map(|sample| sample.id);
            // One rank tells of a replica.
            evaluation.outputs.extend(samples.zip(outputs).filter(|_| is_leader));
            work.forget();
        }
        ports.trace.span(Activity::Forward, Some((id, Some(number as u32))), start);
        Ok(Progress::Busy)
    }

    /// Returns whether this rank reads the tokens of a continuation without others.
    pub(super) fn continues_alone(&self) -> bool {
        let (mesh, sharding) = (&self.stages.mesh, self.state.params().sharding());
        let gathers = sharding.shared == ZeroStage::Parameters && sharding.world > 1;
        mesh.replica.world() == 1 && mesh.ep.world() == 1 && self.stages.pipeline.stages() == 1 && !gathers
    }
}
