//! Chat templates: messages to one string, as Hugging Face's `apply_chat_template` renders them.
//!
//! A template comes with a model somebody else made, so it runs with bounded work and depth and reads no files.

use std::collections::BTreeMap;
use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;
use serde_json::{Map, Value as Json};

use super::error::DataError;
use super::source::{Part, Turn};
use super::tokenizer::token_text;
use crate::config::Template;

/// ChatML with Qwen-VL's picture placeholders: the built-in template `qwen`.
pub const QWEN: &str = include_str!("templates/qwen.jinja");

/// The source of a built-in template, without any default system prompt; `None` for the model's own.
pub fn built_in(template: Template) -> Option<&'static str> {
    Some(match template {
        Template::FromModel => return None,
        Template::Qwen => QWEN,
        Template::Chatml => include_str!("templates/chatml.jinja"),
        Template::Llama2 => include_str!("templates/llama2.jinja"),
        Template::Llama3 => include_str!("templates/llama3.jinja"),
        Template::DeepseekV2 => include_str!("templates/deepseek_v2.jinja"),
        Template::Deepseek => include_str!("templates/deepseek.jinja"),
        Template::Kimi => include_str!("templates/kimi.jinja"),
        Template::Internlm2 => include_str!("templates/internlm2.jinja"),
        Template::Ernie => include_str!("templates/ernie.jinja"),
        Template::Minimax => include_str!("templates/minimax.jinja"),
        Template::Glm => include_str!("templates/glm.jinja"),
    })
}

/// Instructions that one rendering may take; a long conversation takes about 100 000.
const FUEL: u64 = 20_000_000;
const RECURSION_LIMIT: usize = 100;
/// A content by which a template is tried.
const PROBE: &str = "loongforge-probe";

pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The template's variables `bos_token`, `eos_token` and so on.
    tokens: BTreeMap<String, String>,
    /// The template does not know a plain string as content.
    parts_only: bool,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'a str,
    content: Content<'a>,
    #[serde(flatten)]
    fields: &'a Map<String, Json>,
}

/// Plain text goes as a string, since templates of text models know nothing else.
#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(String),
    Parts(&'a [Part]),
}

impl ChatTemplate {
    /// The special tokens of `tokenizer_config` are the template's variables of the same names.
    pub fn new(source: &str, tokenizer_config: &Json) -> Result<Self, DataError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(describe)?;
        environment.set_syntax(syntax);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION_LIMIT);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        // minijinja's own escapes `<`, `>` and `&`; Hugging Face's does not.
        environment.add_filter("tojson", |value: Serde<Json>| serde_json::to_string(&value.0).unwrap_or_default());
        environment.add_template_owned("chat", without_generation_tags(source)).map_err(describe)?;
        let mut tokens: BTreeMap<String, String> =
            ["bos_token", "eos_token"].map(|key| (key.to_owned(), String::new())).into();
        let keys = tokenizer_config.as_object().into_iter().flatten().filter(|(key, _)| key.ends_with("_token"));
        tokens.extend(keys.filter_map(|(key, token)| Some((key.clone(), token_text(token)?.to_owned()))));
        let mut template = Self { environment, tokens, parts_only: false };
        let probe = [Turn::text("user", PROBE)];
        let shows = |template: &Self| template.render(&probe, false).is_ok_and(|text| text.contains(PROBE));
        if !shows(&template) {
            template.parts_only = true;
            template.parts_only = shows(&template);
        }
        Ok(template)
    }

    /// The template in a model folder, or `None`: `chat_template.jinja`, `chat_template.json` or the key
    /// `chat_template` of `tokenizer_config.json`.
    pub fn find(model_dir: &Path, tokenizer_config: &Json) -> Result<Option<String>, DataError> {
        let path = model_dir.join("chat_template.jinja");
        if path.exists() {
            return std::fs::read_to_string(&path).map(Some).map_err(|error| DataError::read(&path, error));
        }
        let path = model_dir.join("chat_template.json");
        let holder = if path.exists() { super::tokenizer::read_json(&path)? } else { tokenizer_config.clone() };
        Ok(match &holder["chat_template"] {
            Json::String(source) => Some(source.clone()),
            Json::Array(named) => named
                .iter()
                .find(|template| template["name"] == "default")
                .and_then(|template| template["template"].as_str())
                .map(str::to_owned),
            _ => None,
        })
    }

    /// The conversation as one string; with `add_generation_prompt` it ends where the assistant is to speak.
    pub fn render(&self, turns: &[Turn], add_generation_prompt: bool) -> Result<String, DataError> {
        let messages: Vec<Message<'_>> = turns
            .iter()
            .map(|turn| Message {
                role: &turn.role,
                content: if turn.num_media() > 0 || self.parts_only {
                    Content::Parts(&turn.parts)
                } else {
                    Content::Text(turn.joined_text())
                },
                fields: &turn.fields,
            })
            .collect();
        let tools: Vec<&Json> = turns.iter().flat_map(|turn| &turn.tools).collect();
        let tools = if tools.is_empty() { Value::from(()) } else { Value::from(Serde(&tools)) };
        let template = self.environment.get_template("chat").map_err(describe)?;
        template
            .render(context! {
                messages => Value::from(Serde(&messages)),
                add_generation_prompt,
                tools,
                ..Value::from(Serde(&self.tokens))
            })
            .map_err(describe)
    }
}

