//! The state that the layers of one tape share, and that they leave for its end.

use std::rc::Rc;

use tch::Tensor;

use super::config::Balance;
use crate::device::upload;
use crate::model::routing::RoutedExperts;
use crate::nn::PieceAttention;
use crate::params::ParallelRank;
use crate::tape::{ContextShard, KeyValues, Policy, Slot};

/// The state that the layers of one tape share, and that they leave for its end.
pub(super) struct Recording {
    pub parallel: ParallelRank,
    /// The number of tokens of the packed row.
    pub num_tokens: i64,
    pub policy: Policy,
    pub wanted: Wanted,
    pub keep_routing: bool,
    /// `None` where all experts are for all tokens, or no rank that takes part has tokens of pictures or videos.
    pub split: Option<Split>,
    /// The tokens of the row `[T]`, int64, where routers look experts up by them.
    pub ids: Option<Slot>,
    /// The share of this rank, where ranks share a row.
    pub row: Option<Rc<ContextShard>>,
    pub routed: Vec<RoutedExperts>,
    pub losses: Vec<LayerLosses>,
    /// `None` where the mixers' losses are not wanted.
    pub mixer_losses: Option<Vec<Slot>>,
    /// The piece of a sequence, whose keys and values are kept.
    pub piece: Option<Rc<PieceAttention>>,
    pub key_values: Vec<KeyValues>,
}

/// The rows of a batch that are tokens of pictures and videos, and the others; int64.
#[derive(Clone)]
pub(super) struct Split {
    pub media: Rc<Tensor>,
    pub others: Rc<Tensor>,
}

impl Split {
    /// Returns the tokens of a row that are some of `token_ids`, maybe none, and the others.
    pub fn new(input_ids: &[i64], token_ids: &[i64], device: tch::Device) -> Split {
        let rows = |of_media: bool| {
            let rows = (0..).zip(input_ids).filter(|(_, id)| token_ids.contains(id) == of_media);
            Tensor::from_slice(&rows.map(|(row, _)| row).collect::<Vec<i64>>())
        };
        let (media, others) = (rows(true), rows(false));
        let on_device = |rows: Tensor| Rc::new(upload(&rows, device));
        Split { media: on_device(media), others: on_device(others) }
    }
}

/// Describes which losses a step has besides that of its tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub aux: bool,
    pub z: bool,
}

impl Wanted {
    /// Wants the losses of routers whose coefficients are not 0.
    pub fn new(balance: &Balance) -> Wanted {
        Wanted { aux: balance.aux_loss_coef != 0.0, z: balance.z_loss_coef != 0.0 }
    }
}

/// The addends of one set of experts to the losses.
pub(super) struct LayerLosses {
    /// The number of times that each expert is among the best by softmax `[E]`, and the sum of its probabilities `[E]`.
    pub choices: Option<[Slot; 2]>,
    /// The sum over its tokens, a scalar.
    pub z: Option<Slot>,
}

/// Sums over the layers so far.
#[derive(Clone, Copy, Default)]
pub(super) struct RouterSums {
    /// Choices and probabilities `[E]`, float32.
    pub choices: Option<[Slot; 2]>,
    /// A scalar.
    pub z: Option<Slot>,
}
