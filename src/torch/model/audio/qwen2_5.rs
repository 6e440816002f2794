//! Qwen2.5-Omni's tower and projector (`Qwen2_5OmniAudioEncoder`): Whisper's encoder on chunks of `2 · n_window` frames, each
//! attending to itself alone.

use super::encoder::AudioConfig;
use super::keys::{projector, tower, with_sizes};
use super::tower_config::AudioTowerConfig;
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::Activation;

/// Returns the encoder of `Qwen2_5OmniAudioEncoderConfig`, its names under `prefix` and `after`.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    prefix: &str,
    after: &str,
    outputs: i64,
) -> Result<AudioConfig, ModelConfigError> {
    let filled = with_sizes(keys);
    let keys = &keys.instead(&filled);
    let n_window = keys.size_or("n_window")?.unwrap_or(100);
    let tower = AudioTowerConfig {
        pool: true,
        // The thinker does not read it.
        unused: Some(("audio_bos_eos_token.weight", [2, keys.size_or("output_dim")?.unwrap_or(3584)])),
        ..tower(keys, prefix, false, 2 * n_window)?
    };
    Ok(AudioConfig { projector: projector(&tower, after, &[("proj", outputs)], Activation::Gelu), tower })
}
