//! A model's template with its special tokens, and what it makes of a conversation.

use std::collections::{BTreeMap, HashSet};
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
use crate::data::source::{Part, Turn, Written};
use crate::data::tokenizer_file::{read_json, token_text};

/// The folder of a model's templates that have names, beside `chat_template.jinja`, which has none.
pub const NAMED_TEMPLATES: &str = "additional_chat_templates";
/// The one of them that renders conversations with tools.
pub const TOOLS_TEMPLATE: &str = "additional_chat_templates/tool_use.jinja";
/// A content by which a template is tried.
const PROBE: &str = "loongforge-probe";

/// A rendered conversation, and where in it the template says that the assistant speaks.
type Marked = (String, Vec<Range<usize>>);

pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The template's variables `bos_token`, `eos_token` and so on.
    tokens: BTreeMap<String, String>,
    /// Variables that the template does not set itself.
    variables: HashSet<String>,
    /// Variables that the user sets.
    kwargs: Map<String, Json>,
    /// The template does not know a plain string as content.
    parts_only: bool,
    /// The template knows lists of parts as content of the system's, the user's and the assistant's messages.
    lists: [bool; 3],
    /// The template says itself what is the assistant's, by `{% generation %}`.
    marks_answers: bool,
    /// The template renders tools.
    takes_tools: bool,
    /// The template writes calls of tools as JSON between `<tool_call>` and `</tool_call>`.
    tags_calls: bool,
    /// Renders conversations with tools; `None`: this one does.
    of_tools: Option<Box<ChatTemplate>>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Content<'a>>,
    #[serde(flatten)]
    fields: &'a Map<String, Json>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(String),
    Parts(&'a [Part]),
    Null,
}

/// The form in which a conversation is rendered.
#[derive(Clone, Copy)]
struct Rendering {
    /// It ends where the assistant is to speak: the template's `add_generation_prompt`.
    prompts: bool,
    /// True if it gets the variables that the user and the turns set.
    with_kwargs: bool,
}

impl Rendering {
    /// The conversation as it is learned.
    const WHOLE: Self = Self { prompts: false, with_kwargs: true };
}

impl ChatTemplate {
    /// The special tokens of `tokenizer_config` are the template's variables of the same names.
    ///
    /// # Errors
    /// The template has a syntax that is not Jinja's.
    pub fn new(source: &str, tokenizer_config: &Json) -> Result<Self, DataError> {
        let (environment, variables) = environment(source)?;
        let extra = tokenizer_config["extra_special_tokens"].as_object().into_iter().flatten();
        let own = tokenizer_config.as_object().into_iter().flatten().filter(|(key, _)| key.ends_with("_token"));
        let tokens = extra.chain(own).filter_map(|(key, token)| Some((key.clone(), token_text(token)?.to_owned())));
        let tokens = tokens.collect();
        let kwargs = Map::new();
        let (parts_only, lists, marks_answers, of_tools) = (false, [true; 3], false, None);
        let mut template = Self {
            environment,
            variables,
            tokens,
            kwargs,
            parts_only,
            lists,
            marks_answers,
            takes_tools: source.contains("tools"),
            // Qwen3-Coder and GLM have other calls between the same tags.
            tags_calls: source.contains("<tool_call>")
                && !["<function=", "<arg_key>"].iter().any(|it| source.contains(it)),
            of_tools,
        };
        let probe = [Turn::text("user", PROBE)];
        let shows = |template: &Self| template.render(&probe).is_ok_and(|text| text.contains(PROBE));
        if !shows(&template) {
            template.parts_only = true;
            template.parts_only = shows(&template);
        }
        template.marks_answers = source.contains("endgeneration");
        template.lists = [0, 1, 2].map(|role| template.knows_lists(role));
        Ok(template)
    }

    /// Returns whether a list of parts is rendered, as content of the system's, the user's or the assistant's message:
    /// neither refused nor printed as a list.
    fn knows_lists(&self, role: usize) -> bool {
        let mut turns = [("system", "s"), ("user", "u"), ("assistant", "a")].map(|(role, text)| Turn::text(role, text));
        turns[role] = Turn { written: Written::Parts, ..Turn::text(&turns[role].role, PROBE) };
        let turns = if role == 0 { &turns[..2] } else { &turns[1..=role] };
        self.render(turns).is_ok_and(|text| text.contains(PROBE) && !text.contains("'type'"))
    }

