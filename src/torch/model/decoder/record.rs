//! A decoder's tape of one micro-batch: embedding, features, layers, norm and loss.

use std::rc::Rc;

use tch::{Kind, Tensor};

use super::batch::{Routing, Targets, TextBatch, TextOptions, TextTape};
use super::moe::Recording;
use super::mtp::counted;
use super::regions::{FeatureRows, TokenTable};
use super::router_losses::Wanted;
use super::transformer::Decoder;
use crate::model::loss::LinearCrossEntropy;
use crate::model::vocab_scores::VocabScores;
use crate::tape::{Policy, Slot, Tape};

impl Decoder {
    /// The tape of one micro-batch; without `targets` it ends at the hidden states.
    pub fn tape(&self, batch: &TextBatch, targets: Option<&Targets>, options: &TextOptions) -> TextTape {
        let policy = options.policy;
        let mut tape = Tape::new();
        // Of ranks that share a row all have features or none, so that gradients flow alike; some may have no rows of them.
        let no_features = batch.feature_rows.is_empty() && batch.row.is_none();
        let num_features = if no_features { 0 } else { options.num_feature_tensors };
        let features: Vec<Slot> = (0..num_features).map(|_| tape.input(options.train_features)).collect();
        let mut recording = Recording {
            division: self.config.division,
            num_tokens: batch.input_ids.numel() as i64,
            policy,
            wanted: targets.map_or(Wanted::default(), |_| Wanted::new(&self.config.balance)),
            keep_routing: options.keep_routing,
            split: self.split(&batch.input_ids),
            row: batch.row.clone(),
            routed: Vec::new(),
            losses: Vec::new(),
            mixer_losses: targets.map(|_| Vec::new()),
        };
        let rows = FeatureRows::new(&batch.feature_rows, &recording, self.embed.device());
        let mut x = self.record_tokens(&mut tape, "embed", &batch.input_ids, &recording);
        if let Some(&merged) = features.first() {
            x = rows.put(&mut tape, x, merged);
        }
        let context = Rc::new(self.context_of(batch));
        for (number, layer) in self.layers.iter().enumerate() {
            x = layer.record(&mut tape, &format!("layer {number}"), x, &context, &mut recording);
            if let Some(&deep) = features.get(1 + number) {
                x = rows.add(&mut tape, x, deep);
            }
        }
        let Some(targets) = targets else {
            let norm = self.norm.clone();
            let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
            let hidden = tape.run("norm", &self.norm_ids, policy, &[x], 1, forward)[0];
            let hidden = recording.enter(&mut tape, hidden);
            let (mixer_losses, routing) = (Vec::new(), recording.finish());
            return TextTape { tape, features, hidden, loss: None, mixer_losses, routing };
        };
        let (hidden, loss) = self.record_loss(&mut tape, x, targets, &recording);
        let num_tokens =
            batch.row.as_ref().map_or(batch.input_ids.numel() as i64, |row| row.split().num_tokens() as i64);
        let share = targets.share();
        // Of the layers' routers; those of prediction heads are not balanced.
        let losses = recording.record_losses(&mut tape, num_tokens, share);
        recording.wanted = Wanted::default();
        let heads = self.record_mtp(&mut tape, x, batch, targets, &context, &mut recording);
        let mut others: Vec<(Slot, f64)> = losses.weighted(&self.config.balance).collect();
        if recording.division.tp > 1 {
            // All ranks compute these alike, in regions.
            others.iter_mut().for_each(|(slot, _)| *slot = tape.once(*slot));
        }
        let mixer_losses = recording.mixer_losses.take().unwrap_or_default();
        let weight = self.config.indexer_loss_coef * share / num_tokens.max(1) as f64;
        others.extend(mixer_losses.iter().map(|slot| (*slot, weight)));
        let routing = recording.finish().map(|routing| Routing { losses, ..routing });
        let total = total(&mut tape, loss, &[heads, others].concat());
        TextTape { tape, features, hidden, loss: Some(total), mixer_losses, routing }
    }

    /// The embeddings of tokens: of those that this rank has outside of regions.
    pub(super) fn record_tokens(&self, tape: &mut Tape, name: &str, ids: &Tensor, recording: &Recording) -> Slot {
        let (table, ids) = (self.token_table(), ids.to_device(self.embed.device()));
        let look_up = move |_: &[Tensor]| vec![table.look_up(&ids)];
        let x = tape.run(name, &[self.embed_id], recording.policy, &[], 1, look_up)[0];
        recording.leave(tape, x)
    }

    pub(super) fn token_table(&self) -> TokenTable {
        TokenTable {
            table: self.embed.shallow_clone(),
            first: self.config.first_token,
            padding: self.config.pad_token_id.unwrap_or(-1),
            is_part: self.config.division.tp > 1,
        }
    }

    /// The last norm and the loss, of counted tokens only.
    fn record_loss(&self, tape: &mut Tape, x: Slot, targets: &Targets, recording: &Recording) -> (Slot, Slot) {
        let (rows, labels) = counted(&targets.labels);
        let x = recording.enter(tape, x);
        let taken = tape.take_rows(x, index(&rows, self.embed.device()));
        let norm = self.norm.clone();
        let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
        let hidden = tape.run("norm", &self.norm_ids, recording.policy, &[taken], 1, forward)[0];
        (hidden, self.record_cross_entropy(tape, "loss", hidden, &labels, targets.scale))
    }

    /// The sum of the cross-entropies of the hidden states of counted tokens, which are in a region, times `scale`.
    pub(super) fn record_cross_entropy(
        &self,
        tape: &mut Tape,
        name: &str,
        hidden: Slot,
        labels: &[i64],
        scale: f64,
    ) -> Slot {
        let labels = Tensor::from_slice(labels).to_kind(Kind::Int64).to_device(self.embed.device());
        let head = self.head.shallow_clone();
        if self.config.division.tp == 1 {
            let loss = LinearCrossEntropy::new(head, labels, scale);
            return tape.custom(name, &[self.head_id], &[hidden], 1, Box::new(loss))[0];
        }
        let scores = VocabScores::new(head, &labels, self.config.first_token);
        let scores = tape.custom(format!("{name} scores"), &[self.head_id], &[hidden], 2, Box::new(scores));
        let (norm, of_labels) = (tape.log_sum_exp(scores[0]), tape.leave(scores[1]));
        let sum = move |reads: &[Tensor]| vec![(&reads[0] - &reads[1]).sum(Kind::Double) * scale];
        tape.run(name, &[], Policy::Keep, &[norm, of_labels], 1, sum)[0]
    }
}

/// The loss with others added, each times its weight.
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

/// Rows as an index.
pub(super) fn index(rows: &[i64], device: tch::Device) -> Rc<Tensor> {
    Rc::new(Tensor::from_slice(rows).to_kind(Kind::Int64).to_device(device))
}
