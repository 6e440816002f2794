//! OLMo 3 (`Olmo3ForCausalLM`): OLMo 2 with a window in all layers but every fourth, whose rotary embeddings alone are scaled.

use super::common::{NamePrefix, dense, layered, windows_of};
use super::olmo2::{filled, heads, with_output_norms};
use super::text_family::TextFamily;
use crate::model::decoder::{DecoderConfig, MixerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::rope_config::read_rope_by_kind;
use crate::nn::AttentionConfig;

pub(super) const FAMILY: TextFamily = TextFamily::new("olmo3", read);

fn read(keys: &Keys<'_>, place: &NamePrefix) -> Result<DecoderConfig, ModelConfigError> {
    let filled = filled(keys);
    let keys = &keys.instead(&filled);
    let attention = heads(keys)?;
    let [full, local] = read_rope_by_kind(keys, attention.head_dim, [5e5, 5e5])?;
    let windows = windows_of(keys, keys.size_or_null("sliding_window", 4096)?, |layer| (layer + 1) % 4 != 0)?;
    let feed_forward = dense(keys)?;
    let layer = |window: &Option<i64>| {
        (MixerConfig::Attention(AttentionConfig { window: *window, ..attention.clone() }), feed_forward.clone())
    };
    let mut config = layered(keys, place, windows.iter().map(layer).collect(), full)?;
    for (layer, _) in config.layers.iter_mut().zip(&windows).filter(|(_, window)| window.is_some()) {
        layer.rope = local.clone();
    }
    Ok(with_output_norms(config))
}
