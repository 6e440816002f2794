//! BART's `config.json`, and Florence-2's language model: one side or both.
//!
//! Dropout is not computed: training goes through what the reference computes in eval mode. Data's notes tell users so.

use serde_json::json;

use crate::model::bart::{AnswerTokens, BartConfig, EncoderDecoderConfig, StackConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::Activation;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Reads the sizes that both sides have in common, and those of the encoder, whose features are `outputs` wide. Names of parameters begin
/// with `prefix`.
pub(super) fn read(keys: &Keys<'_>, prefix: &str, outputs: i64) -> Result<BartConfig> {
    keys.only("model_type", &[json!("florence2_language"), json!("bart")])?;
    keys.only("tie_word_embeddings", &[json!(true)])?;
    ["dropout", "attention_dropout", "activation_dropout"].iter().try_for_each(|key| dropped(keys, key))?;
    let size = |key: &str, default: i64| keys.size_or(key).map(|value| value.unwrap_or(default));
    let width = size("d_model", 1024)?;
    let encoder = stack(keys, "encoder", width)?;
    if width != outputs {
        let must = format!("must be vision_config.projection_dim ({outputs})");
        return Err(keys.inconsistent("d_model", width, must));
    }
    let vocab_size = size("vocab_size", 50_265)?;
    let is_scaled = keys.flag_or("scale_embedding")?.unwrap_or(false);
    Ok(BartConfig {
        prefix: prefix.into(),
        vocab_size,
        pad_token: token(keys, "pad_token_id", 1, vocab_size)?,
        width,
        encoder,
        max_positions: size("max_position_embeddings", 1024)?.min(1 << 20),
        activation: keys.activation_or("activation_function")?.unwrap_or(Activation::Gelu),
        scale: if is_scaled { (width as f64).sqrt() } else { 1.0 },
        std: keys.number_or("init_std")?.unwrap_or(0.02),
    })
}

/// Reads both sides; features replace `image_token`.
pub(super) fn read_both(keys: &Keys<'_>, bart: BartConfig, image_token: Option<i64>) -> Result<EncoderDecoderConfig> {
    let vocab_size = bart.vocab_size;
    // transformers forces what a config says, and not what its class has where the config is silent.
    let forced = |key: &str| keys.index_or(key)?.map(|_| token(keys, key, 0, vocab_size)).transpose();
    Ok(EncoderDecoderConfig {
        decoder: stack(keys, "decoder", bart.width)?,
        image_token,
        answers: AnswerTokens {
            start: token(keys, "decoder_start_token_id", 2, vocab_size)?,
            first: forced("forced_bos_token_id")?,
            last: forced("forced_eos_token_id")?,
            max: usize::try_from(bart.max_positions).unwrap_or(usize::MAX),
        },
        bart,
    })
}

/// Returns the layers of a side.
fn stack(keys: &Keys<'_>, side: &str, width: i64) -> Result<StackConfig> {
    keys.only(&format!("{side}_layerdrop"), &[json!(0.0), json!(0)])?;
    let size = |key: &str, default: i64| {
        let key = format!("{side}_{key}");
        Ok((keys.size_or(&key)?.unwrap_or(default), key))
    };
    let (num_heads, key) = size("attention_heads", 16)?;
    divides(keys, &key, num_heads, "d_model", width)?;
    Ok(StackConfig { num_layers: size("layers", 12)?.0, num_heads, mlp_dim: size("ffn_dim", 4096)?.0 })
}

/// Returns a token of the vocabulary.
fn token(keys: &Keys<'_>, key: &str, default: i64, vocab_size: i64) -> Result<i64> {
    let found = keys.index_or(key)?.unwrap_or(default);
    match found < vocab_size {
        true => Ok(found),
        false => Err(keys.inconsistent(key, found, format!("must be below vocab_size ({vocab_size})"))),
    }
}

/// # Errors
/// The value `of` of a key does not divide `width`, which messages call `whole`.
pub(super) fn divides(keys: &Keys<'_>, key: &str, of: i64, whole: &str, width: i64) -> Result<()> {
    match width % of {
        0 => Ok(()),
        _ => Err(keys.inconsistent(key, of, format!("must divide {whole} ({width})"))),
    }
}

/// A share of what training drops, which is not computed.
pub(super) fn dropped(keys: &Keys<'_>, key: &str) -> Result<()> {
    let rate = keys.number_or(key)?.unwrap_or(0.0);
    match (0.0..1.0).contains(&rate) {
        true => Ok(()),
        false => Err(keys.inconsistent(key, rate, "must be at least 0 and below 1")),
    }
}
