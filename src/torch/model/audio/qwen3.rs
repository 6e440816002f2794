//! The tower and projector of Qwen3-Omni (`Qwen3OmniMoeAudioEncoder`) and Qwen3-ASR (`Qwen3ASREncoder`): convolutions over bins
//! and time of each second, attention in windows of several seconds.

use serde_json::json;

use super::encoder::AudioConfig;
use super::keys::{projector, tower};
use super::tower_config::{AudioTowerConfig, StemConfig};
use crate::model::keys::{Keys, ModelConfigError};

/// Frames of a chunk: the reference's formula of lengths has 13 positions for each.
const CHUNK: i64 = 100;

/// Returns the encoder of `Qwen3OmniMoeAudioEncoderConfig` or `Qwen3ASREncoderConfig`, its names under `prefix` and `after`, where the
/// projector's maps are called `maps`.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    prefix: &str,
    after: &str,
    maps: [&'static str; 2],
    outputs: i64,
) -> Result<AudioConfig, ModelConfigError> {
    keys.only("n_window", &[json!(CHUNK / 2)])?;
    let window = keys.size_or("n_window_infer")?.unwrap_or(800);
    if window % CHUNK != 0 {
        return Err(keys.inconsistent(
            "n_window_infer",
            window,
            format!("must be a multiple of 2 x n_window ({CHUNK})"),
        ));
    }
    let tower = AudioTowerConfig {
        stem: StemConfig::Plane { channels: keys.size_or("downsample_hidden_size")?.unwrap_or(480) },
        chunks_per_window: window / CHUNK,
        ..tower(keys, prefix, true, CHUNK)?
    };
    let (width, act) = (tower.width(), tower.block.activation);
    let [first, second] = maps;
    Ok(AudioConfig { projector: projector(&tower, after, &[(first, width), (second, outputs)], act), tower })
}
