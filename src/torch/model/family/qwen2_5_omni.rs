//! The thinker of Qwen2.5-Omni (`Qwen2_5OmniThinkerForConditionalGeneration`): Qwen2.5-VL with an audio tower. The talker and
//! the vocoder of a whole checkpoint are not read, but carried along.

use super::audio;
use super::common::NamePrefix;
use super::qwen2_5_omni_text;
use crate::model::audio::qwen2_5 as audio_tower;
use crate::model::config::{CarriedParts, ModelConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::vision::qwen2_5;

/// Returns the whole model, whose config has the thinker's in `thinker_config`.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let model = read_thinker_in("qwen2_5_omni", &keys.section("thinker_config")?, "thinker.")?;
    let carried = CarriedParts { prefixes: &["talker.", "token2wav."], flag: Some("enable_audio_output") };
    Ok(ModelConfig { carried, ..model })
}

/// Returns the thinker saved alone.
pub(in crate::model) fn read_thinker(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    read_thinker_in("qwen2_5_omni_thinker", keys, "")
}

fn read_thinker_in(model_type: &str, keys: &Keys<'_>, prefix: &str) -> Result<ModelConfig, ModelConfigError> {
    let place = NamePrefix::new(&format!("{prefix}model."), prefix);
    let decoder = audio::thinker_decoder(keys, qwen2_5_omni_text::FAMILY.read(&keys.section("text_config")?, &place)?)?;
    let [vision_keys, audio_keys] = audio::thinker_towers(keys, &decoder)?;
    let [visual, tower] = ["visual.", "audio_tower."].map(|name| format!("{prefix}{name}"));
    let mut vision = qwen2_5::read(&vision_keys, &visual, &format!("{visual}merger."), decoder.hidden_size)?;
    vision.tower.block.qkv = vec!["attn.q", "attn.k", "attn.v"];
    let audio = audio_tower::read(&audio_keys, &tower, &tower, decoder.hidden_size)?;
    let tokens = ["image_token_index", "video_token_index", "audio_token_index"];
    audio::thinker(model_type, keys, decoder, (vision, audio), tokens)
}
