//! Chat templates: messages to one string, as Hugging Face's `apply_chat_template` renders them.
//!
//! A template comes with a model somebody else made, so it runs with bounded work and depth and reads no files.

use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value, context};
use serde::Serialize;
use serde_json::Value as Json;

use super::error::DataError;
use super::messages::{Part, Turn};

/// ChatML with Qwen-VL's picture placeholders: the built-in template `qwen`.
pub const QWEN: &str = include_str!("templates/qwen.jinja");

/// Instructions that one rendering may take; a long conversation takes about 100 000.
const FUEL: u64 = 20_000_000;
const RECURSION_LIMIT: usize = 100;

pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'a str,
    content: Content<'a>,
}

/// Plain text goes as a string, since templates of text models know nothing else.
#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(String),
    Parts(&'a [Part]),
}

impl ChatTemplate {
    /// `bos_token` and `eos_token` are what the template's variables of these names hold.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, DataError> {
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
        Ok(Self { environment, bos_token: bos_token.to_owned(), eos_token: eos_token.to_owned() })
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
                content: if turn.parts.contains(&Part::Image) {
                    Content::Parts(&turn.parts)
                } else {
                    Content::Text(turn.joined_text())
                },
            })
            .collect();
        let template = self.environment.get_template("chat").map_err(describe)?;
        template
            .render(context! {
                messages => Value::from(Serde(&messages)),
                add_generation_prompt,
                bos_token => &self.bos_token,
                eos_token => &self.eos_token,
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
    use super::*;

    fn turns() -> Vec<Turn> {
        vec![
            Turn { role: "user".into(), parts: vec![Part::Image, Part::Text { text: "Read <b>.".into() }] },
            Turn::text("assistant", "12"),
        ]
    }

    #[test]
    fn the_built_in_template_renders_pictures_and_text() {
        let template = ChatTemplate::new(QWEN, "", "<|im_end|>").unwrap();
        let prompt = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Read <b>.<|im_end|>\n";
        assert_eq!(template.render(&turns()[..1], true).unwrap(), format!("{prompt}<|im_start|>assistant\n"));
        assert_eq!(template.render(&turns(), false).unwrap(), format!("{prompt}<|im_start|>assistant\n12<|im_end|>\n"));
    }

    #[test]
    fn what_templates_in_the_wild_use_works() {
        let source = "{%- set ns = namespace(n=0) -%}\n{% for m in messages %}\n    {% generation %}{% set ns.n = ns.n + 1 %}\n\
            {{ m.content.strip().split('.')[0].lstrip('\\n') if m.content is string else m.content[1]['text'] }}\
            {%- endgeneration -%}\n{% endfor %}{{ ns.n }}{{ messages[::-1][0].role | tojson }}{{ eos_token }}";
        let template = ChatTemplate::new(source, "", "E").unwrap();
        assert_eq!(template.render(&turns(), false).unwrap(), "Read <b>.122\"assistant\"E");
    }

    #[test]
    fn endless_and_failing_templates_are_errors() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a * b }}{% endfor %}{% endfor %}";
        let template = ChatTemplate::new(endless, "", "").unwrap();
        assert!(template.render(&turns(), false).unwrap_err().to_string().contains("fuel"));
        let template = ChatTemplate::new("\n{{ raise_exception('roles must alternate') }}", "", "").unwrap();
        let error = template.render(&turns(), false).unwrap_err().to_string();
        assert_eq!(error, "chat template: line 2: roles must alternate");
        assert!(ChatTemplate::new("{% for %}", "", "").is_err());
    }
}
