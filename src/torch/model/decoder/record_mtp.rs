//! The losses of prediction heads on a decoder's tape ([`super::mtp`]).
//!
//! Shapes: T tokens of a packed row, D hidden size, M counted targets of a head.

use std::rc::Rc;

use tch::Tensor;

use super::batch::{Targets, TextBatch};
use super::mtp::MtpHead;
use super::recording::Recording;
use super::rows::{counted, index};
use super::transformer::Decoder;
use crate::device::upload;
use crate::nn::Context;
use crate::tape::{Slot, Tape};

impl Decoder {
    /// Records the heads' losses, each with what it counts: `x` is what the decoder's last norm reads. Every sum of cross-entropies is
    /// scaled as the decoder's own, although a head counts fewer targets, by one a document.
    pub(super) fn record_mtp(
        &self,
        tape: &mut Tape,
        x: Slot,
        batch: &TextBatch,
        targets: &Targets,
        contexts: &[Rc<Context>],
        recording: &mut Recording,
    ) -> Vec<(Slot, f64)> {
        let Some(config) = self.config.mtp.as_ref().filter(|_| !self.mtp.is_empty()) else { return Vec::new() };
        let (policy, last) = (recording.policy, self.last());
        // Heads of several streams go on from these, before they are mixed.
        let has_streams = self.config.streams.is_some();
        let mut hidden = x;
        if !has_streams {
            let norm = last.norm.clone();
            let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
            recording.set_alike(tape, true);
            hidden = tape.run("mtp norm", &last.norm_ids, policy, &[x], 1, forward)[0];
            recording.set_alike(tape, false);
        }
        let (mut ids, mut labels) = (batch.input_ids.shallow_clone(), targets.labels.clone());
        let mut losses = Vec::new();
        for (number, head) in self.mtp.iter().enumerate() {
            // Across a document's end comes a token that no counted position sees.
            ids = ids.roll(-1, 0);
            labels = shifted(&labels, &batch.cu_seqlens);
            let joined = self.record_join(tape, number, head, hidden, &ids, recording);
            let y = head.layer.record(tape, &format!("mtp {number}"), joined, &contexts[head.layer.rope], recording);
            let norm = head.last_norm.clone();
            let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
            recording.set_alike(tape, true);
            let state = tape.run(format!("mtp {number} norm"), &head.last_norm_ids, policy, &[y], 1, forward)[0];
            recording.set_alike(tape, false);
            let (rows, wanted) = counted(&labels);
            hidden = if has_streams { y } else { state };
            let entered = recording.enter_region(tape, state);
            let taken = tape.take_rows(entered, index(&rows, self.device));
            let (name, weights) = (format!("mtp {number} loss"), targets.weights_of(&rows));
            let loss = self.cross_entropy().record(tape, &name, taken, &wanted, weights, targets.scale);
            losses.push((loss, config.loss_weight / config.num_heads as f64));
        }
        losses
    }

    /// Records the state of every token joined with the embedding of the next one, `ids`.
    fn record_join(
        &self,
        tape: &mut Tape,
        number: usize,
        head: &MtpHead,
        hidden: Slot,
        ids: &Tensor,
        recording: &Recording,
    ) -> Slot {
        let (name, policy, join) = (format!("mtp {number} join"), recording.policy, head.join.clone());
        if recording.parallel.tp == 1 {
            let (table, ahead) = (self.token_table(), upload(ids, self.device));
            let forward = move |reads: &[Tensor]| vec![join.forward(&table.look_up(&ahead), &reads[0])];
            let mut params = vec![self.embedding().id];
            params.extend(&head.join_ids);
            return tape.run(name, &params, policy, &[hidden], 1, forward)[0];
        }
        let ahead = self.record_tokens(tape, &format!("mtp {number} embed"), ids, recording);
        recording.set_alike(tape, true);
        let forward = move |reads: &[Tensor]| vec![join.forward(&reads[1], &reads[0])];
        let joined = tape.run(name, &head.join_ids, policy, &[hidden, ahead], 1, forward)[0];
        recording.set_alike(tape, false);
        joined
    }
}

/// Returns the labels of a head from those of the one before: each token takes the next one's, a document's last none.
fn shifted(labels: &[i64], cu_seqlens: &[usize]) -> Vec<i64> {
    let mut shifted = vec![-100; labels.len()];
    for ends in cu_seqlens.windows(2).filter(|ends| ends[1] > ends[0]) {
        shifted[ends[0]..ends[1] - 1].copy_from_slice(&labels[ends[0] + 1..ends[1]]);
    }
    shifted
}

#[cfg(test)]
mod tests {
    use super::{counted, shifted};

    #[test]
    fn labels_move_within_their_document() {
        let once = shifted(&[-100, 5, 6, 7, 8, 9], &[0, 4, 6]);
        assert_eq!(once, [5, 6, 7, -100, 9, -100]);
        assert_eq!(shifted(&once, &[0, 4, 6]), [6, 7, -100, -100, -100, -100]);
        assert_eq!(counted(&once), (vec![0, 1, 2, 4], vec![5, 6, 7, 9]));
    }
}
