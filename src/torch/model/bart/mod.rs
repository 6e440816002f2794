//! BART (Lewis et al. 2019; `BartModel` of transformers): an encoder reads what is asked, with features of pictures in it, and a
//! decoder writes the answer, with attention to itself and to what the encoder has made of the same sample. X-VLA has the encoder
//! alone.
//!
//! 1. `config.rs` is a model as data; which `config.json` says what is `family/bart.rs`'s.
//! 2. `layer.rs` has the table of tokens, positions, and the branches of layers; `encoder.rs` and `decoder.rs` are lists of them.
//! 3. `layout.rs` finds the rows of a micro-batch's samples on both sides, `record.rs` puts everything on a tape, and `family.rs` is
//!    the foundation.
//! 4. `generate.rs` continues answers, and `score.rs` says how well given ones are predicted.

mod config;
mod decoder;
mod encoder;
mod family;
pub(super) mod fixture;
mod generate;
mod layer;
mod layout;
mod network;
mod record;
mod score;
#[cfg(test)]
mod tests;

pub use config::{AnswerTokens, BartConfig, EncoderDecoderConfig, StackConfig};
pub(super) use encoder::{Encoder, Sequences};
pub use family::EncoderDecoderFamily;
pub(super) use layer::Tokens;
pub use layout::AnsweredSamples;
pub use network::EncoderDecoder;
