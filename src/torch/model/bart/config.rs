//! BART as data.

use loongforge_core::message::Tower;

use crate::model::towers::FeatureInput;
use crate::nn::Activation;

/// The epsilon of all layer norms.
pub(super) const EPS: f64 = 1e-5;

/// The sizes that both sides have in common, and those of the encoder. Norms are behind their branches.
#[derive(Clone, Debug, PartialEq)]
pub struct BartConfig {
    /// The prefix of the names of all parameters.
    pub prefix: String,
    pub vocab_size: i64,
    /// The token that fills up prompts. Its row of the table is not trained by what is read.
    pub pad_token: i64,
    pub width: i64,
    pub encoder: StackConfig,
    /// Rows that have a position, on either side.
    pub max_positions: i64,
    pub activation: Activation,
    /// The factor of embeddings.
    pub scale: f64,
    /// The standard deviation of random weights.
    pub std: f64,
}

/// The layers of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackConfig {
    pub num_layers: i64,
    pub num_heads: i64,
    pub mlp_dim: i64,
}

/// An encoder and a decoder of language. The head is the table of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderDecoderConfig {
    pub bart: BartConfig,
    pub decoder: StackConfig,
    /// The token that features of pictures replace; `None`: there are no pictures.
    pub image_token: Option<i64>,
    pub answers: AnswerTokens,
}

/// The tokens with which answers begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerTokens {
    /// The token before an answer.
    pub start: i64,
    /// The first token of every answer, whatever its score; `None`: the most likely one.
    pub first: Option<i64>,
    /// The last token of an answer as long as it may be, whatever its score; `None`: the most likely one.
    pub last: Option<i64>,
    /// Tokens of an answer, as many as have a position.
    pub max: usize,
}

impl AnswerTokens {
    /// Returns the token at `step`, from 0, of an answer of at most `max_new_tokens`, where it is forced; `None` where it is chosen. The
    /// only token of an answer is its last one, as in transformers.
    pub(crate) fn forced_at(self, step: usize, max_new_tokens: usize) -> Option<i64> {
        self.last.filter(|_| step + 1 == max_new_tokens).or(self.first.filter(|_| step == 0))
    }
}

impl BartConfig {
    /// Returns the prefix of the names of the encoder's parameters.
    pub(super) fn encoder_prefix(&self) -> String {
        format!("{}encoder.", self.prefix)
    }

    /// Returns the prefix of the names of the decoder's parameters.
    pub(super) fn decoder_prefix(&self) -> String {
        format!("{}decoder.", self.prefix)
    }
}

impl StackConfig {
    /// Returns the number of weights of the linear maps that a row meets, in layers of `attentions` attentions.
    pub(crate) fn multiplied(&self, width: i64, attentions: i64) -> i64 {
        self.num_layers * (attentions * 4 * width * width + 2 * width * self.mlp_dim)
    }
}

impl EncoderDecoderConfig {
    /// Returns the features that the encoder takes from towers.
    pub(super) fn inputs(&self) -> Vec<FeatureInput> {
        let input = |token| FeatureInput {
            tower: Tower::Vision,
            num_tensors: 1,
            width: self.bart.width,
            placeholders: vec![token],
        };
        self.image_token.map(input).into_iter().collect()
    }
}
