//! An encoder and a decoder of language as a foundation.

use std::rc::Rc;

use tch::Tensor;

use super::config::{AnswerTokens, EncoderDecoderConfig};
use super::network::EncoderDecoder;
use crate::model::batch::MicroBatch;
use crate::model::columns::{Column, token_columns};
use crate::model::decoder::Prompt;
use crate::model::decoding::{Continued, Decoding};
use crate::model::foundation::{FoundationFamily, FoundationModel, FoundationShape, FoundationTape};
use crate::model::towers::FeatureInput;
use crate::params::{ParamSpec, ParamStore};
use crate::tape::Policy;

/// An encoder and a decoder of language, in whose prompts features replace tokens.
#[derive(Clone, Debug)]
pub struct EncoderDecoderFamily {
    config: EncoderDecoderConfig,
    inputs: Vec<FeatureInput>,
}

impl EncoderDecoderFamily {
    /// Makes a foundation of an encoder and a decoder; it reads features of pictures where the config has a token for them.
    pub fn new(config: EncoderDecoderConfig) -> EncoderDecoderFamily {
        EncoderDecoderFamily { inputs: config.inputs(), config }
    }
}

impl FoundationFamily for EncoderDecoderFamily {
    fn specs(&self) -> Vec<ParamSpec> {
        self.config.specs()
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.inputs
    }

    fn columns(&self) -> Vec<Column> {
        token_columns()
    }

    fn as_encoder_decoder(&self) -> Option<&EncoderDecoderConfig> {
        Some(&self.config)
    }

    /// Returns the sizes of the work on a token of a question, of which samples have the most.
    fn shape(&self) -> FoundationShape {
        let EncoderDecoderConfig { bart, .. } = &self.config;
        let attention = 2 * bart.encoder.num_layers * bart.width;
        let of_encoder = bart.encoder.multiplied(bart.width, 1);
        // Tokens that are asked meet of the decoder the keys and values of what answers attend to.
        let is_met = |name: &str| {
            let [encoder, across] = [bart.encoder_prefix(), ".encoder_attn.".to_owned()];
            name.starts_with(&encoder)
                || name.contains(&across) && (name.contains(".k_proj") || name.contains(".v_proj"))
        };
        let aside = self.specs().into_iter().filter(|spec| !spec.is_linear || !is_met(&spec.name));
        FoundationShape {
            width: bart.width,
            is_causal: false,
            attention: attention as f64,
            even_length: of_encoder / attention.max(1),
            expert_share: 1.0,
            aside: aside.map(|spec| spec.name).collect(),
        }
    }

    fn needs_whole_rows(&self) -> Option<&'static str> {
        Some("an encoder and a decoder of language")
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn FoundationModel> {
        Box::new(EncoderDecoderModel {
            network: EncoderDecoder::new(&self.config, params, policy),
            columns: self.columns().into(),
            inputs: self.inputs.clone(),
        })
    }
}

struct EncoderDecoderModel {
    network: EncoderDecoder,
    columns: Rc<[Column]>,
    inputs: Vec<FeatureInput>,
}

impl FoundationModel for EncoderDecoderModel {
    fn columns(&self) -> &Rc<[Column]> {
        &self.columns
    }

    fn inputs(&self) -> &[FeatureInput] {
        &self.inputs
    }

    fn record(&self, batch: &MicroBatch) -> FoundationTape {
        self.network.record(batch, &self.inputs)
    }

    fn answer_tokens(&self) -> Option<AnswerTokens> {
        Some(self.network.config().answers)
    }

    fn feature_rows(&self, batch: &MicroBatch) -> Vec<Vec<i64>> {
        let ids = batch.input_ids();
        self.inputs.iter().map(|input| input.rows(&ids)).collect()
    }

    fn generate(&self, batch: &MicroBatch, features: &[Vec<Tensor>], decoding: &Decoding) -> Option<Vec<Vec<i64>>> {
        let prompts = Prompt::of_batch(batch, &self.feature_rows(batch), features);
        let mut answers = vec![Vec::new(); prompts.len()];
        self.network.answer_each(&prompts, &vec![decoding; prompts.len()], &mut |index, continued| {
            if let Continued::Token(token) = continued {
                answers[index].push(token);
            }
            true
        });
        Some(answers)
    }
}
