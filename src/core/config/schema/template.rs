//! The chat templates that render messages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The chat template that renders messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Template {
    // The model directory's own.
    #[default]
    FromModel,
    // ChatML with Qwen-VL's pictures and videos.
    Qwen,
    // ChatML in which the recordings of a chat are numbered: the published one of Qwen2-Audio.
    #[serde(rename = "qwen2_audio")]
    Qwen2Audio,
    Chatml,
    Llama2,
    Llama3,
    // DeepSeek-V2.
    DeepseekV2,
    // DeepSeek-V3 and later.
    Deepseek,
    Kimi,
    // InternLM2 and 2.5, InternVL2.5.
    Internlm2,
    Ernie,
    Minimax,
    // GLM-4.5 and later.
    Glm,
    // Gemma 1 to 3.
    Gemma,
    // PaliGemma 1 and 2.
    Paligemma,
}
