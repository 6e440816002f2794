//! The interface of a foundation to the engine: its parameters, and recording a tape for a batch. Implement these traits to train a model
//! of your own.

use std::fmt::Debug;
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::config::{ContextAttention, LossWeighting};
use tch::Tensor;

use super::bart::{AnswerTokens, EncoderDecoderConfig};
use super::batch::MicroBatch;
use super::columns::Column;
use super::decoder::DecoderConfig;
use super::decoding::Decoding;
use super::objective::{FlowSettings, Preference};
use super::parallel_errors::{ContextParallelError, TensorParallelError};
use super::policy::{PolicyOptions, RobotPolicy};
use super::routing::{ExpertSet, Routing};
use super::stage::{Stage, StageError};
use super::towers::{FeatureInput, ModelTower, Towers};
use crate::params::{ParallelRank, ParamSpec, ParamStore};
use crate::tape::{Boundary, KeyValues, Policy, Slot, Tape};

/// A kind of foundation.
pub trait FoundationFamily: Debug + Send + Sync {
    /// Returns the foundation's parameters, under their names in `model.safetensors`.
    fn specs(&self) -> Vec<ParamSpec>;

    /// Returns the features that it takes from each tower, in the order in which micro-batches have them; nothing without towers.
    fn inputs(&self) -> &[FeatureInput];

    /// Returns the columns that it reads of each sample, in the order in which data actors send them.
    fn columns(&self) -> Vec<Column>;

    /// Returns the sizes that planning and estimates need.
    fn shape(&self) -> FoundationShape;

    /// Returns the decoder that it is, for what only decoders do: generation, prediction heads, routers' losses. `None`: another kind of
    /// model.
    fn as_decoder(&self) -> Option<&DecoderConfig> {
        None
    }

    /// Returns the encoder and decoder of language that it is; `None`: another kind of model.
    fn as_encoder_decoder(&self) -> Option<&EncoderDecoderConfig> {
        None
    }

    /// Returns the same foundation, which learns from pairs of answers, maybe with the log-probabilities of a reference model; `None`:
    /// another kind of model.
    fn with_preference(&self, _preference: Preference) -> Option<Arc<dyn FoundationFamily>> {
        None
    }

    /// Returns the same foundation with these settings of its loss, where it learns the velocity of noised latents; `None`: another kind
    /// of model.
    fn with_flow(&self, _flow: FlowSettings) -> Option<Arc<dyn FoundationFamily>> {
        None
    }

    /// Returns the same foundation with these settings of a policy's training; `None`: another kind of model.
    fn with_policy(&self, _options: PolicyOptions) -> Option<Arc<dyn FoundationFamily>> {
        None
    }

    /// Returns the same policy without the vision-language model before its actions, and this as a tower in place of `towers`; `None`: it
    /// cannot be split so, or is another kind of model.
    fn with_prefix_tower(&self, _towers: &Towers) -> Option<(Arc<dyn FoundationFamily>, ModelTower)> {
        None
    }

    /// Returns the policy that it is; `None`: another kind of model.
    fn as_policy(&self) -> Option<&dyn RobotPolicy> {
        None
    }

    /// Returns the model on parameters made from [`FoundationFamily::specs`].
    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel>;

    /// Returns the part of the foundation that the rank at `place` computes, where layers or experts are split among ranks: its specs are
    /// the rank's parts of this one's.
    ///
    /// # Errors
    /// It cannot be split so.
    fn divided(&self, _place: &ParallelRank) -> Result<Arc<dyn FoundationFamily>, TensorParallelError> {
        Err(TensorParallelError::Unsupported { what: "this model" })
    }

    /// Returns the number of layers that a pipeline may cut between; 0: it cannot be cut.
    fn num_layers(&self) -> usize {
        0
    }

    /// Checks that a pipeline may have this stage.
    ///
    /// # Errors
    /// Its layers need what others compute.
    fn check_stage(&self, _stage: &Stage) -> Result<(), StageError> {
        Ok(())
    }

