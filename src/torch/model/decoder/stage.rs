//! The tensors that go from one stage of a decoder's layers to the next, and the check of the stages that a decoder may have.
//!
//! The first stage has the embedding and takes the features, the last one the norm, the head, the loss and the prediction
//! heads. Where the table of the embedding is the head's too, or prediction heads look tokens up, the last stage has it as
//! well, and whoever trains sums both gradients. Everything that a later stage needs goes through those between: the
//! hidden states, features of DeepStack for later layers, and what the losses of routers and mixers are made of.

use loongforge_core::config::LossWeighting;
use tch::Kind;

use super::config::{DecoderConfig, FeedForwardConfig, LayerConfig, MixerConfig};
use super::recording::{RouterSums, Wanted};
use super::sees::Sees;
use crate::model::stage::{Stage, StageError};
use crate::nn::{IndexerTraining, KeyChoice, MlaConfig};
use crate::tape::{Boundary, Slot};

impl Stage {
    /// Checks that the layers of this stage need nothing that another stage computes besides the hidden states.
    ///
    /// # Errors
    /// A layer needs the keys that a layer of another stage chooses.
    pub fn check(&self, config: &DecoderConfig) -> Result<(), StageError> {
        for layer in self.layers.clone() {
            if let MixerConfig::Mla(MlaConfig { keys: KeyChoice::Shared { layer: from }, .. }) =
                config.layers[layer].mixer
                && !self.layers.contains(&from)
            {
                return Err(StageError::ChosenElsewhere { layer, from });
            }
        }
        Ok(())
    }

    /// Returns whether the stage has the embedding's table.
    pub(super) fn has_embedding(&self, config: &DecoderConfig) -> bool {
        self.is_first || (self.is_last && (config.tie_word_embeddings || config.mtp.is_some()))
    }
}

/// The tensors that a stage hands on, or takes, besides the hidden states: which of them there are is the same on both sides.
pub(super) struct Carried {
    /// The levels of DeepStack for layers from this stage on, by input.
    pub deep: Vec<Vec<Slot>>,
    pub routers: RouterSums,
    /// The sum of the mixers' losses.
    pub mixers: Option<Slot>,
}

/// The boundary before a layer, without its slots: the shape, kind and need of a gradient of each tensor.
pub(super) struct Crossing {
    pub num_tokens: i64,
    /// The number of rows of features, and of levels of DeepStack that layers from here on add, by input.
    pub features: Vec<(i64, usize)>,
    pub train_features: bool,
    pub wanted: Wanted,
    pub kind: Kind,
}

impl Crossing {
    /// Returns the tensors that cross the boundary, in order: hidden states, DeepStack, choices, probabilities, z, mixers.
    pub fn tensors(&self, config: &DecoderConfig) -> Vec<(Vec<i64>, Kind, bool)> {
        let width = config.hidden_size;
        let mut tensors = vec![(vec![self.num_tokens, config.residual_width()], self.kind, true)];
        for &(rows, num_deep) in &self.features {
            tensors.extend((0..num_deep).map(|_| (vec![rows, width], self.kind, self.train_features)));
        }
        if let Some(experts) = config.num_experts().filter(|_| self.wanted.aux) {
            tensors.push((vec![experts], Kind::Float, false));
            tensors.push((vec![experts], Kind::Float, true));
        }
        if config.num_experts().is_some() && self.wanted.z {
            tensors.push((vec![], Kind::Float, true));
        }
        if config.has_mixer_losses() {
            tensors.push((vec![], Kind::Float, true));
        }
        tensors
    }

    /// Reads slots in the order of `tensors` back: hidden states, and the rest.
    pub fn read(&self, config: &DecoderConfig, slots: &[Slot]) -> (Slot, Carried) {
        let mut slots = slots.iter().copied();
        let mut next = || slots.next().expect("a slot for each tensor");
        let hidden = next();
        let deep = self.features.iter().map(|(_, num_deep)| (0..*num_deep).map(|_| next()).collect()).collect();
        let has_experts = config.num_experts().is_some();
        let choices = (has_experts && self.wanted.aux).then(|| [next(), next()]);
        let z = (has_experts && self.wanted.z).then(&mut next);
        let mixers = config.has_mixer_losses().then(&mut next);
        (hidden, Carried { deep, routers: RouterSums { choices, z }, mixers })
    }

