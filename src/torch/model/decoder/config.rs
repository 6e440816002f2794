//! A decoder as data.

use super::names::Names;
use super::neftune::Neftune;
use super::sees::Sees;
use crate::model::objective::Smoothing;
use crate::nn::moe::MoeConfig;
use crate::nn::{
    Activation, AttentionConfig, CompressedConfig, GatedDeltaConfig, IndexerTraining, KeyChoice, MlaConfig, NormConfig,
    RopeConfig, StreamsConfig,
};
use crate::params::ParallelRank;
use loongforge_core::config::LossWeighting;

/// Every number and choice of a decoder, whatever its family.
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// Tokens of the vocabulary, of which the first is `first_token`: not 0 where ranks have parts of it.
    pub vocab_size: i64,
    pub first_token: i64,
    pub hidden_size: i64,
    /// Multiplies the embeddings of tokens, rounded to their kind (Gemma); features that replace some are as they come.
    pub embedding_scale: Option<f64>,
    /// The norm after the last layer, and the norms of prediction heads.
    pub norm: NormConfig,
    pub layers: Vec<LayerConfig>,
    /// The streams that the residual is made of (hyper-connections); `None`: one, to which branches add.
    pub streams: Option<StreamsConfig>,
    /// The tokens that see tokens behind them.
    pub sees: Sees,
    pub tie_word_embeddings: bool,
    /// True if the head has a bias.
    pub head_bias: bool,
    /// Scores s of the vocabulary become `cap · tanh(s / cap)` (Gemma 2); `None`: they stay as they are.
    pub final_soft_cap: Option<f64>,
    /// Divides the scores of the vocabulary, before the cap (Granite); `None`: they stay as they are.
    pub score_divisor: Option<f64>,
    /// The token whose embedding gets no gradient.
    pub pad_token_id: Option<i64>,
    pub initializer_range: f64,
    pub balance: Balance,
    /// Weight of the mean over tokens of the indexers' losses, summed over layers.
    pub indexer_loss_coef: f64,
    /// The smoothing of the labels of trained tokens, those of prediction heads too; `None`: labels are not smoothed.
    pub smoothing: Option<Smoothing>,
    /// The weighting of the targets of a sample, those of prediction heads too.
    pub weighting: LossWeighting,
    /// The noise of embeddings in training; `None`: there is none.
    pub neftune: Option<Neftune>,
    pub names: Names,
    /// The names of prediction heads in the family's checkpoints; `None` where they have none.
    pub mtp_names: Option<MtpNames>,
    /// The heads that are trained; the readers of configs leave them out.
    pub mtp: Option<MtpConfig>,
    /// The rank whose part of a decoder this is.
    pub parallel: ParallelRank,
}

/// One layer: a mixer and a feed-forward, each behind a norm and beside a residual.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerConfig {
    pub mixer: MixerConfig,
    pub feed_forward: FeedForwardConfig,
    /// The activation of the feed-forward, experts included.
    pub act: Activation,
    /// All norms of the layer.
    pub norm: NormConfig,
    /// True if the inputs of both branches are normed: all but OLMo 2.
    pub norms_inputs: bool,
    /// Names of the norms of both branches' outputs, before the residual is added (Gemma 2); `None`: there are none.
    pub output_norms: Option<[&'static str; 2]>,
    /// Multiplies the outputs of both branches, behind these norms, before the residual is added (Granite); `None`: they are added as
    /// they come.
    pub output_scale: Option<f64>,
    pub rope: RopeConfig,
}

#[derive(Clone, Debug, PartialEq)]
pub enum MixerConfig {
    Attention(AttentionConfig),
    Mla(MlaConfig),
    GatedDelta(GatedDeltaConfig),
    Compressed(CompressedConfig),
}

impl From<AttentionConfig> for MixerConfig {
    fn from(attention: AttentionConfig) -> MixerConfig {
        MixerConfig::Attention(attention)
    }
}

impl From<MlaConfig> for MixerConfig {
    fn from(mla: MlaConfig) -> MixerConfig {
        MixerConfig::Mla(mla)
    }
}

#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "one a layer")]
pub enum FeedForwardConfig {
    /// A gated one of this inner width, with biases or not.
    Dense {
        intermediate_size: i64,
        bias: bool,
    },
    Moe(MoeConfig),
}

/// The weights of the losses and the rate of the bias that keep the loads of experts even; nothing is done where all are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Balance {
    /// Weight of the load-balancing loss over all layers (`router_aux_loss_coef`).
    pub aux_loss_coef: f64,
    /// Weight of the sum over layers of the router z-losses.
    pub z_loss_coef: f64,
    /// The number that a step adds to the balancing bias of an expert, or subtracts from it.
    pub bias_update_rate: f64,
}

impl DecoderConfig {
    /// Returns whether a token's position has three axes: frame, row and column.
    pub fn has_three_axes(&self) -> bool {
        self.all_layers().any(|layer| layer.rope.has_three_axes())
    }

    /// Returns whether some rotary embeddings depend on a document's length.
    pub fn depends_on_length(&self) -> bool {
        self.all_layers().any(|layer| layer.rope.depends_on_length())
    }

    /// Returns the layers, and that of the prediction heads.
    pub fn all_layers(&self) -> impl Iterator<Item = &LayerConfig> {
        self.layers.iter().chain(self.mtp.iter().map(|mtp| &mtp.layer))
    }

