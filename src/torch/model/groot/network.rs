//! A policy on its parameters.

use tch::{Device, Kind, Tensor};

use super::backbone::Backbone;
use super::block::{Attend, BlockKind, FeedForward, specs as block_specs};
use super::config::{GrootConfig, of_part};
use super::context::ContextParts;
use super::head::Head;
use super::layout::{Layout, Seen};
use super::rows::Rows;
use super::{backbone, context, head, rows};
use crate::model::batch::MicroBatch;
use crate::model::columns::Columns;
use crate::model::dit::TimeEmbedder;
use crate::model::tower_blocks::Part;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::{Policy, Slot, Tape};

/// A policy on its parameters.
pub(in crate::model) struct Network {
    pub(super) config: GrootConfig,
    /// `None` where states of tokens come as features.
    backbone: Option<Backbone>,
    pub(super) context: ContextParts,
    pub(super) rows: Part<Rows>,
    pub(super) condition: Part<TimeEmbedder>,
    pub(super) layers: Vec<Layer>,
    pub(super) head: Part<Head>,
    pub(super) policy: Policy,
    pub(super) device: Device,
    pub(super) kind: Kind,
}

/// A layer of the transformer of actions.
pub(super) struct Layer {
    pub sees: Sees,
    pub attend: Part<Attend>,
    pub feed_forward: Part<FeedForward>,
}

/// The keys that the rows of a layer see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sees {
    /// The rows of their draw.
    Rows,
    /// Tokens of text, or of pictures.
    Text,
    Pictures,
}

impl Sees {
    /// Every second layer sees rows; of the others, one in `text_every` sees text.
    fn of(number: i64, text_every: i64) -> Sees {
        match number {
            number if number % 2 == 1 => Sees::Rows,
            number if number % (2 * text_every) == 0 => Sees::Text,
            _ => Sees::Pictures,
        }
    }

    /// Returns the tokens that rows see, where they do not see each other.
    pub fn tokens(self, at: &Layout) -> Option<&Seen> {
        match self {
            Sees::Rows => None,
            Sees::Text => Some(&at.text),
            Sees::Pictures => Some(&at.pictures),
        }
    }
}

fn block_kind(config: &GrootConfig, sees: Sees) -> BlockKind {
    let keys = if sees == Sees::Rows { config.actions.width() } else { config.backbone.hidden_size };
    BlockKind { adaptive: true, keys }
}

fn layers(config: &GrootConfig) -> impl Iterator<Item = (i64, String, Sees)> {
    let prefix = format!("{}model.transformer_blocks.", config.head_prefix());
    let text_every = config.text_every;
    (0..config.actions.num_layers).map(move |at| (at, format!("{prefix}{at}."), Sees::of(at, text_every)))
}

/// Returns all parameters.
pub(super) fn specs(config: &GrootConfig) -> Vec<ParamSpec> {
    let layers = layers(config)
        .flat_map(|(_, prefix, sees)| block_specs(&prefix, &config.actions, block_kind(config, sees)))
        .collect();
    let mut specs = if config.split { Vec::new() } else { backbone::specs(config) };
    specs.extend(context::specs(config));
    specs.extend(rows::specs(config));
    specs.extend(of_part(config.tuned.diffusion_model, layers));
    specs.extend(head::specs(config));
    specs
}

impl Network {
    /// Panics where the store lacks one of the policy's parameters.
    pub fn new(config: &GrootConfig, params: &ParamStore, policy: Policy) -> Network {
        let sizes = &config.actions;
        let layer = |(at, prefix, sees): (i64, String, Sees)| {
            // Behind those of the layers over tokens, for dropout.
            let number = (config.context.num_layers + at) as u64;
            let kind = block_kind(config, sees);
            Layer {
                sees,
                attend: Part::new(params, prefix.as_str(), |scope| Attend::new(scope, sizes, kind, number)),
                feed_forward: Part::new(params, prefix, |scope| FeedForward::new(scope, sizes, kind, number)),
            }
        };
        Network {
            backbone: (!config.split).then(|| Backbone::new(config, params)),
            context: ContextParts::new(config, params),
            rows: Rows::part(config, params),
            condition: Rows::condition_part(config, params),
            layers: layers(config).map(layer).collect(),
            head: Head::part(config, params),
            policy,
            device: params.flat().device(),
            kind: params.flat().kind(),
            config: config.clone(),
        }
    }

    /// Records the states `[T, D]` of a batch's tokens. Returns the slots of features as well.
    pub(super) fn record_states(&self, tape: &mut Tape, batch: &MicroBatch) -> (Vec<Slot>, Slot) {
        match (&self.backbone, batch.has_features(0)) {
            (Some(backbone), _) => backbone.record(tape, batch, self.policy),
            (None, true) => {
                let states = tape.input(batch.feature_grads);
                (vec![states], states)
            }
            (None, false) => {
                let none = self.no_states(batch.num_tokens());
                let states = tape.run("no states", &[], Policy::Keep, &[], 1, move |_| vec![none.shallow_clone()])[0];
                (Vec::new(), states)
            }
        }
    }

    /// Returns the same states at once, without gradients; features are `[N, D]`.
    pub(super) fn states(&self, columns: &Columns, cu_seqlens: &[usize], features: &[Tensor]) -> Tensor {
        match (&self.backbone, features.first()) {
            (Some(backbone), _) => backbone.forward(columns, cu_seqlens, features),
            (None, Some(states)) => states.to_device(self.device).to_kind(self.kind),
            (None, None) => self.no_states(cu_seqlens.last().map_or(0, |end| *end as i64)),
        }
    }

    /// Returns what stands for the states of so many tokens whose features nobody has made, `[T, D]`.
    fn no_states(&self, num_tokens: i64) -> Tensor {
        Tensor::zeros([num_tokens, self.config.backbone.hidden_size], (self.kind, self.device))
    }
}

impl Layer {
    /// Maps rows `[S·L, D]` to the attention branch; `tokens` `[N, D']` are those of the kind that it sees, where it sees tokens.
    pub fn attended(
        (attend, sees): (&Attend, Sees),
        x: &Tensor,
        condition: &Tensor,
        tokens: Option<&Tensor>,
        at: &Layout,
    ) -> Tensor {
        let attended = |[q, k, v]: [Tensor; 3]| match sees.tokens(at) {
            Some(seen) => seen.attend([q, k, v]),
            None => at.rows.forward(&q, &k, &v),
        };
        attend.forward(x, Some(condition), tokens, attended, &at.dropout[1])
    }
}