    /// Sets variables for every conversation, over those that are set already.
    ///
    /// # Errors
    /// The template has no such variable.
    pub fn with_kwargs(self, kwargs: Map<String, Json>) -> Result<Self, DataError> {
        match kwargs.keys().find(|key| !self.knows(key)) {
            Some(key) => Err(DataError::Template(format!("has no variable {key:?}, which data.template_kwargs sets"))),
            None => {
                let kwargs = self.kwargs.into_iter().chain(kwargs).collect();
                let template = Self { kwargs, of_tools: None, ..self };
                Ok(match self.of_tools {
                    Some(other) => template.with_tool_use(*other),
                    None => template,
                })
            }
        }
    }

    /// Lets `other` render conversations with tools, with the same variables.
    #[must_use]
    pub fn with_tool_use(self, other: Self) -> Self {
        let other = Self { kwargs: self.kwargs.clone(), ..other };
        Self { of_tools: Some(Box::new(other)), ..self }
    }

    /// Returns the template that renders these turns.
    pub fn of(&self, turns: &[Turn]) -> &Self {
        match &self.of_tools {
            Some(other) if turns.iter().any(|turn| !turn.tools.is_empty()) => other,
            _ => self,
        }
    }

    /// Returns whether the template uses a variable that a user may set.
    pub fn knows(&self, variable: &str) -> bool {
        let own = ["messages", "tools", "documents", "add_generation_prompt"];
        !own.contains(&variable) && self.variables.contains(variable)
    }

    /// Returns whether the template has this word in quotes, as it has the roles that it tells apart.
    pub fn quotes(&self, word: &str) -> bool {
        let quoted = ['\'', '"'].map(|quote| format!("{quote}{word}{quote}"));
        let has = |source: &str| quoted.iter().any(|quoted| source.contains(quoted));
        self.environment.get_template("chat").is_ok_and(|template| has(template.source()))
    }

    /// Returns the template in a model folder, or `None`: `chat_template.jinja`, `chat_template.json` or the key `chat_template` of
    /// `tokenizer_config.json`.
    ///
    /// # Errors
    /// A file cannot be read, or does not have the template as a text.
    pub fn find(model_dir: &Path, tokenizer_config: &Json) -> Result<Option<String>, DataError> {
        if let Some(source) = text_of(&model_dir.join("chat_template.jinja"))? {
            return Ok(Some(source));
        }
        Ok(match listed(model_dir, tokenizer_config)? {
            Json::String(source) => Some(source),
            listed => named(&listed, "default"),
        })
    }

