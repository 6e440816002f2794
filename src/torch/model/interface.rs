//! Describes what an engine asks of a model: its parameters, and to record a tape for a batch. Implement these to train
//! a model of your own.

use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::config::ContextAttention;
use loongforge_core::message::Grid;
use tch::{Device, Kind, Tensor};

use super::decoder::{Decoding, DivisionError, ExpertSet, NotSplit, Routing, Stage, StageError};
use crate::nn::{Division, ParamSpec, ParamStore};
use crate::tape::{Boundary, KeyValues, Policy, RowShare, Slot, Tape};

/// A kind of encoder.
pub trait EncoderFamily: Debug + Send + Sync {
    /// Its parameters, under their names in `model.safetensors`.
    fn specs(&self) -> Vec<ParamSpec>;

    /// The model on parameters made from [`EncoderFamily::specs`].
    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel>;

    /// Tensors of features for an item: one, and one for each DeepStack level.
    fn num_outputs(&self) -> usize {
        1
    }

    /// Returns whether this parameter, by its name in the checkpoint, is of what brings features to the width of the
    /// decoder (`model.image_projector` in a run's config) and not of the tower.
    fn is_projector(&self, _name: &str) -> bool {
        false
    }

    /// Values of a patch: columns of the encoder's input.
    fn patch_dim(&self) -> i64;

    /// Returns what the names of the tower's parameters begin with, and those of the projector's: what is left of a
    /// name is the same in every checkpoint that has this tower.
    fn prefixes(&self) -> [&str; 2] {
        ["", ""]
    }

    /// Returns what the rank at `place` computes of it, as [`FoundationFamily::divided`].
    ///
    /// # Errors
    /// It cannot be split so.
    fn divided(&self, _place: &Division) -> Result<Arc<dyn EncoderFamily>, DivisionError> {
        Err(DivisionError::Unsupported { what: "this encoder" })
    }

    /// Features that an item of this size becomes, which is how many placeholders it has among the tokens.
    fn num_features(&self, grid: Grid) -> usize;
}

/// A kind of foundation.
pub trait FoundationFamily: Send + Sync {
    /// Its parameters, under their names in `model.safetensors`.
    fn specs(&self) -> Vec<ParamSpec>;

    /// The model on parameters made from [`FoundationFamily::specs`].
    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel>;

    /// Returns what the rank at `place` computes of it, where layers or experts are split among ranks: its specs are
    /// the rank's parts of this one's.
    ///
    /// # Errors
    /// It cannot be split so.
    fn divided(&self, _place: &Division) -> Result<Arc<dyn FoundationFamily>, DivisionError> {
        Err(DivisionError::Unsupported { what: "this model" })
    }

    /// The layers that a pipeline may cut between; 0: it cannot be cut.
    fn num_layers(&self) -> usize {
        0
    }

    /// Returns whether a pipeline may have this stage.
    ///
    /// # Errors
    /// Its layers need what others compute.
    fn check_stage(&self, _stage: &Stage) -> Result<(), StageError> {
        Ok(())
    }

    /// The parameters of a stage, under the same names.
    fn stage_specs(&self, _stage: &Stage) -> Vec<ParamSpec> {
        self.specs()
    }

    /// Parameters that both the first and the last stage have.
    fn shared_by_stages(&self) -> Vec<String> {
        Vec::new()
    }

    /// A stage on parameters made from [`FoundationFamily::stage_specs`], or more.
    fn build_stage(&self, _stage: &Stage, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel> {
        self.build(params, policy)
    }

    /// Returns whether `ranks` ranks can share the tokens of a row: micro-batches come with a [`MicroBatch::row`] then.
    ///
    /// # Errors
    /// They cannot.
    fn check_context(&self, ranks: usize, _attention: ContextAttention) -> Result<(), NotSplit> {
        if ranks == 1 { Ok(()) } else { Err(NotSplit::Model) }
    }

    /// Returns what of it cannot compute a row in pieces, so that [`FoundationModel::pieces`] refuses; `None`: nothing
    /// is known.
    fn needs_whole_rows(&self) -> Option<&'static str> {
        None
    }

    /// Returns whether it has experts, which ranks may share.
    fn has_experts(&self) -> bool {
        false
    }
}

/// A model that turns media items into features.
pub trait EncoderModel {
    /// Records the encoding of items of these sizes, all in one batch.
    fn record(&self, grids: &[Grid]) -> EncoderTape;
}

/// A function that records is a model.
impl<F: Fn(&[Grid]) -> EncoderTape> EncoderModel for F {
    fn record(&self, grids: &[Grid]) -> EncoderTape {
        self(grids)
    }
}

/// A recorded encoder batch.
pub struct EncoderTape {
    pub tape: Rc<Tape>,
    /// Input `[patches, patch_dim]`, items end to end.
    pub pixels: Slot,
    /// `features [N, dim]`, then one such slot per DeepStack level. Kept slots.
    pub outputs: Vec<Slot>,
}

/// A model that turns tokens and features into a loss.
pub trait FoundationModel {
    /// Tensors in an activation: 1 + the number of DeepStack levels; 0 for a model without encoder.
    fn num_feature_tensors(&self) -> usize;

    /// Columns of each of these tensors.
    fn feature_dim(&self) -> i64;

    /// Records forward and loss of one micro-batch.
    fn record(&self, batch: &MicroBatch) -> FoundationTape;

    /// The tokens that features replace, in the features' order. Only a model whose rows ranks may share need say.
    fn feature_rows(&self, _batch: &MicroBatch) -> Vec<i64> {
        Vec::new()
    }

