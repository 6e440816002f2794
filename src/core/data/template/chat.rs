//! A model's template with its special tokens, and what it makes of a conversation.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use minijinja::value::Serde;
use minijinja::{Environment, Value, context};
use serde::Serialize;
use serde_json::{Map, Value as Json};

use super::answers::take_marks;
use super::environment::{describe, environment};
use super::output::{MAX_OUTPUT, Output};
use crate::data::error::DataError;
use crate::data::source::{Part, Turn};
use crate::data::tokenizer::{read_json, token_text};

/// A content by which a template is tried.
const PROBE: &str = "loongforge-probe";

pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The template's variables `bos_token`, `eos_token` and so on.
    tokens: BTreeMap<String, String>,
    /// The template does not know a plain string as content.
    parts_only: bool,
    /// The template says itself what is the assistant's, by `{% generation %}`.
    marks_answers: bool,
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
        let environment = environment(source)?;
        let mut tokens: BTreeMap<String, String> =
            ["bos_token", "eos_token"].map(|key| (key.to_owned(), String::new())).into();
        let keys = tokenizer_config.as_object().into_iter().flatten().filter(|(key, _)| key.ends_with("_token"));
        tokens.extend(keys.filter_map(|(key, token)| Some((key.clone(), token_text(token)?.to_owned()))));
        let mut template = Self { environment, tokens, parts_only: false, marks_answers: false };
        let probe = [Turn::text("user", PROBE)];
        let shows = |template: &Self| template.render(&probe, false).is_ok_and(|text| text.contains(PROBE));
        if !shows(&template) {
            template.parts_only = true;
            template.parts_only = shows(&template);
        }
        template.marks_answers = source.contains("endgeneration");
        Ok(template)
    }

    /// The template in a model folder, or `None`: `chat_template.jinja`, `chat_template.json` or the key
    /// `chat_template` of `tokenizer_config.json`.
    pub fn find(model_dir: &Path, tokenizer_config: &Json) -> Result<Option<String>, DataError> {
        let path = model_dir.join("chat_template.jinja");
        if path.exists() {
            return crate::files::read_text(&path).map(Some).map_err(|error| DataError::read(&path, error));
        }
        let path = model_dir.join("chat_template.json");
        let holder = if path.exists() { read_json(&path)? } else { tokenizer_config.clone() };
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

    /// Whether the template says itself what is the assistant's.
    pub fn marks_answers(&self) -> bool {
        self.marks_answers
    }

    /// The conversation as one string; with `add_generation_prompt` it ends where the assistant is to speak.
    pub fn render(&self, turns: &[Turn], add_generation_prompt: bool) -> Result<String, DataError> {
        self.render_marked(turns, add_generation_prompt).map(|(text, _)| text)
    }

    /// The conversation as one string, and where the template says that the assistant speaks: `{% generation %}`, from which
    /// transformers' `return_assistant_tokens_mask` is made.
    pub fn render_marked(
        &self,
        turns: &[Turn],
        add_generation_prompt: bool,
    ) -> Result<(String, Vec<Range<usize>>), DataError> {
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
        let context = context! {
            messages => Value::from(Serde(&messages)),
            add_generation_prompt,
            tools,
            ..Value::from(Serde(&self.tokens))
        };
        let mut output = Output::default();
        match template.render_captured_to(context, &mut output) {
            _ if output.is_full => {
                Err(DataError::Template(format!("makes more than {} MiB of text", MAX_OUTPUT >> 20)))
            }
            Ok(_) => {
                let text = String::from_utf8(output.text).expect("templates write text");
                Ok(if self.marks_answers { take_marks(&text) } else { (text, Vec::new()) })
            }
            Err(error) => Err(describe(error)),
        }
    }
}