    /// Returns the parameters of a stage, under the same names.
    fn stage_specs(&self, _stage: &Stage) -> Vec<ParamSpec> {
        self.specs()
    }

    /// Returns the parameters that both the first and the last stage have.
    fn shared_by_stages(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns a stage on parameters made from [`FoundationFamily::stage_specs`], or more.
    fn build_stage(&self, _stage: &Stage, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel> {
        self.build(params, policy)
    }

    /// Checks that `ranks` ranks can share the tokens of a row: micro-batches come with a [`MicroBatch::row`] then.
    ///
    /// # Errors
    /// They cannot.
    fn check_context(&self, ranks: usize, _attention: ContextAttention) -> Result<(), ContextParallelError> {
        if ranks == 1 { Ok(()) } else { Err(ContextParallelError::Model) }
    }

    /// Returns the part of the model that cannot compute a row in pieces, so that [`FoundationModel::pieces`] refuses; `None`: nothing is
    /// known.
    fn needs_whole_rows(&self) -> Option<&'static str> {
        None
    }

    /// Returns whether it has experts, which ranks may share.
    fn has_experts(&self) -> bool {
        false
    }
}

/// The numbers that the cost of a foundation follows from.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundationShape {
    /// The width of its hidden states.
    pub width: i64,
    /// True if a token sees no later one: half of its sequence on average.
    pub is_causal: bool,
    /// The sum over layers of softmax attention of heads times the widths of queries and values.
    pub attention: f64,
    /// The length of a sample at which attention costs as much as the matrices of a layer.
    pub even_length: i64,
    /// The share of its experts that a token meets; 1 without experts.
    pub expert_share: f64,
    /// The parameters that its tokens are not multiplied with: tables that they are looked up in, and what only rows of text
    /// or noise levels meet.
    pub aside: Vec<String>,
}

impl FoundationShape {
    /// Returns the FLOPs of one token, forward and backward, in sequences of `seq_len`, for a token that is multiplied with so many
    /// parameters.
    pub fn flops_per_token(&self, multiplied: f64, seq_len: usize) -> f64 {
        let of_pairs = if self.is_causal { 3.0 } else { 6.0 };
        6.0 * multiplied + of_pairs * seq_len as f64 * self.attention
    }
}

/// A model that turns tokens and features into a loss.
pub trait FoundationModel {
    /// Returns the family's columns.
    fn columns(&self) -> &Rc<[Column]>;

    /// Returns the features that it takes from each tower, in the order in which micro-batches have them; nothing without towers.
    fn inputs(&self) -> &[FeatureInput];

    /// Records forward and loss of one micro-batch.
    fn record(&self, batch: &MicroBatch) -> FoundationTape;

    /// Returns how much the targets of a sample count in the loss.
    fn weighting(&self) -> LossWeighting {
        LossWeighting::Token
    }

    /// Returns the tokens that features replace, in the features' order, by input. Only a model whose rows ranks may share needs to
    /// implement it.
    fn feature_rows(&self, _batch: &MicroBatch) -> Vec<Vec<i64>> {
        Vec::new()
    }

    /// Returns whether every rank that shares a row takes all of its features, not those of its tokens alone.
    fn needs_all_features(&self) -> bool {
        false
    }

    /// Returns the numbers that the rows which linear maps read here have among those of all ranks `[R]`, int64, where ranks share
    /// tokens: they tell the masks of adapters' dropout. One tensor for each kind of rows; none where all are here.
    fn dropout_rows(&self, _batch: &MicroBatch) -> Vec<Tensor> {
        Vec::new()
    }

