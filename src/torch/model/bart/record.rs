//! The tape of a micro-batch: what is asked through the encoder, answers through the decoder, and the cross-entropy of the answers'
//! tokens.
//!
//! Shapes: T tokens, R rows of answers, L targets, D width.

use std::rc::Rc;

use tch::{Kind, Tensor};

use super::layout::{AnsweredSamples, Layout};
use super::network::EncoderDecoder;
use crate::model::batch::MicroBatch;
use crate::model::columns::POSITION_IDS;
use crate::model::foundation::FoundationTape;
use crate::model::towers::FeatureInput;
use crate::nn::take_rows;
use crate::tape::{Slot, Tape};

/// A tape up to the states of the rows whose targets count.
pub(super) struct Recorded {
    /// Inputs by tower; empty where there are no features.
    pub features: Vec<Vec<Slot>>,
    /// `[L, D]`.
    pub hidden: Slot,
    /// `[L]`.
    pub labels: Vec<i64>,
}

impl EncoderDecoder {
    /// Records forward and loss of a micro-batch.
    pub(super) fn record(&self, batch: &MicroBatch, inputs: &[FeatureInput]) -> FoundationTape {
        let (ids, targets) = (batch.input_ids(), batch.targets());
        let positions = batch.columns.get(POSITION_IDS).get(0).to_kind(Kind::Float);
        let samples = AnsweredSamples {
            feature_rows: inputs.first().map_or_else(Vec::new, |input| input.rows(&ids)),
            ids: &ids,
            positions: &Vec::<f32>::try_from(positions).expect("a row of numbers"),
            targets: &targets,
            cu_seqlens: &batch.cu_seqlens,
        };
        let mut tape = Tape::new();
        let Recorded { features, hidden, labels } = self.record_states(&mut tape, &samples, batch.feature_grads);
        let (loss, predicted) = match batch.evaluates {
            true => {
                let [loss, predicted] = self.cross_entropy().record_scores(&mut tape, hidden, &labels);
                (loss, Some(predicted))
            }
            false => (self.cross_entropy().record(&mut tape, "loss", hidden, &labels, None, batch.loss_scale), None),
        };
        FoundationTape { predicted, ..FoundationTape::of_loss(tape, features, loss) }
    }

    /// Records all but the head.
    pub(super) fn record_states(
        &self,
        tape: &mut Tape,
        samples: &AnsweredSamples<'_>,
        train_features: bool,
    ) -> Recorded {
        let layout = Layout::new(samples, self.config.answers.start, self.device);
        let Layout { ids, questions, answers, crossing, counted, labels } = layout;
        let part = self.tokens.part.clone();
        let look_up = move |_: &[Tensor]| vec![part.look_up(&ids)];
        let x = tape.run("embed", &self.tokens.ids, self.policy, &[], 1, look_up)[0];
        let mut features = Vec::new();
        let mut asked = x;
        if !samples.feature_rows.is_empty() {
            let slot = tape.input(train_features);
            let rows = Tensor::from_slice(&samples.feature_rows).to_device(self.device);
            asked = tape.put_rows(x, Rc::new(rows), slot);
            features.push(vec![slot]);
        }
        let encoded = self.encoder.record(tape, self.policy, asked, &questions, take_rows);
        let written = tape.take_rows(x, answers.rows.clone());
        let states = self.decoder.record(tape, self.policy, [written, encoded], &answers, &crossing);
        Recorded { features, hidden: tape.take_rows(states, counted), labels }
    }
}