    /// Works like `all_layers`, to change them.
    pub fn all_layers_mut(&mut self) -> impl Iterator<Item = &mut LayerConfig> {
        self.layers.iter_mut().chain(self.mtp.iter_mut().map(|mtp| &mut mtp.layer))
    }

    /// Returns the same decoder with this norm everywhere.
    #[must_use]
    pub(in crate::model) fn with_norm(mut self, norm: NormConfig) -> DecoderConfig {
        self.all_layers_mut().for_each(|layer| layer.norm = norm);
        DecoderConfig { norm, ..self }
    }

    /// Returns the different rotary embeddings of its layers, in the order of their first layers.
    pub(super) fn ropes(&self) -> Vec<&RopeConfig> {
        let mut ropes: Vec<&RopeConfig> = Vec::new();
        for layer in self.all_layers() {
            if !ropes.contains(&&layer.rope) {
                ropes.push(&layer.rope);
            }
        }
        ropes
    }

    /// Returns the gated delta nets of its layers, which are all alike.
    pub fn gated_delta(&self) -> Option<&GatedDeltaConfig> {
        self.layers.iter().find_map(|layer| match &layer.mixer {
            MixerConfig::GatedDelta(config) => Some(config),
            _ => None,
        })
    }

    /// Returns the number of layers that features of DeepStack levels can be added to: none where the residual is several streams.
    pub fn num_deepstack_layers(&self) -> usize {
        if self.streams.is_some() { 0 } else { self.num_layers() }
    }

    /// Returns the number of layers without prediction heads.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Trains `num_heads` prediction heads as well, each as the last layer. False where the family has none.
    #[must_use]
    pub fn enable_mtp(&mut self, num_heads: usize, loss_weight: f64) -> bool {
        let (Some(names), Some(last)) = (self.mtp_names.clone(), self.layers.last()) else { return false };
        let layer = names.layer.as_deref().unwrap_or(last).clone();
        if num_heads > 1 && matches!(names.heads, MtpPlace::Single(_)) {
            return false;
        }
        self.mtp = (num_heads > 0).then_some(MtpConfig { names, layer, num_heads, loss_weight });
        true
    }

    /// Trains the indexers of sparse attention, from the keys that they choose or, `dense`, from all keys, which they
    /// then do not choose from; their losses have this weight. False where there are none.
    #[must_use]
    pub fn train_indexers(&mut self, loss_coef: f64, dense: bool) -> bool {
        let training = if dense { IndexerTraining::Dense } else { IndexerTraining::Sparse };
        let mut found = false;
        for layer in self.all_layers_mut() {
            if let MixerConfig::Mla(MlaConfig { keys: KeyChoice::Indexed { indexer, .. }, .. }) = &mut layer.mixer {
                (indexer.training, found) = (training, true);
            }
        }
        self.indexer_loss_coef = loss_coef;
        found
    }

    /// Returns the prefix of layer `number`'s names.
    pub(in crate::model) fn layer_prefix(&self, number: usize) -> String {
        format!("{}.{number}.", self.names.layers)
    }

    /// Returns the name of the embedding's table.
    pub(super) fn embedding_weight(&self) -> String {
        format!("{}.weight", self.names.embed)
    }

    /// Returns the name of the head's weight, which is the embedding's where they are tied.
    pub(super) fn head_weight(&self) -> String {
        let module = if self.tie_word_embeddings { &self.names.embed } else { &self.names.head };
        format!("{module}.weight")
    }

    pub(super) fn head_bias_name(&self) -> String {
        format!("{}.bias", self.names.head)
    }
}

/// Describes how a checkpoint stores its prediction heads. Names are within a head, but the layer's own.
#[derive(Clone, Debug, PartialEq)]
pub struct MtpNames {
    /// The names of the first head; where it is a whole name and no number is to follow, the checkpoint can have one
    /// head only.
    pub heads: MtpPlace,
    pub embedding_norm: &'static str,
    pub hidden_norm: &'static str,
    pub project: MtpProjection,
    pub last_norm: &'static str,
    /// True if the state comes before the embedding in the joined vector.
    pub hidden_first: bool,
    /// The names in checkpoints of the embedding and the head that every prediction head repeats, where they do.
    pub repeats: Option<[&'static str; 2]>,
    /// The layer of a head; `None`: as the decoder's last.
    pub layer: Option<Box<LayerConfig>>,
}

/// The maps by which a head joins the embedding of a token with the state before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MtpProjection {
    /// One map of both, end to end.
    Joined(&'static str),
    /// A map of each, whose outputs are added (DeepSeek-V4): the state is that of every stream before the last mix.
    Apart([&'static str; 2]),
}

/// Says where the heads stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MtpPlace {
    /// `{0}.{number}.`, counting from this number, the layer's tensors beside the head's own.
    Numbered(String, usize),
    /// The head's own tensors under `{0}.`, its layer under `{0}.layers.0.`
    Single(String),
}

/// The prediction heads of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct MtpConfig {
    pub names: MtpNames,
    /// The layer of every head.
    pub layer: LayerConfig,
    pub num_heads: usize,
    /// Each head's loss counts this much, divided by the number of heads.
    pub loss_weight: f64,
}
