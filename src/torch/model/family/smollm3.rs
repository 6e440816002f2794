//! SmolLM3 (`SmolLM3ForCausalLM`): LLaMA, in which queries and keys of every fourth layer do not turn.

use serde_json::{Value, json};

use super::common::{NamePrefix, attention, layered, window, windows_of};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, FeedForwardConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::AttentionConfig;

type Result<T> = std::result::Result<T, ModelConfigError>;

pub(super) const FAMILY: TextFamily = TextFamily::new("smollm3", read).with_kv_heads(4);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig> {
    let filled = keys.filled(&json!({"tie_word_embeddings": true, "pad_token_id": 128_004}));
    let keys = &keys.instead(&filled);
    let bias = keys.flag_or("attention_bias")?.unwrap_or(false);
    let attention = AttentionConfig { qkv_bias: bias, o_bias: bias, ..attention(keys)? };
    let rope = read_rope(keys, attention.head_dim, 2_000_000.0)?;
    let turns = turning_layers(keys)?;
    let window = if keys.has("sliding_window") { window(keys)? } else { None };
    let windows = windows_of(keys, window, |layer| !turns[layer as usize])?;
    let feed_forward = FeedForwardConfig::Dense {
        intermediate_size: keys.size("intermediate_size")?,
        bias: keys.flag_or("mlp_bias")?.unwrap_or(false),
    };
    let layer = |(turns, window)| {
        (MixerConfig::Attention(AttentionConfig { turns, window, ..attention.clone() }), feed_forward.clone())
    };
    layered(keys, place, turns.iter().copied().zip(windows).map(layer).collect(), rope)
}

/// Returns for each layer whether queries and keys turn: a 1 in `no_rope_layers`, or all but every `no_rope_layer_interval`th.
fn turning_layers(keys: &Keys<'_>) -> Result<Vec<bool>> {
    let num_layers = keys.size("num_hidden_layers")?;
    let Some(listed) = keys.value("no_rope_layers") else {
        let interval = keys.size_or("no_rope_layer_interval")?.unwrap_or(4);
        return Ok((1..=num_layers).map(|number| number % interval != 0).collect());
    };
    let turns: Vec<bool> = keys.indices("no_rope_layers")?.iter().map(|turns| *turns != 0).collect();
    match turns.get(..num_layers as usize) {
        Some(turns) => Ok(turns.to_vec()),
        None => {
            let must = format!("must have an entry for each of num_hidden_layers ({num_layers})");
            Err(keys.inconsistent("no_rope_layers", Value::to_string(listed), must))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::decoder::MixerConfig;
    use crate::model::family::decoder_of::decoder_of;

    /// Returns for each layer whether it turns, and its window.
    fn layers(changes: Value) -> Result<Vec<(bool, Option<i64>)>, String> {
        let config = json!({
            "model_type": "smollm3", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 4, "num_attention_heads": 4, "pad_token_id": 0
        });
        let decoder = decoder_of(config, &changes)?;
        let of_layer = |mixer: &MixerConfig| match mixer {
            MixerConfig::Attention(attention) => (attention.turns, attention.window),
            _ => unreachable!("SmolLM3 attends"),
        };
        Ok(decoder.layers.iter().map(|layer| of_layer(&layer.mixer)).collect())
    }

    #[test]
    fn layers_turn_and_slide_as_the_reference_says() {
        let all = |window| vec![(true, None), (true, None), (true, None), (false, window)];
        assert_eq!(layers(json!({})), Ok(all(None)));
        assert_eq!(layers(json!({"use_sliding_window": true})), Ok(all(None)));
        assert_eq!(layers(json!({"use_sliding_window": true, "sliding_window": 8})), Ok(all(Some(8))));
        let listed = json!({"no_rope_layers": [0, 1, 0, 1, 1]});
        assert_eq!(layers(listed), Ok(vec![(false, None), (true, None), (false, None), (true, None)]));
        let error = layers(json!({"no_rope_layers": [0, 1]})).unwrap_err();
        assert!(error.contains("no_rope_layers is [0,1], but must have an entry for each"), "{error}");
    }
}
