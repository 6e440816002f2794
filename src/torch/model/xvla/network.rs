//! A policy on its parameters.
//!
//! Shapes: R rows, N samples, D width of the encoder of language, W of the transformer.

use tch::{Device, Kind, Tensor};

use super::actions::{self, ActionDecoder, ActionEncoder};
use super::block::{self, Block, linear_specs};
use super::config::XvlaConfig;
use super::domain::DomainLinear;
use super::layout::Layout;
use crate::model::bart::{Encoder, Tokens};
use crate::model::tower_blocks::Part;
use crate::native::embedding;
use crate::nn::{Linear, take_rows};
use crate::params::{Init, ParamSpec, ParamStore, Scope, StoredTensor};
use crate::tape::Policy;

/// The maps of what the encoder has made, and of other pictures.
const MAPS: [&str; 2] = ["vlm_proj", "aux_visual_proj"];
/// The table of tokens, and its other name, both in Florence-2's language model.
const TABLE: [&str; 2] = ["encoder.embed_tokens.weight", "shared.weight"];
const POSITIONS: &str = "pos_emb";
const PROMPTS: &str = "soft_prompt_hub";

/// A map to the width of the transformer.
pub(super) enum Map {
    Shared(Linear),
    OfDomain(DomainLinear),
}

/// Prompts that are learned for each domain.
pub(super) struct Prompts {
    table: Tensor,
    width: i64,
}

/// The transformer's positions.
pub(super) struct Positions(Tensor);

/// A policy on its parameters.
pub(in crate::model) struct Network {
    pub(super) config: XvlaConfig,
    pub(super) tokens: Part<Tokens>,
    pub(super) language: Encoder,
    pub(super) maps: [Part<Map>; 2],
    pub(super) encoder: Part<ActionEncoder>,
    /// `None` where domains have none.
    pub(super) prompts: Option<Part<Prompts>>,
    pub(super) positions: Part<Positions>,
    pub(super) blocks: Vec<Block>,
    pub(super) decoder: Part<ActionDecoder>,
    pub(super) policy: Policy,
    pub(super) device: Device,
    pub(super) kind: Kind,
}

/// Returns all parameters of a policy.
pub(super) fn specs(config: &XvlaConfig) -> Vec<ParamSpec> {
    let (prefix, width, inputs) = (config.transformer_prefix(), config.width, config.language.width);
    let map = |name: &str| match config.domain_maps {
        true => DomainLinear::specs(&prefix, name, inputs, width, config.num_domains),
        false => linear_specs(&prefix, name, inputs, width),
    };
    let table = |name: &str, shape: &[i64]| ParamSpec::new(format!("{prefix}{name}"), shape, Init::Normal(0.02));
    let mut specs = config.of_language(language_specs(config));
    let mut own: Vec<ParamSpec> = MAPS.iter().flat_map(|name| map(name)).collect();
    own.push(table(POSITIONS, &[1, config.max_rows, width]));
    specs.extend(config.of_transformer(own));
    if config.num_prompts > 0 {
        let prompts = table(&format!("{PROMPTS}.weight"), &[config.num_domains, config.num_prompts * width]);
        specs.push(if config.frozen.prompts { prompts.frozen() } else { prompts });
    }
    specs.extend((0..config.depth).flat_map(|number| block::specs(config, number)));
    specs.extend(actions::specs(config));
    specs
}

/// Returns the parameters of the encoder of language.
fn language_specs(config: &XvlaConfig) -> Vec<ParamSpec> {
    let table = Tokens::spec(&config.language, TABLE[0]);
    // The reference stores the table twice, or once under either name.
    let shared = StoredTensor::repeated(&format!("{}{}", config.language.prefix, TABLE[1]), &table.shape);
    let pieces = [table.pieces.clone(), vec![shared]].concat();
    std::iter::once(table.stored_as(pieces)).chain(Encoder::specs(&config.language)).collect()
}

impl Network {
    /// Panics where the store lacks one of the parameters.
    pub fn new(config: &XvlaConfig, params: &ParamStore, policy: Policy) -> Network {
        let (prefix, device) = (config.transformer_prefix(), params.flat().device());
        let prefix = prefix.as_str();
        let map = |name: &str, scope: &Scope<'_>| match config.domain_maps {
            true => Map::OfDomain(DomainLinear::new(scope, name)),
            false => Map::Shared(Linear::new(scope, name)),
        };
        let prompts =
            |scope: &Scope<'_>| Prompts { table: scope.take(&format!("{PROMPTS}.weight")), width: config.width };
        Network {
            tokens: Part::new(params, config.language.prefix.as_str(), |scope| {
                Tokens::new(&config.language, scope, TABLE[0], Some(config.image_token))
            }),
            language: Encoder::new(&config.language, params),
            maps: MAPS.map(|name| Part::new(params, prefix, |scope| map(name, scope))),
            encoder: Part::new(params, prefix, |scope| ActionEncoder::new(config, scope, device)),
            prompts: (config.num_prompts > 0).then(|| Part::new(params, prefix, prompts)),
            positions: Part::new(params, prefix, |scope| Positions(scope.take(POSITIONS))),
            blocks: (0..config.depth).map(|number| Block::new(config, number, params)).collect(),
            decoder: Part::new(params, prefix, |scope| ActionDecoder::new(config, scope)),
            policy,
            device,
            kind: params.flat().kind(),
            config: config.clone(),
        }
    }
}

impl Map {
    /// Maps rows `[R, D]` of samples, `lens` of each, of `domains` `[N]` to `[R, W]`.
    pub fn forward(&self, x_RD: &Tensor, domains: &Tensor, lens: &[i64]) -> Tensor {
        match self {
            Map::Shared(map) => map.forward(x_RD),
            Map::OfDomain(map) => map.forward(x_RD, domains, lens),
        }
    }
}

impl Prompts {
    /// Returns the rows of the prompts of `domains` `[N]`, those of a sample side by side, `[R, W]`.
    pub fn forward(&self, domains: &Tensor) -> Tensor {
        embedding(&self.table, domains, -1).view([-1, self.width])
    }
}

impl Positions {
    /// Returns the transformer's rows `[R, W]` of its `parts`, each `[rows, W]`, in the order of [`Layout::order`].
    pub fn forward(&self, parts: &[&Tensor], layout: &Layout) -> Tensor {
        let table = self.0.squeeze_dim(0).constant_pad_nd([0, 0, 0, 1]);
        take_rows(&Tensor::cat(parts, 0), &layout.order) + take_rows(&table, &layout.positions)
    }
}

/// Returns the rows `rows` of tokens `[T, D]` and of a row of zeros behind them.
pub(super) fn or_zeros(x_TD: &Tensor, rows: &Tensor) -> Tensor {
    take_rows(&x_TD.constant_pad_nd([0, 0, 0, 1]), rows)
}