    /// Returns the template that a model has for conversations with tools, beside that for others: [`TOOLS_TEMPLATE`], or `tool_use` of a
    /// list; `None`: it has none. A `chat_template.jinja` alone is for all.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn find_tool_use(model_dir: &Path, tokenizer_config: &Json) -> Result<Option<String>, DataError> {
        match text_of(&model_dir.join(TOOLS_TEMPLATE))? {
            None if model_dir.join("chat_template.jinja").exists() => Ok(None),
            None => Ok(named(&listed(model_dir, tokenizer_config)?, "tool_use")),
            own => Ok(own),
        }
    }

    /// Returns whether the template says itself what is the assistant's.
    pub fn marks_answers(&self) -> bool {
        self.marks_answers
    }

    /// Returns whether the template renders tools; one without a word of them leaves them out.
    pub fn takes_tools(&self) -> bool {
        self.takes_tools
    }

    /// Returns whether the template writes calls of tools as Hermes and Qwen do: `<tool_call>{"name": …, "arguments": …}</tool_call>`.
    pub fn tags_calls(&self) -> bool {
        self.tags_calls
    }

    /// Returns the content as it is written, where the template knows that: text that lies in parts is joined for a
    /// template that knows no lists.
    fn content<'a>(&self, turn: &'a Turn) -> Option<Content<'a>> {
        let role = match turn.role.as_str() {
            "system" => 0,
            "assistant" => 2,
            _ => 1,
        };
        match turn.written {
            _ if turn.num_media() > 0 => Some(Content::Parts(&turn.parts)),
            Written::Absent => None,
            Written::Null => Some(Content::Null),
            Written::Parts if self.lists[role] => Some(Content::Parts(&turn.parts)),
            Written::Text | Written::Parts if self.parts_only => Some(Content::Parts(&turn.parts)),
            Written::Text | Written::Parts => Some(Content::Text(turn.joined_text())),
        }
    }

    /// Returns the conversation as one string.
    ///
    /// # Errors
    /// The template raises, or fails on these turns.
    pub fn render(&self, turns: &[Turn]) -> Result<String, DataError> {
        self.render_marked(turns).map(|(text, _)| text)
    }

    /// Returns the conversation as one string that ends where the assistant is to speak.
    ///
    /// # Errors
    /// Fails as [`ChatTemplate::render`] does.
    pub fn render_prompt(&self, turns: &[Turn]) -> Result<String, DataError> {
        let rendering = Rendering { prompts: true, ..Rendering::WHOLE };
        self.render_with(turns, rendering).map(|(text, _)| text)
    }

    /// Returns the text that the template adds for an answer to `turns`, with or without the variables that the user and the turns set;
    /// `None` where it adds nothing.
    pub fn generation_prompt(&self, turns: &[Turn], with_kwargs: bool) -> Option<String> {
        let render = |prompts| self.render_with(turns, Rendering { prompts, with_kwargs }).ok();
        let (plain, (prompt, _)) = (render(false)?.0, render(true)?);
        prompt.strip_prefix(plain.as_str()).filter(|added| !added.is_empty()).map(str::to_owned)
    }

    /// Returns the conversation as one string, and where the template says that the assistant speaks: `{% generation %}`, from which
    /// transformers' `return_assistant_tokens_mask` is made.
    ///
    /// # Errors
    /// Fails as [`ChatTemplate::render`] does.
    pub fn render_marked(&self, turns: &[Turn]) -> Result<Marked, DataError> {
        self.render_with(turns, Rendering::WHOLE)
    }

    fn render_with(&self, turns: &[Turn], rendering: Rendering) -> Result<Marked, DataError> {
        let messages: Vec<Message<'_>> = turns
            .iter()
            .map(|turn| Message { role: &turn.role, content: self.content(turn), fields: &turn.fields })
            .collect();
        let tools: Vec<&Json> = turns.iter().flat_map(|turn| &turn.tools).collect();
        let tools = if tools.is_empty() { Value::from(()) } else { Value::from(Serde(&tools)) };
        let template = self.environment.get_template("chat").map_err(describe)?;
        let mut kwargs = Map::new();
        if rendering.with_kwargs {
            kwargs.extend(self.kwargs.clone());
            kwargs.extend(turns.iter().flat_map(|turn| turn.kwargs.clone()));
        }
        let context = context! {
            messages => Value::from(Serde(&messages)),
            add_generation_prompt => rendering.prompts,
            tools,
            documents => (),
            ..context! { ..Value::from(Serde(&kwargs)), ..Value::from(Serde(&self.tokens)) },
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

/// Returns the text of a file, where there is one.
fn text_of(path: &Path) -> Result<Option<String>, DataError> {
    match path.exists() {
        true => crate::files::read_text(path).map(Some).map_err(|error| DataError::read(path, error)),
        false => Ok(None),
    }
}

/// Returns the key `chat_template` of `chat_template.json` or `tokenizer_config.json`: a template, or a list of named ones.
fn listed(model_dir: &Path, tokenizer_config: &Json) -> Result<Json, DataError> {
    let path = model_dir.join("chat_template.json");
    let mut holder = if path.exists() { read_json(&path)? } else { tokenizer_config.clone() };
    Ok(holder.get_mut("chat_template").map(Json::take).unwrap_or_default())
}

/// Returns the template of this name in a list.
fn named(listed: &Json, name: &str) -> Option<String> {
    let found = listed.as_array()?.iter().find(|template| template["name"] == name);
    found?["template"].as_str().map(str::to_owned)
}