/// Drops `{% generation %}` and `{% endgeneration %}`, which mark text and print nothing.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let tag = &rest[start + 2..start + len];
        let name = tag.trim_matches(|c: char| matches!(c, '-' | '+') || c.is_whitespace());
        if matches!(name, "generation" | "endgeneration") {
            // A comment, so that the whitespace control of the tag stays.
            let (left, right) = (tag.starts_with('-'), tag.ends_with('-'));
            result.push_str(&rest[..start]);
            result.push_str(if left { "{#-" } else { "{#" });
            result.push_str(if right { "-#}" } else { "#}" });
        } else {
            result.push_str(&rest[..start + len + 2]);
        }
        rest = &rest[start + len + 2..];
    }
    result + rest
}

fn describe(error: Error) -> DataError {
    let reason = match (error.detail(), error.line()) {
        (Some(detail), Some(line)) => format!("line {line}: {detail}"),
        _ => error.to_string(),
    };
    DataError::Template(reason)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn turns() -> Vec<Turn> {
        vec![
            Turn::new("user", vec![Part::Image, Part::Text { text: "Read <b>.".into() }]),
            Turn::text("assistant", "12"),
        ]
    }

    #[test]
    fn the_built_in_template_renders_pictures_and_text() {
        let template = ChatTemplate::new(QWEN, &Json::Null).unwrap();
        let prompt = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Read <b>.<|im_end|>\n";
        assert_eq!(template.render(&turns()[..1], true).unwrap(), format!("{prompt}<|im_start|>assistant\n"));
        assert_eq!(template.render(&turns(), false).unwrap(), format!("{prompt}<|im_start|>assistant\n12<|im_end|>\n"));
    }

    #[test]
    fn what_templates_in_the_wild_use_works() {
        let source = "{%- set ns = namespace(n=0) -%}\n{% for m in messages %}\n    {% generation %}{% set ns.n = ns.n + 1 %}\n\
            {{ m.content.strip().split('.')[0].lstrip('\\n') if m.content is string else m.content[1]['text'] }}\
            {%- endgeneration -%}\n{% endfor %}{{ ns.n }}{{ messages[::-1][0].role | tojson }}{{ eos_token }}";
        let template = ChatTemplate::new(source, &json!({"eos_token": {"content": "E"}, "x": 1})).unwrap();
        assert_eq!(template.render(&turns(), false).unwrap(), "Read <b>.122\"assistant\"E");
    }

    #[test]
    fn endless_and_failing_templates_are_errors() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a * b }}{% endfor %}{% endfor %}";
        let template = ChatTemplate::new(endless, &Json::Null).unwrap();
        assert!(template.render(&turns(), false).unwrap_err().to_string().contains("fuel"));
        let template = ChatTemplate::new("\n{{ raise_exception('roles must alternate') }}", &Json::Null).unwrap();
        let error = template.render(&turns(), false).unwrap_err().to_string();
        assert_eq!(error, "chat template: line 2: roles must alternate");
        assert!(ChatTemplate::new("{% for %}", &Json::Null).is_err());
    }
    #[test]
    fn built_in_templates_are_those_of_the_families() {
        let turns =
            [Turn::text("system", "S"), Turn::text("user", "U"), Turn::text("assistant", "A"), Turn::text("user", "V")];
        for (template, text, prompt) in [
            (
                Template::Chatml,
                "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n",
                "<|im_start|>assistant\n",
            ),
            (Template::Llama2, "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]", ""),
            (
                Template::Llama3,
                "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|>",
                "<|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            (
                Template::DeepseekV2,
                "<｜begin▁of▁sentence｜>S\n\nUser: U\n\nAssistant: A<｜end▁of▁sentence｜>User: V\n\n",
                "Assistant:",
            ),
            (
                Template::Deepseek,
                "<｜begin▁of▁sentence｜>S<｜User｜>U<｜Assistant｜>A<｜end▁of▁sentence｜><｜User｜>V",
                "<｜Assistant｜>",
            ),
            (
                Template::Kimi,
                "<|im_system|>system<|im_middle|>S<|im_end|><|im_user|>user<|im_middle|>U<|im_end|><|im_assistant|>assistant<|im_middle|>A<|im_end|><|im_user|>user<|im_middle|>V<|im_end|>",
                "<|im_assistant|>assistant<|im_middle|>",
            ),
            (
                Template::Ernie,
                "<|begin_of_sentence|>S\nUser: U\nAssistant: A<|end_of_sentence|>User: V\n",
                "Assistant: ",
            ),
            (
                Template::Minimax,
                "]~!b[]~b]system\nS[e~[\n]~b]user\nU[e~[\n]~b]ai\nA[e~[\n]~b]user\nV[e~[\n",
                "]~b]ai\n",
            ),
            (Template::Glm, "[gMASK]<sop><|system|>\nS<|user|>\nU<|assistant|>\nA<|user|>\nV", "<|assistant|>\n"),
        ] {
            let chat = ChatTemplate::new(built_in(template).unwrap(), &Json::Null).unwrap();
            assert_eq!(chat.render(&turns, true).unwrap(), format!("{text}{prompt}"), "{template:?}");
        }
        let internlm = ChatTemplate::new(built_in(Template::Internlm2).unwrap(), &Json::Null).unwrap();
        assert_eq!(internlm.render(&turns[1..2], false).unwrap(), "<s><|im_start|>user\nU<|im_end|>\n");
    }

    #[test]
    fn content_goes_as_the_template_expects_it() {
        let source = "{% for m in messages %}{% for c in m.content %}{{ c['text'] }}{% endfor %}{% endfor %}";
        let template = ChatTemplate::new(source, &Json::Null).unwrap();
        assert_eq!(template.render(&[Turn::text("user", "hi")], false).unwrap(), "hi");
    }
}
