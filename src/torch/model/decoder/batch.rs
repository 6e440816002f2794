//! The inputs of a decoder, and the tape that it returns.
//!
//! Shapes: T tokens of one packed row, N features, D hidden size, L counted targets.

use std::rc::Rc;

use tch::Tensor;

use super::neftune::EmbeddingNoise;
use crate::model::objective::Answers;
use crate::model::routing::Routing;
use crate::nn::{Mask, SharedRows};
use crate::tape::{Boundary, ContextShard, KeyValues, Policy, Slot, Tape};

/// One packed row of documents. Its tensors lie on the decoder's device or on the host, from where they go to it.
pub struct TextBatch {
    /// `[T]`, int64.
    pub input_ids: Tensor,
    /// Restarting with every document: `[T]`, or `[3, T]` where the model's positions have three axes; float.
    pub position_ids: Tensor,
    /// The ends of documents: `[0, …, T]`.
    pub cu_seqlens: Vec<usize>,
    /// The mask of the tokens: that of [`Sees::mask_of`](super::Sees::mask_of) for a whole row.
    pub mask: Mask,
    /// The tokens that features replace, in the features' order, by input.
    pub feature_rows: Vec<Vec<i64>>,
    /// The share of a row, where these are some tokens of a row that other ranks share; everything else is of these
    /// tokens alone.
    pub row: Option<Rc<ContextShard>>,
    /// The number of tokens of its first document that came in earlier pieces, where these are a piece of a longer row.
    pub past: Option<usize>,
    /// Documents have beginnings in common: tokens and positions are those of the rows that are computed, `cu_seqlens` tells where
    /// the documents end with all of theirs.
    pub shared: Option<Rc<SharedRows>>,
}

/// The targets that the loss counts.
pub struct Targets {
    /// The token to predict at each token (already shifted), or -100: `[T]`.
    pub labels: Vec<i64>,
    /// The weight of each token's target; `None`: all count alike.
    pub weights: Option<Vec<f32>>,
    /// Multiplies the sum of the counted tokens' losses; for a mean, one over the number of targets of the whole step.
    pub scale: f64,
    /// Forward only: the sum of the cross-entropies and the predicted entries take the place of the loss.
    pub evaluates: bool,
    /// The row is of answers that are pairs or have labels, and its loss is that of their objective.
    pub answers: Option<Answers>,
    /// The noise that training adds to the embeddings of the tokens.
    pub noise: Option<EmbeddingNoise>,
}

impl Targets {
    /// Returns the weights of the targets of these rows, which are counted.
    pub(super) fn weights_of(&self, rows: &[i64]) -> Option<Vec<f32>> {
        let weights = self.weights.as_ref()?;
        Some(rows.iter().map(|row| weights[*row as usize]).collect())
    }

    /// Returns the part of the step's targets that these are.
    pub(super) fn share(&self) -> f64 {
        let counted = || match &self.weights {
            None => self.labels.iter().filter(|label| **label >= 0).count() as f64,
            Some(weights) => {
                let counted = self.labels.iter().zip(weights).filter(|(label, _)| **label >= 0);
                counted.map(|(_, weight)| f64::from(*weight)).sum()
            }
        };
        self.scale * self.answers.as_ref().map_or_else(counted, Answers::num_counted)
    }
}

/// A decoder's tape and the slots of interest.
pub struct TextTape {
    pub tape: Tape,
    /// The slots `[N, D]` of each input's features, by input. Empty where the batch has no features of it, and in stages but the first.
    pub features: Vec<Vec<Slot>>,
    /// The hidden states after the last norm: `[T, D]`, or `[L, D]`, those of counted targets, where there is a loss.
    pub hidden: Slot,
    /// The tensors that the stage before sends; their slots are inputs.
    pub inbound: Vec<Boundary>,
    /// The tensors that the stage behind takes, in kept slots.
    pub outbound: Vec<Boundary>,
    /// An input, `[N, 2]`: the log-probabilities of N documents by a reference model, where the loss of answers reads them.
    pub reference: Option<Slot>,
    /// A scalar, float64: what to differentiate; of an evaluation the sum of the targets' cross-entropies, or of the losses of
    /// answers.
    pub loss: Option<Slot>,
    /// The measures of answers ([`Answers::loss`]), a kept slot.
    pub measures: Option<Slot>,
    /// The entry with the highest score at each counted target of an evaluation, `[L]`, int64.
    pub predicted: Option<Slot>,
    /// The sum over tokens of the loss of each mixer that has one, such as an indexer's, unweighted; kept slots.
    pub mixer_losses: Vec<Slot>,
    /// The routing of a mixture of experts.
    pub routing: Option<Routing>,
    /// The keys and values of a piece, one for each layer.
    pub key_values: Vec<KeyValues>,
}

/// Describes how a decoder's tape is laid out.
pub struct TextOptions {
    /// The number of tensors of features of each input: one, and one more for each DeepStack layer.
    pub feature_tensors: Vec<usize>,
    /// True if gradients of the features are wanted.
    pub train_features: bool,
    pub policy: Policy,
    /// True if the routers' outputs are kept.
    pub keep_routing: bool,
}
