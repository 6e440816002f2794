//! The attention of a layer.

use loongforge_torch::model::{LayerConfig, MixerConfig};
use loongforge_torch::nn::AttentionConfig;

/// # Errors
/// The layer has another mixer.
pub fn heads(layer: &LayerConfig) -> Result<&AttentionConfig, String> {
    match &layer.mixer {
        MixerConfig::Attention(attention) => Ok(attention),
        _ => Err("a layer has no plain attention".to_owned()),
    }
}
