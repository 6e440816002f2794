//! The ends of a decoder's tape: hidden states, the boundary to the next stage, scores or a loss. Each takes a tape whose `hidden` is
//! the residual stream behind the last layer of the stage.

use std::rc::Rc;

use tch::Tensor;

use super::batch::{Targets, TextBatch, TextTape};
use super::recording::{Recording, Wanted};
use super::router_losses::carry_scalar;
use super::rows::{counted, index};
use super::stage::{Carried, Crossing};
use super::transformer::{Decoder, Last};
use crate::model::objective::{Answers, CrossEntropy};
use crate::model::routing::{RouterLosses, Routing};
use crate::nn::Context;
use crate::tape::{Policy, Slot, Tape};

impl Decoder {
    /// Ends at the hidden states behind the last norm.
    pub(super) fn end_at_states(&self, mut made: TextTape, recording: Recording) -> TextTape {
        let Last { norm, norm_ids, .. } = self.last();
        let norm = norm.clone();
        let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
        let hidden = made.tape.run("norm", norm_ids, recording.policy, &[made.hidden], 1, forward)[0];
        made.hidden = recording.enter_region(&mut made.tape, hidden);
        made.routing = recording.finish();
        made
    }

    /// Ends at what the next stage takes: `crossing` tells its shapes.
    pub(super) fn end_at_boundary(
        &self,
        mut made: TextTape,
        carried: Carried,
        crossing: &Crossing,
        mut recording: Recording,
    ) -> TextTape {
        let tape = &mut made.tape;
        made.mixer_losses = recording.mixer_losses.take().unwrap_or_default();
        let mut slots = vec![made.hidden];
        slots.extend(carried.deep.into_iter().flatten());
        if let Some(experts) = self.config.num_experts() {
            let sums = recording.carry(tape, carried.routers, experts, self.device);
            slots.extend(sums.choices.into_iter().flatten().chain(sums.z));
        }
        if self.config.has_mixer_losses() {
            let sums: Vec<Slot> = carried.mixers.into_iter().chain(made.mixer_losses.iter().copied()).collect();
            slots.push(carry_scalar(tape, "mixer losses", &sums, self.device));
        }
        slots.iter().for_each(|slot| tape.keep(*slot));
        made.outbound = crossing.boundaries(&self.config, &slots);
        made.routing = recording.finish();
        made
    }

    /// Ends at what an evaluation measures.
    pub(super) fn end_at_scores(&self, mut made: TextTape, targets: &Targets, recording: Recording) -> TextTape {
        match &targets.answers {
            Some(answers) => {
                self.record_answers(&mut made, answers, targets, &recording);
            }
            None => {
                let (hidden, labels) = self.record_counted(&mut made.tape, made.hidden, targets, &recording);
                let [loss, predicted] = self.cross_entropy().record_scores(&mut made.tape, hidden, &labels);
                (made.hidden, made.loss, made.predicted) = (hidden, Some(loss), Some(predicted));
            }
        }
        made.routing = recording.finish();
        made
    }

    /// Ends at the loss of a step: that of the targets, with those of prediction heads, routers and mixers.
    pub(super) fn end_at_loss(
        &self,
        mut made: TextTape,
        batch: &TextBatch,
        targets: &Targets,
        carried: Carried,
        contexts: &[Rc<Context>],
        mut recording: Recording,
    ) -> TextTape {
        let x = made.hidden;
        // Those of the layers; prediction heads leave theirs in the new list.
        let of_layers = recording.mixer_losses.replace(Vec::new()).unwrap_or_default();
        let loss = match &targets.answers {
            Some(answers) => self.record_answers(&mut made, answers, targets, &recording),
            None => {
                let (hidden, loss) = self.record_loss(&mut made.tape, x, targets, &recording);
                made.hidden = hidden;
                loss
            }
        };
        let tape = &mut made.tape;
        let num_tokens =
            batch.row.as_ref().map_or(batch.input_ids.numel() as i64, |row| row.split().num_tokens() as i64);
        let share = targets.share();
        // Of the layers' routers; those of prediction heads are not balanced.
        let num_layers = self.config.num_routed_layers();
        let losses = recording.record_losses(tape, carried.routers, num_layers, num_tokens, share);
        recording.wanted = Wanted::default();
        let heads = self.record_mtp(tape, x, batch, targets, contexts, &mut recording);
        let mut others: Vec<(Slot, f64)> = losses.weighted(&self.config.balance).collect();
        if recording.parallel.tp > 1 {
            // All ranks compute these alike, in regions.
            others.iter_mut().for_each(|(slot, _)| *slot = tape.count_once(*slot));
        }
        made.mixer_losses = of_layers;
        made.mixer_losses.extend(recording.mixer_losses.take().unwrap_or_default());
        let sums: Vec<Slot> = carried.mixers.into_iter().chain(made.mixer_losses.iter().copied()).collect();
        let indexers = (!sums.is_empty()).then(|| {
            let sum = carry_scalar(tape, "mixer losses", &sums, self.device);
            tape.keep(sum);
            (sum, share / num_tokens.max(1) as f64)
        });
        others.extend(indexers.map(|(sum, share)| (sum, self.config.indexer_loss_coef * share)));
        made.routing =
            recording.finish().map(|routing| Routing { losses: RouterLosses { indexers, ..losses }, ..routing });
        made.loss = Some(total(tape, loss, &[heads, others].concat()));
        made
    }