    /// The pieces of a row, of `chunk_tokens` tokens each.
    ///
    /// # Errors
    /// What of the model needs whole rows.
    fn pieces(&self, _batch: &MicroBatch, _chunk_tokens: usize) -> Result<Vec<MicroBatch>, &'static str> {
        Err("this model")
    }

    /// The sets of experts, of which a tape's [`Routing`] may have some or all.
    fn expert_sets(&self) -> Vec<ExpertSet> {
        Vec::new()
    }

    /// Continues each document of the batch greedily; one list of tokens for each. `None`: the model cannot, or not this part
    /// of it.
    fn generate(&self, _batch: &MicroBatch, _features: &[Tensor], _decoding: &Decoding) -> Option<Vec<Vec<i64>>> {
        None
    }

    /// By how much a step moves the balancing biases of routers; 0: they stay.
    fn bias_update_rate(&self) -> f64 {
        0.0
    }
}

/// Packed samples of one micro-batch, `T` tokens in all.
pub struct MicroBatch {
    /// `[T]`, i64.
    pub input_ids: Tensor,
    /// `[3, T]`, i64; restart with each sample.
    pub position_ids: Tensor,
    /// `[T]`, i64: the token to predict at each position, or -100.
    pub targets: Tensor,
    /// Tells where samples begin, and `T` at the end.
    pub cu_seqlens: Vec<usize>,
    /// Factor of the summed loss: one over the target tokens of the whole step.
    pub loss_scale: f64,
    /// Rows of features, over all items.
    pub num_features: i64,
    /// True if the encoder wants gradients.
    pub feature_grads: bool,
    /// The share of a row, where these are some tokens of a row that other ranks share.
    pub row: Option<Rc<RowShare>>,
    /// For such tokens: which of the whole row's features are theirs, in their order.
    pub shared_features: Vec<i64>,
    /// For a piece of a longer row: how many tokens of its first document came in earlier pieces.
    pub past: Option<usize>,
    /// Forward only: the tape is to end with [`FoundationTape::predicted`], and with the sum of the targets' cross-entropies
    /// alone for its loss.
    pub evaluates: bool,
}

impl MicroBatch {
    /// This rank's tokens of a whole row, with places for `features` of its features.
    pub fn share(&self, row: Rc<RowShare>, features: Vec<i64>) -> MicroBatch {
        let rows = row.rows();
        let take = |x: &Tensor| x.index_select(-1, &rows.to_device(x.device()));
        MicroBatch {
            input_ids: take(&self.input_ids),
            position_ids: take(&self.position_ids),
            targets: take(&self.targets),
            cu_seqlens: row.split().cu_seqlens(row.rank()),
            num_features: features.len() as i64,
            row: Some(row),
            shared_features: features,
            ..*self
        }
    }

    /// One token without a target: what a rank computes to take part where others have one micro-batch more.
    pub fn filler(device: Device) -> MicroBatch {
        let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Int64, device));
        MicroBatch {
            input_ids: zeros(&[1]),
            position_ids: zeros(&[3, 1]),
            targets: Tensor::full([1], -100, (Kind::Int64, device)),
            cu_seqlens: vec![0, 1],
            loss_scale: 0.0,
            num_features: 0,
            feature_grads: false,
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates: false,
        }
    }

    /// The row cut after every `chunk_tokens` tokens. `counts` tells how many features lie in a range of tokens.
    pub fn pieces(&self, chunk_tokens: usize, counts: impl Fn(&[i64]) -> i64) -> Vec<MicroBatch> {
        let (len, ids) = (self.input_ids.numel(), self.input_ids());
        let piece = |start: usize| {
            let end = len.min(start + chunk_tokens);
            // The last document that begins at or before the cut.
            let first = self.cu_seqlens.iter().rposition(|begin| *begin <= start).unwrap_or(0);
            let ends = self.cu_seqlens.iter().filter(|&&at| at > start && at < end).map(|at| at - start);
            let cut = |x: &Tensor, dim: i64| x.narrow(dim, start as i64, (end - start) as i64);
            MicroBatch {
                input_ids: cut(&self.input_ids, 0),
                position_ids: cut(&self.position_ids, 1),
                targets: cut(&self.targets, 0),
                cu_seqlens: std::iter::once(0).chain(ends).chain([end - start]).collect(),
                num_features: counts(&ids[start..end]),
                row: None,
                shared_features: Vec::new(),
                past: Some(start - self.cu_seqlens[first]),
                ..*self
            }
        };
        (0..len).step_by(chunk_tokens).map(piece).collect()
    }

    /// The tokens on the host.
    pub fn input_ids(&self) -> Vec<i64> {
        host(&self.input_ids)
    }

    /// The targets on the host.
    pub fn targets(&self) -> Vec<i64> {
        host(&self.targets)
    }
}

fn host(tensor: &Tensor) -> Vec<i64> {
    Vec::try_from(tensor).expect("a row of integers")
}

/// A recorded micro-batch.
pub struct FoundationTape {
    pub tape: Rc<Tape>,
    /// Inputs `[num_features, dim]`, one per feature tensor; empty where the batch has no items.
    pub features: Vec<Slot>,
    /// Scalar: the sum of the token losses times `loss_scale`, and other losses where the model has such. A kept slot;
    /// only of a stage of a pipeline that is not the last it is `None`.
    pub loss: Option<Slot>,
    /// For an evaluation: the token with the highest score at each counted target, `[L]`, int64, in a kept slot; `None`
    /// where the model does not say.
    pub predicted: Option<Slot>,
    /// Holds what the stage before sends: inputs. Empty without a pipeline.
    pub inbound: Vec<Boundary>,
    /// Holds what the stage behind takes, in kept slots.
    pub outbound: Vec<Boundary>,
    /// The keys and values of a piece of a row, one for each layer.
    pub key_values: Vec<KeyValues>,
    /// The routing of a mixture of experts.
    pub routing: Option<Routing>,
}
