//! The thinker of Qwen3-Omni (`Qwen3OmniMoeThinkerForConditionalGeneration`): Qwen3-VL with experts and an audio tower. The
//! talker and the vocoder of a whole checkpoint are not read, but carried along.

use super::audio;
use super::common::NamePrefix;
use super::qwen3_omni_moe_text;
use super::qwen3_vl::with_levels;
use crate::model::audio::qwen3 as audio_tower;
use crate::model::config::{CarriedParts, ModelConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::vision::qwen3;

/// Returns the whole model, whose config has the thinker's in `thinker_config`.
pub(in crate::model) fn read(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    let model = read_thinker_in("qwen3_omni_moe", &keys.section("thinker_config")?, "thinker.")?;
    let carried = CarriedParts { prefixes: &["talker.", "code2wav."], flag: Some("enable_audio_output") };
    Ok(ModelConfig { carried, ..model })
}

/// Returns the thinker saved alone.
pub(in crate::model) fn read_thinker(keys: &Keys<'_>) -> Result<ModelConfig, ModelConfigError> {
    read_thinker_in("qwen3_omni_moe_thinker", keys, "")
}

fn read_thinker_in(model_type: &str, keys: &Keys<'_>, prefix: &str) -> Result<ModelConfig, ModelConfigError> {
    let place = NamePrefix::new(&format!("{prefix}model."), prefix);
    let decoder =
        audio::thinker_decoder(keys, qwen3_omni_moe_text::FAMILY.read(&keys.section("text_config")?, &place)?)?;
    let [vision_keys, audio_keys] = audio::thinker_towers(keys, &decoder)?;
    let [visual, tower] = ["visual.", "audio_tower."].map(|name| format!("{prefix}{name}"));
    let filled = with_levels(&vision_keys);
    let vision_keys = vision_keys.instead(&filled);
    let vision = qwen3::read(&vision_keys, &visual, &format!("{visual}merger."), decoder.hidden_size)?;
    let vision = vision.with_mergers("ln_q", ["mlp.0", "mlp.2"], "merger_list.");
    let audio = audio_tower::read(&audio_keys, &tower, &tower, ["proj1", "proj2"], decoder.hidden_size)?;
    let tokens = ["image_token_id", "video_token_id", "audio_token_id"];
    audio::thinker(model_type, keys, decoder, (vision, audio), tokens)
}
