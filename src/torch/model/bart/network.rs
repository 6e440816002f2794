//! An encoder and a decoder of language on their parameters.

use tch::{Device, Kind};

use super::config::EncoderDecoderConfig;
use super::decoder::Decoder;
use super::encoder::Encoder;
use super::layer::Tokens;
use crate::model::objective::CrossEntropy;
use crate::model::tower_blocks::Part;
use crate::params::{ParallelRank, ParamSpec, ParamStore};
use crate::tape::Policy;

/// The table of tokens, which is the head as well.
const TABLE: &str = "shared.weight";

/// An encoder and a decoder of language on their parameters.
pub struct EncoderDecoder {
    pub(super) config: EncoderDecoderConfig,
    pub(super) tokens: Part<Tokens>,
    pub(super) encoder: Encoder,
    pub(super) decoder: Decoder,
    pub(super) policy: Policy,
    pub(super) device: Device,
    pub(super) kind: Kind,
}

impl EncoderDecoderConfig {
    /// Files call the head's module so, whose weight is the table's.
    pub const HEAD: &'static str = "lm_head";

    /// Returns all parameters.
    pub fn specs(&self) -> Vec<ParamSpec> {
        let mut specs = vec![Tokens::spec(&self.bart, TABLE)];
        specs.extend(Encoder::specs(&self.bart));
        specs.extend(Decoder::specs(&self.bart, &self.decoder));
        specs
    }

    /// Returns the name of the table's module.
    pub fn table(&self) -> String {
        format!("{}shared", self.bart.prefix)
    }
}

impl EncoderDecoder {
    /// Panics where the store lacks one of the parameters.
    pub fn new(config: &EncoderDecoderConfig, params: &ParamStore, policy: Policy) -> EncoderDecoder {
        let bart = &config.bart;
        EncoderDecoder {
            tokens: Part::new(params, bart.prefix.as_str(), |scope| {
                // The token of pictures has a row of its own, which an answer may have; of prompts features replace it.
                Tokens::new(bart, scope, TABLE, None)
            }),
            encoder: Encoder::new(bart, params),
            decoder: Decoder::new(bart, &config.decoder, params),
            policy,
            device: params.flat().device(),
            kind: params.flat().kind(),
            config: config.clone(),
        }
    }

    /// Returns the config that the network is made from.
    pub fn config(&self) -> &EncoderDecoderConfig {
        &self.config
    }

    /// Returns the objective, whose head is the table.
    pub(super) fn cross_entropy(&self) -> CrossEntropy {
        CrossEntropy {
            head: self.tokens.part.table().shallow_clone(),
            bias: None,
            ids: self.tokens.ids.clone(),
            first_token: 0,
            divisor: None,
            soft_cap: None,
            smoothing: None,
            parallel: ParallelRank::default(),
            device: self.device,
        }
    }
}
