//! The templates that come with the program.

use crate::config::Template;

/// ChatML with Qwen-VL's picture placeholders: the built-in template `qwen`.
pub const QWEN: &str =
    concat!(include_str!("../templates/qwen_content.jinja"), include_str!("../templates/chatml.jinja"));

/// Returns [`QWEN`] with recordings between the tokens of Qwen2-Audio and Qwen2.5-Omni.
pub fn qwen_with_sound() -> String {
    let text = "            {%- elif part.type == 'text' %}\n";
    let sound =
        "            {%- elif part.type == 'audio' %}\n                {{- '<|audio_bos|><|AUDIO|><|audio_eos|>' }}\n";
    QWEN.replacen(text, &format!("{sound}{text}"), 1)
}

/// The template of the prompt that transformers' processor of Florence-2 makes, and of its answer.
pub const FLORENCE2: &str = include_str!("../templates/florence2.jinja");

/// Returns the source of a built-in template, without any default system prompt; `None` for the model's own.
pub fn built_in(template: Template) -> Option<&'static str> {
    Some(match template {
        Template::FromModel => return None,
        Template::Qwen => QWEN,
        Template::Qwen2Audio => include_str!("../templates/qwen2_audio.jinja"),
        Template::Chatml => {
            concat!(include_str!("../templates/chatml_content.jinja"), include_str!("../templates/chatml.jinja"))
        }
        Template::Llama2 => include_str!("../templates/llama2.jinja"),
        Template::Llama3 => include_str!("../templates/llama3.jinja"),
        Template::DeepseekV2 => include_str!("../templates/deepseek_v2.jinja"),
        Template::Deepseek => include_str!("../templates/deepseek.jinja"),
        Template::Kimi => include_str!("../templates/kimi.jinja"),
        Template::Internlm2 => include_str!("../templates/internlm2.jinja"),
        Template::Ernie => include_str!("../templates/ernie.jinja"),
        Template::Minimax => include_str!("../templates/minimax.jinja"),
        Template::Glm => include_str!("../templates/glm.jinja"),
        Template::Gemma => include_str!("../templates/gemma.jinja"),
        Template::Paligemma => include_str!("../templates/paligemma.jinja"),
    })
}
