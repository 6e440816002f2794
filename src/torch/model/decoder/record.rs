//! A decoder's tape of one micro-batch: embedding, features, layers, norm and loss.

use std::rc::Rc;

use tch::{Kind, Tensor};

use super::batch::{Targets, TextBatch, TextOptions, TextTape};
use super::transformer::Decoder;
use crate::model::loss::LinearCrossEntropy;
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
        let look_up = move |_: &[Tensor]| vec![Tensor::embedding(&embed, &input_ids, padding, false, false)];
        let mut x = tape.run("embed", &[self.embed_id], policy, &[], 1, look_up)[0];
        if let Some(&merged) = features.first() {
            x = tape.put_rows(x, rows.clone(), merged);
        }
        let context = Rc::new(self.context(&batch.position_ids, &batch.cu_seqlens));
        for (number, layer) in self.layers.iter().enumerate() {
            x = layer.record(&mut tape, number, x, &context, policy);
            if let Some(&deep) = features.get(1 + number) {
                x = tape.add_rows(x, rows.clone(), deep);
            }
        }
        self.finish(tape, x, features, targets, policy)
    }

    /// The last norm and the loss.
    fn finish(
        &self,
        mut tape: Tape,
        x: Slot,
        features: Vec<Slot>,
        targets: Option<&Targets>,
        policy: Policy,
    ) -> TextTape {
        let norm = self.norm.clone();
        let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
        let Some(targets) = targets else {
            let hidden = tape.run("norm", &self.norm_ids, policy, &[x], 1, forward)[0];
            return TextTape { tape, features, hidden, loss: None };
        };
        let counted: Vec<i64> =
            (0..).zip(&targets.labels).filter(|(_, label)| **label >= 0).map(|(at, _)| at).collect();
        let labels: Vec<i64> = targets.labels.iter().copied().filter(|label| *label >= 0).collect();
        let taken = tape.take_rows(x, index(&counted, self.embed.device()));
        let hidden = tape.run("norm", &self.norm_ids, policy, &[taken], 1, forward)[0];
        let labels = Tensor::from_slice(&labels).to_device(self.embed.device());
        let loss = LinearCrossEntropy::new(self.head.shallow_clone(), labels, targets.scale);
        let loss = tape.custom("loss", &[self.head_id], &[hidden], 1, Box::new(loss))[0];
        TextTape { tape, features, hidden, loss: Some(loss) }
    }
}

fn index(rows: &[i64], device: tch::Device) -> Rc<Tensor> {
    Rc::new(Tensor::from_slice(rows).to_kind(Kind::Int64).to_device(device))
}
