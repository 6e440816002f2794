//! Describes how well a decoder predicts a packed row: forward only, without gradients, and without the losses of
//! routers, indexers and prediction heads, which training adds to the cross-entropy.

use std::rc::Rc;

use tch::Tensor;

use super::batch::{TextBatch, TextOptions};
use super::rows::{counted, index};
use super::transformer::Decoder;
use crate::native::NativeError;
use crate::params::ParamStore;
use crate::tape::{Execution, Policy, Slot, Tape};

/// The scores of each target of a row, in the row's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenScores {
    /// The cross-entropies, in nats.
    pub losses: Vec<f32>,
    /// Whether each target is the token that greedy decoding would take there.
    pub correct: Vec<bool>,
}

impl Decoder {
    /// Records a tape that ends with the log-probability `[L]`, float32, of each of the `labels` that are targets: for each token the one
    /// to predict, or below 0. The decoder may be a rank's part of one. `features`, by input and level, are on `tape`.
    pub fn log_probabilities(
        &self,
        (tape, features): (Tape, Vec<Vec<Slot>>),
        batch: &TextBatch,
        labels: &[i64],
        options: &TextOptions,
    ) -> (Tape, Slot) {
        let mut made = self.tape_behind(tape, Some(features), batch, None, options);
        let (rows, labels) = counted(labels);
        let hidden = made.tape.take_rows(made.hidden, index(&rows, self.device));
        let each = self.cross_entropy().record_each(&mut made.tape, "log-probabilities", hidden, &labels);
        let negated = made.tape.run("negated", &[], Policy::Keep, &[each], 1, |reads| vec![-&reads[0]]);
        (made.tape, negated[0])
    }

    /// Scores of the `labels` that are targets: for each token the one to predict, or -100. `features` are by input the
    /// tower's outputs for the row's items, `[N, D]` each; none without items. `params` are what the decoder was made from.
    ///
    /// # Errors
    /// A transfer failed.
    ///
    /// # Panics
    /// The decoder is a stage, or the part of one rank; a label is not of the vocabulary.
    pub fn score(
        &self,
        params: &Rc<ParamStore>,
        batch: &TextBatch,
        labels: &[i64],
        features: &[Vec<Tensor>],
    ) -> Result<TokenScores, NativeError> {
        assert!(self.config().parallel.is_whole(), "scores are of a whole decoder");
        let _no_grad = tch::no_grad_guard();
        let options = TextOptions {
            feature_tensors: features.iter().map(Vec::len).collect(),
            train_features: false,
            policy: Policy::Keep,
            keep_routing: false,
        };
        let made = self.tape(batch, None, &options);
        let taken = |feature: &Tensor| feature.to_device(self.device).to_kind(self.kind);
        let slots = made.features.iter().flatten();
        let inputs = slots.zip(features.iter().flatten()).map(|(slot, feature)| (*slot, taken(feature))).collect();
        let mut run = Execution::forward_only(Rc::new(made.tape), params.clone(), inputs);
        run.forward()?;
        let (rows, labels) = counted(labels);
        let hidden_LD = run.value(made.hidden).index_select(0, &index(&rows, self.device));
        let (losses_L, predicted_L) = self.cross_entropy().of_each(&hidden_LD, &labels);
        let correct_L = predicted_L.eq_tensor(&index(&labels, self.device));
        Ok(TokenScores {
            losses: Vec::try_from(losses_L).expect("a row of numbers"),
            correct: Vec::try_from(correct_L).expect("a row of truths"),
        })
    }
}
