//! EXAONE 4.0 (`Exaone4ForCausalLM`): the outputs of both branches are normed and their inputs are not, heads of queries and keys are
//! normed, and where there are windows only the layers that have one turn.

use serde_json::json;

use super::common::{NamePrefix, attention, dense, layered, windows_of};
use super::olmo2::with_output_norms;
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope;
use crate::nn::{AttentionConfig, QkNorm};

pub(super) const FAMILY: TextFamily = TextFamily::new("exaone4", read).with_kv_heads(32);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let filled = keys.filled(&json!({"rms_norm_eps": 1e-5}));
    let keys = &keys.instead(&filled);
    let attention = AttentionConfig { qk_norm: QkNorm::Head, ..attention(keys)? };
    let rope = read_rope(keys, attention.head_dim, 10_000.0)?;
    let window = keys.size_or_null("sliding_window", 4096)?;
    // Of configs with `layer_types` the reference does not read the pattern, which may then be letters.
    let every = match (keys.value("layer_types"), window) {
        (None, Some(_)) => keys.size_or_null("sliding_window_pattern", 4)?,
        _ => None,
    };
    let windows = windows_of(keys, window, |layer| every.is_none_or(|every| (layer + 1) % every != 0))?;
    let feed_forward = dense(keys)?;
    let layer = |slides: Option<i64>| {
        let turns = window.is_none() || slides.is_some();
        (MixerConfig::Attention(AttentionConfig { window: slides, turns, ..attention.clone() }), feed_forward.clone())
    };
    Ok(with_output_norms(layered(keys, place, windows.into_iter().map(layer).collect(), rope)?))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::model::decoder::MixerConfig;
    use crate::model::family::decoder_of::decoder_of;

    /// Returns for each layer its window, and whether it turns.
    fn layers(changes: Value) -> Result<Vec<(Option<i64>, bool)>, String> {
        let config = json!({
            "model_type": "exaone4", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 4, "num_attention_heads": 4
        });
        let decoder = decoder_of(config, &changes)?;
        let of_layer = |mixer: &MixerConfig| match mixer {
            MixerConfig::Attention(attention) => (attention.window, attention.turns),
            _ => unreachable!("it attends"),
        };
        Ok(decoder.layers.iter().map(|layer| of_layer(&layer.mixer)).collect())
    }

    #[test]
    fn layers_slide_and_turn_as_the_reference_says() {
        let (local, global) = ((Some(8), true), (None, false));
        assert_eq!(layers(json!({"sliding_window": 8})), Ok(vec![local, local, local, global]));
        let second = json!({"sliding_window": 8, "sliding_window_pattern": 2});
        assert_eq!(layers(second), Ok(vec![local, global, local, global]));
        let types = ["full_attention", "sliding_attention", "full_attention", "full_attention"];
        let listed = json!({"sliding_window": 8, "sliding_window_pattern": "LLLG", "layer_types": types});
        assert_eq!(layers(listed), Ok(vec![global, local, global, global]));
        assert_eq!(layers(json!({"sliding_window": null})), Ok(vec![(None, true); 4]));
        assert_eq!(layers(json!({})).unwrap()[0], (Some(4096), true));
    }

    #[test]
    fn what_the_reference_cannot_run_is_refused_by_name() {
        let types = ["sliding_attention"; 4];
        for (changes, expected) in [
            (json!({"sliding_window_pattern": "LLLG"}), "sliding_window_pattern must be a positive integer"),
            (json!({"sliding_window": null, "layer_types": types}), "layer_types is"),
            (json!({"attention_dropout": 0.1}), "attention_dropout is 0.1"),
        ] {
            let message = layers(changes).unwrap_err();
            assert!(message.contains(expected), "{message:?} lacks {expected:?}");
        }
    }
}
