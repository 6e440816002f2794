//! Evaluations that are scored: the packs of held-out samples forward only, by the schedule of a step.

use super::rank::Rank;
use super::step::Step;
use crate::device::upload;
use crate::engine::stages::Stages;
use crate::model::{FoundationTape, MicroBatch, TARGETS, with_values};
use crate::parallel::pipeline::Recorded;
use crate::tape::{Execution, Slot};
use loongforge_core::engine::EngineError;
use loongforge_core::schedule::Task;
use tch::{Kind, Tensor};

/// The slot that tells what is right of a micro-batch.
#[derive(Clone, Copy)]
pub(super) enum Judged {
    /// The tokens that the model predicts at the targets.
    Tokens(Slot),
    /// The measures of pairs of answers.
    Pairs(Slot),
}

impl Judged {
    /// Returns the slot of the tokens that the model predicts.
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

/// Scores the micro-batches of these tasks.
///
/// # Errors
/// A rank of the replica is gone.
pub(super) fn score(rank: &Rank, step: &mut Step, tasks: &[Task]) -> Result<(), EngineError> {
    /// The slots and tokens of a micro-batch that are read after its forward.
    struct Begun {
        slots: Option<(Slot, Option<Judged>)>,
        /// The number of tokens, or samples, that count.
        num_targets: u64,
        /// The counted tokens of a language model.
        labels: Option<Tensor>,
    }
    let (params, device, stages) = (rank.state.params().clone(), rank.device(), &rank.stages);
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
                filler = MicroBatch { evaluates: true, ..MicroBatch::filler(stages.any().columns(), device) };
                (&filler, &[][..], 1)
            }
        };
        let (forward, judged) = record_forward(stages, task.stage, batch, features, row_tokens);
        // A filler has no targets, and ranks that compute the same row count it once.
        let counts = stages.counts_loss() && pack < step.packs.len();
        let slots = forward.loss.map(|loss| (loss, judged)).filter(|_| counts);
        // A policy has tokens, and predicts none of them; of pairs each counts once.
        let labels = batch.columns.find_on_host(TARGETS).filter(|_| matches!(judged, Some(Judged::Tokens(_))));
        let labels = labels.map(|targets| targets.masked_select(&targets.ge(0)));
        // Tokens are of one rank each; of samples that ranks share the first one tells.
        let tells = batch.row.as_ref().is_none_or(|row| row.rank() == 0);
        let of_rows = || batch.samples.iter().filter(|_| tells).map(|sample| u64::from(sample.num_targets)).sum();
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
                Some(run.value(*slot).eq_tensor(&upload(labels, device)).sum(Kind::Int64))
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
