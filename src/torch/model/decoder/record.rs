//! A decoder's tape of one micro-batch: embedding, features, layers, norm and loss.

use std::rc::Rc;

use tch::{Kind, Tensor};

use super::batch::{Routing, Targets, TextBatch, TextOptions, TextTape};
use super::moe::Recording;
use super::mtp::counted;
use super::router_losses::Wanted;
use super::transformer::Decoder;
use crate::model::loss::LinearCrossEntropy;
use crate::native::embedding;
use crate::tape::{Policy, Slot, Tape};

impl Decoder {
    /// The tape of one micro-batch; without `targets` it ends at the hidden states.
    pub fn tape(&self, batch: &TextBatch, targets: Option<&Targets>, options: &TextOptions) -> TextTape {
        let policy = options.policy;
        let mut tape = Tape::new();
        let rows = index(&batch.feature_rows, self.embed.device());
        let num_features = if batch.feature_rows.is_empty() { 0 } else { options.num_feature_tensors };
        let features: Vec<Slot> = (0..num_features).map(|_| tape.input(options.train_features)).collect();

        let (embed, input_ids) = (self.embed.shallow_clone(), batch.input_ids.to_device(self.embed.device()));
        let padding = self.config.pad_token_id.unwrap_or(-1);
        let look_up = move |_: &[Tensor]| vec![embedding(&embed, &input_ids, padding)];
        let mut x = tape.run("embed", &[self.embed_id], policy, &[], 1, look_up)[0];
        if let Some(&merged) = features.first() {
            x = tape.put_rows(x, rows.clone(), merged);
        }
        let context = Rc::new(self.context(&batch.position_ids, &batch.cu_seqlens));
        let mut recording = Recording {
            policy,
            wanted: targets.map_or(Wanted::default(), |_| Wanted::new(&self.config.balance)),
            keep_routing: options.keep_routing,
            split: self.split(&batch.input_ids),
            routed: Vec::new(),
            losses: Vec::new(),
            mixer_losses: targets.map(|_| Vec::new()),
        };
        for (number, layer) in self.layers.iter().enumerate() {
            x = layer.record(&mut tape, &format!("layer {number}"), x, &context, &mut recording);
            if let Some(&deep) = features.get(1 + number) {
                x = tape.add_rows(x, rows.clone(), deep);
            }
        }
        let Some(targets) = targets else {
            let norm = self.norm.clone();
            let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
            let hidden = tape.run("norm", &self.norm_ids, policy, &[x], 1, forward)[0];
            let (mixer_losses, routing) = (Vec::new(), recording.finish());
            return TextTape { tape, features, hidden, loss: None, mixer_losses, routing };
        };
        let (hidden, loss) = self.record_loss(&mut tape, x, targets, policy);
        let (num_tokens, share) = (batch.input_ids.numel() as i64, targets.share());
        // Of the layers' routers; those of prediction heads are not balanced.
        let losses = recording.record_losses(&mut tape, num_tokens, share);
        recording.wanted = Wanted::default();
        let mut others = self.record_mtp(&mut tape, x, batch, targets, &context, &mut recording);
        others.extend(losses.weighted(&self.config.balance));
        let mixer_losses = recording.mixer_losses.take().unwrap_or_default();
        let weight = self.config.indexer_loss_coef * share / num_tokens.max(1) as f64;
        others.extend(mixer_losses.iter().map(|slot| (*slot, weight)));
        let routing = recording.finish().map(|routing| Routing { losses, ..routing });
        let total = total(&mut tape, loss, &others);
        TextTape { tape, features, hidden, loss: Some(total), mixer_losses, routing }
    }

    /// The last norm and the loss, of counted tokens only.
    fn record_loss(&self, tape: &mut Tape, x: Slot, targets: &Targets, policy: Policy) -> (Slot, Slot) {
        let (rows, labels) = counted(&targets.labels);
        let taken = tape.take_rows(x, index(&rows, self.embed.device()));
        let norm = self.norm.clone();
        let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
        let hidden = tape.run("norm", &self.norm_ids, policy, &[taken], 1, forward)[0];
        let labels = Tensor::from_slice(&labels).to_kind(Kind::Int64).to_device(self.embed.device());
        let loss = LinearCrossEntropy::new(self.head.shallow_clone(), labels, targets.scale);
        (hidden, tape.custom("loss", &[self.head_id], &[hidden], 1, Box::new(loss))[0])
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