    /// Returns the pieces of a row, of `chunk_tokens` tokens each.
    ///
    /// # Errors
    /// A part of the model needs whole rows; it is named.
    fn pieces(&self, _batch: &MicroBatch, _chunk_tokens: usize) -> Result<Vec<MicroBatch>, &'static str> {
        Err("this model")
    }

    /// Returns the sets of experts, of which a tape's [`Routing`] may have some or all.
    fn expert_sets(&self) -> Vec<ExpertSet> {
        Vec::new()
    }

    /// Continues each document of the batch, on the `features` `[N, D]` of its items, by input one tensor for each level; returns one
    /// list of tokens for each document. `None`: the model cannot, or not this part of it.
    fn generate(&self, _batch: &MicroBatch, _features: &[Vec<Tensor>], _decoding: &Decoding) -> Option<Vec<Vec<i64>>> {
        None
    }

    /// Returns the tokens with which answers begin and end where an encoder reads prompts and a decoder writes answers; `None`: tokens
    /// follow those of prompts.
    fn answer_tokens(&self) -> Option<AnswerTokens> {
        None
    }

    /// Records the forward that tells the velocity at noised latents; it has no loss, and gets no backward. Samples may have
    /// their targets among the batch's latents, which are not read. `None`: the model makes no latents.
    fn record_velocity(&self, _batch: &MicroBatch, _at: &Noised) -> Option<VelocityTape> {
        None
    }

    /// Returns the amount by which a step moves the balancing biases of routers; 0: they stay.
    fn bias_update_rate(&self) -> f64 {
        0.0
    }
}

/// Latents on their way from noise to samples.
pub struct Noised {
    /// The noised latents of all samples' targets, end to end: `[T, P]`.
    pub latents: Tensor,
    /// The noise level that the model is told of each sample, in [0, 1].
    pub sigma: Vec<f64>,
    /// The number of the text that each sample is told; one that has fewer is told nothing.
    pub prompt: usize,
}

/// A recorded forward that tells a velocity. Features and boundaries are those of a [`FoundationTape`].
pub struct VelocityTape {
    pub tape: Rc<Tape>,
    pub features: Vec<Vec<Slot>>,
    pub inbound: Vec<Boundary>,
    pub outbound: Vec<Boundary>,
    /// The velocity `[T, P]` of this rank's tokens, in a kept slot; only the last stage has it.
    pub velocity: Option<Slot>,
    /// The places of these tokens among those of all samples, ascending; `None`: all of them.
    pub own: Option<Vec<i64>>,
}

/// A recorded micro-batch.
pub struct FoundationTape {
    pub tape: Rc<Tape>,
    /// The input slots `[num_features, width]` by input, one for each level; empty where the batch has no items for the input.
    pub features: Vec<Vec<Slot>>,
    /// Scalar: the sum of the token losses times `loss_scale`, and other losses where the model has such. A kept slot;
    /// only of a stage of a pipeline that is not the last it is `None`.
    pub loss: Option<Slot>,
    /// The token with the highest score at each counted target of an evaluation, `[L]`, int64, in a kept slot; `None` where the model
    /// does not say.
    pub predicted: Option<Slot>,
    /// The measures of pairs of answers ([`Pairs::loss`](super::objective::Pairs::loss)), in a kept slot; `None` where samples are no
    /// pairs.
    pub measures: Option<Slot>,
    /// The tensors that the stage before sends, which are inputs. Empty without a pipeline.
    pub inbound: Vec<Boundary>,
    /// The tensors that the stage behind takes, in kept slots.
    pub outbound: Vec<Boundary>,
    /// The keys and values of a piece of a row, one for each layer.
    pub key_values: Vec<KeyValues>,
    /// The routing of a mixture of experts.
    pub routing: Option<Routing>,
}

impl FoundationTape {
    /// Returns a whole model's tape that ends in its loss and reads these features, by input. The loss becomes a kept slot.
    pub fn of_loss(mut tape: Tape, features: Vec<Vec<Slot>>, loss: Slot) -> FoundationTape {
        tape.keep(loss);
        FoundationTape {
            tape: Rc::new(tape),
            features,
            loss: Some(loss),
            predicted: None,
            measures: None,
            inbound: Vec::new(),
            outbound: Vec::new(),
            key_values: Vec::new(),
            routing: None,
        }
    }
}
