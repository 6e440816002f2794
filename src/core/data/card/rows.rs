//! One row for each `model_type` of a model with towers, or of a tower alone.

use crate::data::audio::AudioFamily;

/// Tells how pictures and videos are cut into what a vision tower reads, by the Hugging Face processor that does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisionCut {
    /// Qwen2-VL's processor; positions of frames go by `tokens_per_second`, this much where the config says nothing.
    Qwen2 {
        tokens_per_second: Option<i64>,
    },
    /// Qwen3-VL's processor: frames' times are text.
    Qwen3,
    /// Qwen2.5-Omni's: frames and their sound take turns, a chunk at a time.
    OmniChunks,
    /// Qwen3-Omni's: frames and their sound are merged by time.
    OmniMerged,
    Ernie,
    /// Eagle 3's processor: numbered pictures of nearly their own shape.
    Eagle,
    /// Tiles of InternVL.
    Tiles,
    Kimi,
    /// MiniCPM-V's: a small copy of the whole and slices of any shape behind it.
    Slices,
    /// SmolVLM's processor: tiles behind tokens of their rows and columns, and a small copy of the whole.
    Split,
    /// One square of a fixed size, whatever the picture's shape.
    Square,
    /// The same with `mm_tokens_per_image` features, between Gemma 3's tokens.
    Gemma3,
    /// The same with a feature for each patch, and no videos.
    PaliGemma,
    /// The same with a feature for each place behind Florence-2's convolutions and one of their mean, and no videos.
    Florence2,
    /// The square in the middle of a picture whose shorter side is resized.
    Crop {
        /// The side of a patch where the config says nothing.
        patch_size: usize,
        /// True if the square must have the tower's own size.
        of_tower: bool,
    },
}

/// The properties of a `model_type`.
pub(super) struct Row {
    model_type: &'static str,
    pub vision: Option<VisionCut>,
    pub audio: Option<AudioFamily>,
    /// Positions have three axes whatever else the config says.
    pub three_axes: bool,
}

/// Makes the row of a model that reads pictures, cut as `vision` says.
pub(super) const fn sees(model_type: &'static str, vision: VisionCut) -> Row {
    Row { model_type, vision: Some(vision), audio: None, three_axes: false }
}

/// Makes the row of a model that reads recordings.
pub(super) const fn hears(model_type: &'static str, audio: AudioFamily) -> Row {
    Row { model_type, vision: None, audio: Some(audio), three_axes: false }
}

impl Row {
    const fn and_hears(self, audio: AudioFamily) -> Row {
        Row { audio: Some(audio), ..self }
    }

    const fn on_three_axes(self) -> Row {
        Row { three_axes: true, ..self }
    }
}

const CLIP: VisionCut = VisionCut::Crop { patch_size: 32, of_tower: true };

/// The rows by the `model_type` of the whole model. Those of its parts have one more ending.
const ROWS: &[Row] = &[
    sees("DFNRope_vision_transformer", VisionCut::Ernie),
    sees("clip", CLIP),
    sees("dinov2", VisionCut::Crop { patch_size: 14, of_tower: false }),
    sees("dinov2_with_registers", VisionCut::Crop { patch_size: 16, of_tower: false }),
    sees("eagle_3_vl", VisionCut::Eagle),
    sees("ernie4_5_moe_vl", VisionCut::Ernie).on_three_axes(),
    sees("ernie4_5_vl_moe", VisionCut::Ernie).on_three_axes(),
    sees("intern_vit_6b", VisionCut::Tiles),
    sees("florence2", VisionCut::Florence2),
    sees("gemma3", VisionCut::Gemma3),
    sees("idefics3", VisionCut::Split),
    sees("internvl", VisionCut::Tiles),
    sees("internvl_chat", VisionCut::Tiles),
    sees("kimi_k25", VisionCut::Kimi),
    sees("llava", CLIP),
    sees("llava_onevision1_5", VisionCut::Qwen2 { tokens_per_second: None }),
    sees("llavaonevision1_5", VisionCut::Qwen2 { tokens_per_second: None }),
    sees("minicpmv4_6", VisionCut::Slices),
    sees("paligemma", VisionCut::PaliGemma),
    sees("qwen2_5_omni", VisionCut::OmniChunks).and_hears(AudioFamily::Qwen2_5Omni).on_three_axes(),
    sees("qwen2_5_vl", VisionCut::Qwen2 { tokens_per_second: Some(4) }).on_three_axes(),
    hears("qwen2_audio", AudioFamily::Qwen2Audio),
    sees("qwen2_vl", VisionCut::Qwen2 { tokens_per_second: None }).on_three_axes(),
    sees("qwen3_5", VisionCut::Qwen3).on_three_axes(),
    sees("qwen3_5_moe", VisionCut::Qwen3).on_three_axes(),
    hears("qwen3_asr", AudioFamily::Qwen3Asr),
    sees("qwen3_omni_moe", VisionCut::OmniMerged).and_hears(AudioFamily::Qwen3Omni).on_three_axes(),
    sees("qwen3_vl", VisionCut::Qwen3).on_three_axes(),
    sees("qwen3_vl_moe", VisionCut::Qwen3).on_three_axes(),
    sees("rice_vit", VisionCut::Qwen2 { tokens_per_second: None }),
    sees("siglip", VisionCut::Square),
    sees("smolvlm", VisionCut::Split),
    hears("voxtral", AudioFamily::Voxtral),
    hears("whisper", AudioFamily::Whisper),
];

/// The endings that the `model_type` of a part has behind that of its model.
const ENDINGS: [&str; 7] =
    ["_vision_encoder", "_audio_encoder", "_encoder", "_vision", "_vision_model", "_text", "_thinker"];

/// Returns the built-in row of a model or of one of its parts.
pub(super) fn built_in_row(model_type: &str) -> Option<&'static Row> {
    let own = ROWS.iter().find(|row| row.model_type == model_type);
    own.or_else(|| ENDINGS.iter().filter_map(|end| model_type.strip_suffix(end)).find_map(built_in_row))
}