    /// Returns the slots of what crosses, with their shapes.
    pub fn boundaries(&self, config: &DecoderConfig, slots: &[Slot]) -> Vec<Boundary> {
        let tensors = self.tensors(config);
        assert_eq!(tensors.len(), slots.len(), "a slot for each tensor that crosses");
        let boundary = |((shape, kind, requires_grad), slot): ((Vec<i64>, Kind, bool), &Slot)| Boundary {
            slot: *slot,
            shape,
            kind,
            requires_grad,
        };
        tensors.into_iter().zip(slots).map(boundary).collect()
    }
}

impl DecoderConfig {
    /// Returns the part of this decoder that cannot compute a row in pieces; `None`: it can.
    pub fn needs_whole_rows(&self) -> Option<&'static str> {
        let attends = |layer: &LayerConfig| matches!(layer.mixer, MixerConfig::Attention(_));
        let window = |layer: &LayerConfig| matches!(&layer.mixer, MixerConfig::Attention(of) if of.window.is_some());
        let balance = &self.balance;
        match () {
            () if !self.layers.iter().all(attends) => Some("layers that are not self-attention"),
            () if self.layers.iter().any(window) => Some("a sliding window"),
            () if self.sees != Sees::Back => Some("pictures or prompts whose tokens attend to later tokens"),
            () if self.depends_on_length() => Some("rotary embeddings that depend on a document's length"),
            () if self.mtp.is_some() => Some("prediction heads"),
            () if self.neftune.is_some() => Some("train.neftune_alpha"),
            () if self.weighting != LossWeighting::Token => Some("train.loss_weighting"),
            () if balance.aux_loss_coef != 0.0 => Some("a load-balancing loss"),
            () if balance.z_loss_coef != 0.0 => Some("a router z-loss"),
            () => None,
        }
    }

    /// Returns the number of experts of its routers, which are as many in every layer; `None` of a dense model.
    pub fn num_experts(&self) -> Option<i64> {
        self.layers.iter().find_map(|layer| match &layer.feed_forward {
            FeedForwardConfig::Moe(moe) => Some(moe.router.num_experts),
            FeedForwardConfig::Dense { .. } => None,
        })
    }

    /// Returns the number of experts of all layers together.
    pub fn num_all_experts(&self) -> i64 {
        let of = |layer: &LayerConfig| match &layer.feed_forward {
            FeedForwardConfig::Moe(moe) => moe.router.num_experts,
            FeedForwardConfig::Dense { .. } => 0,
        };
        self.layers.iter().map(of).fold(0, i64::saturating_add)
    }

    /// Returns the number of layers with routers that choose.
    pub(super) fn num_routed_layers(&self) -> usize {
        let chooses = |layer: &&LayerConfig| match &layer.feed_forward {
            FeedForwardConfig::Moe(moe) => moe.router.by_token.is_none(),
            FeedForwardConfig::Dense { .. } => false,
        };
        self.layers.iter().filter(chooses).count()
    }

    /// Returns whether some routers look their experts up by token.
    pub(super) fn routes_by_token(&self) -> bool {
        let looks_up = |layer: &LayerConfig| match &layer.feed_forward {
            FeedForwardConfig::Moe(moe) => moe.router.by_token.is_some(),
            FeedForwardConfig::Dense { .. } => false,
        };
        self.all_layers().any(looks_up)
    }

    /// Returns whether a mixer has a loss of its own: that of an indexer that is trained.
    pub(super) fn has_mixer_losses(&self) -> bool {
        self.layers.iter().any(|layer| match &layer.mixer {
            MixerConfig::Mla(MlaConfig { keys: KeyChoice::Indexed { indexer, .. }, .. }) => {
                indexer.training != IndexerTraining::Frozen
            }
            _ => false,
        })
    }
}
