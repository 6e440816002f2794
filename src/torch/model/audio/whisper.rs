//! Whisper's encoder (`WhisperEncoder`), and the towers of Qwen2-Audio (`Qwen2AudioEncoder`) and Voxtral (`VoxtralEncoder`),
//! which are the same up to how they end. A clip is computed in windows of `2 · max_source_positions` frames: 30 s.

use super::encoder::AudioConfig;
use super::keys::{NORM, projector, tower, with_sizes};
use super::tower_config::{AudioPositions, AudioTowerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::nn::Activation;

type Result<T> = std::result::Result<T, ModelConfigError>;

/// Returns the tower alone, its names under `prefix`.
pub(in crate::model) fn read_tower(keys: &Keys<'_>, prefix: &str) -> Result<AudioTowerConfig> {
    let places = keys.size_or("max_source_positions")?.unwrap_or(1500);
    Ok(AudioTowerConfig {
        positions: AudioPositions::Table(places),
        final_norm: ("layer_norm", NORM),
        ..tower(keys, prefix, false, 2 * places)?
    })
}

/// Returns Whisper's encoder with a linear projector.
pub(in crate::model) fn read(keys: &Keys<'_>, prefix: &str, after: &str, outputs: i64) -> Result<AudioConfig> {
    let tower = read_tower(keys, prefix)?;
    Ok(AudioConfig { projector: projector(&tower, after, &[("linear", outputs)], Activation::Gelu), tower })
}

/// Returns Qwen2-Audio's tower and projector. The reference pads a clip to 30 s and masks the padding in attention alone: the last state
/// of a clip depends on two frames of the padding, which come with the clip. Frames behind the 30 s count as zeros, as in the reference.
pub(in crate::model) fn read_qwen2(keys: &Keys<'_>, prefix: &str, after: &str, outputs: i64) -> Result<AudioConfig> {
    let filled = with_sizes(keys);
    let AudioConfig { tower, projector } = read(&keys.instead(&filled), prefix, after, outputs)?;
    Ok(AudioConfig { tower: AudioTowerConfig { frames_behind: 2, pool: true, ..tower }, projector })
}

/// Returns Voxtral's tower and projector: so many states side by side become a feature that they are as wide as the MLPs of the tower.
/// `projector_hidden_act` is the model's.
pub(in crate::model) fn read_voxtral(
    keys: &Keys<'_>,
    prefix: &str,
    after: &str,
    outputs: i64,
    activation: Activation,
) -> Result<AudioConfig> {
    let tower = read_tower(keys, prefix)?;
    let (inner, width) = (tower.block.inner, tower.width());
    let stack = inner / width;
    if inner % width != 0 || (tower.chunk / 2) % stack != 0 {
        let must = format!("must be a multiple of hidden_size ({width}) by a divisor of max_source_positions");
        return Err(keys.inconsistent("intermediate_size", inner, must));
    }
    let mut projector = projector(&tower, after, &[("linear_1", outputs), ("linear_2", outputs)], activation);
    projector.stack = stack;
    projector.maps.iter_mut().for_each(|map| map.bias = false);
    Ok(AudioConfig { tower, projector })
}