    /// Records the objective of answers that are pairs or have labels: sets `hidden`, `loss`, `measures` and `reference`, and returns the
    /// loss.
    fn record_answers(&self, made: &mut TextTape, answers: &Answers, targets: &Targets, recording: &Recording) -> Slot {
        let tape = &mut made.tape;
        let (hidden, labels) = self.record_counted(tape, made.hidden, targets, recording);
        let each = self.cross_entropy().record_each(tape, "log-probabilities", hidden, &labels);
        made.reference = answers.needs_reference().then(|| tape.input(false));
        let (objective, scale) = (answers.clone(), targets.scale);
        let forward = move |reads: &[Tensor]| objective.loss(&reads[0], reads.get(1), scale).into();
        let reads: Vec<Slot> = [each].into_iter().chain(made.reference).collect();
        let found = tape.run("loss of answers", &[], Policy::Keep, &reads, 2, forward);
        found.iter().for_each(|slot| tape.keep(*slot));
        (made.hidden, made.loss, made.measures) = (hidden, Some(found[0]), Some(found[1]));
        found[0]
    }

    /// Records the last norm of the counted tokens, in a region, and their labels.
    fn record_counted(&self, tape: &mut Tape, x: Slot, targets: &Targets, recording: &Recording) -> (Slot, Vec<i64>) {
        let (rows, labels) = counted(&targets.labels);
        let x = recording.enter_region(tape, x);
        let taken = tape.take_rows(x, index(&rows, self.device));
        let Last { norm, norm_ids, .. } = self.last();
        let norm = norm.clone();
        let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
        (tape.run("norm", norm_ids, recording.policy, &[taken], 1, forward)[0], labels)
    }

    /// Records the last norm and the loss, of counted tokens only.
    fn record_loss(&self, tape: &mut Tape, x: Slot, targets: &Targets, recording: &Recording) -> (Slot, Slot) {
        let (hidden, labels) = self.record_counted(tape, x, targets, recording);
        let weights = targets.weights_of(&counted(&targets.labels).0);
        (hidden, self.cross_entropy().record(tape, "loss", hidden, &labels, weights, targets.scale))
    }

    /// Returns the objective of the last stage.
    pub(super) fn cross_entropy(&self) -> CrossEntropy {
        let Last { head, head_bias, .. } = self.last();
        CrossEntropy {
            head: head.weight.shallow_clone(),
            bias: head_bias.as_ref().map(|bias| bias.weight.shallow_clone()),
            ids: std::iter::once(head.id).chain(head_bias.as_ref().map(|bias| bias.id)).collect(),
            first_token: self.config.first_token,
            divisor: self.config.score_divisor,
            soft_cap: self.config.final_soft_cap,
            smoothing: self.config.smoothing,
            parallel: self.config.parallel,
            device: self.device,
        }
    }
}

/// Records the loss with others added, each times its weight.
fn total(tape: &mut Tape, loss: Slot, others: &[(Slot, f64)]) -> Slot {
    if others.is_empty() {
        return loss;
    }
    let (mut reads, weights) = (vec![loss], others.iter().map(|(_, weight)| *weight).collect::<Vec<_>>());
    reads.extend(others.iter().map(|(slot, _)| *slot));
    let sum = move |reads: &[Tensor]| {
        let mut sum = reads[0].shallow_clone();
        reads[1..].iter().zip(&weights).for_each(|(other, weight)| sum = &sum + other * *weight);
        vec![sum]
    };
    tape.run("total loss", &[], Policy::Keep, &reads, 1, sum)[0]
}
