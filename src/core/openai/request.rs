//! A request, read and checked.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_json::Value as Json;

use super::error::ApiError;
use super::fields::{Fields, MAX_NAME};
use super::messages::conversation;
use crate::data::Question;

/// Stop strings of a request at most, and bytes of each.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
/// Answers to a request at most, as with OpenAI.
const MAX_ANSWERS: i64 = 128;
/// Most likely tokens at each place at most, as with OpenAI's chats and vLLM.
const MAX_TOP: i64 = 20;
/// Tokens at most that a request makes more or less likely, and by how much at most.
const MAX_BIASED: usize = 1024;
const BIASES: RangeInclusive<f64> = -100.0..=100.0;
/// No model's context is longer.
const MAX_TOKENS: i64 = 1 << 24;

/// The interface that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
}

/// The settings by which tokens are chosen, as the request gives them.
#[derive(Clone, Debug, PartialEq)]
pub struct Chance {
    /// 0: the most likely token.
    pub temperature: f64,
    /// 0: all.
    pub top_k: i64,
    pub top_p: f64,
    pub min_p: f64,
    pub repetition_penalty: Option<f64>,
    pub presence_penalty: f64,
    pub frequency_penalty: f64,
    /// Numbers that are added to the scores of tokens, by their ids, which are not below 0.
    pub logit_bias: BTreeMap<i64, f64>,
    /// `None`: another one each time.
    pub seed: Option<u64>,
}

impl Chance {
    /// Checks that the model, of `vocab_size` tokens, has those that are named.
    ///
    /// # Errors
    /// It does not.
    pub fn expect_tokens(&self, vocab_size: i64) -> Result<(), ApiError> {
        match self.logit_bias.last_key_value() {
            Some((&id, _)) if id >= vocab_size => {
                let last = vocab_size - 1;
                let reason = format!("`logit_bias` names token {id}, but the model's tokens have the ids 0 to {last}");
                Err(ApiError::bad("logit_bias", reason))
            }
            _ => Ok(()),
        }
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub endpoint: Endpoint,
    pub model: Option<String>,
    /// One chat, or the prompts of `/v1/completions`.
    pub questions: Vec<Question>,
    /// The field that has them.
    pub questions_field: &'static str,
    /// The text that the answers begin with.
    pub start: String,
    /// Answers to each of them, drawn independently.
    pub n: usize,
    /// `None`: as many as the server allows.
    pub max_tokens: Option<usize>,
    /// The field that says so: it has two names.
    pub max_tokens_field: &'static str,
    pub chance: Chance,
    pub stops: Vec<String>,
    /// Tell how likely each token was, with so many of the most likely ones; `None`: do not.
    pub top_logprobs: Option<usize>,
    /// An answer may call tools more than once.
    pub parallel_calls: bool,
    /// The answer comes in pieces, as server-sent events.
    pub streams: bool,
    /// The last of them has the numbers of tokens.
    pub includes_usage: bool,
}

impl Asked {
    /// Reads a request's body. Files that it names are not looked at: [`super::confine`] says which may be.
    ///
    /// # Errors
    /// The request is wrong, or asks for something that cannot be done; the error names the field.
    pub fn read(endpoint: Endpoint, body: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::read(body)?;
        let (questions, questions_field) = match endpoint {
            Endpoint::Chat => (vec![Question::Chat(conversation(&mut fields)?)], "messages"),
            Endpoint::Completions => (prompts(&mut fields)?, "prompt"),
        };
        let (max_tokens, max_tokens_field) = max_tokens(&mut fields, endpoint)?;
        let asked = Self {
            endpoint,
            model: fields.text("model")?,
            questions,
            questions_field,
            start: String::new(),
            n: fields.integer("n", 1..=MAX_ANSWERS)?.unwrap_or(1) as usize,
            max_tokens,
            max_tokens_field,
            chance: chance(&mut fields)?,
            stops: fields.texts("stop", MAX_STOPS)?,
            top_logprobs: top_logprobs(&mut fields, endpoint)?,
            parallel_calls: endpoint != Endpoint::Chat || fields.flag("parallel_tool_calls")?.unwrap_or(true),
            streams: fields.flag("stream")?.unwrap_or(false),
            includes_usage: includes_usage(&mut fields)?,
        };
        if asked.num_answers() > MAX_ANSWERS as usize {
            let (n, all) = (asked.n, asked.num_answers());
            let reason = format!("`n` is {n}, which makes {all} answers; a request may have {MAX_ANSWERS}");
            return Err(ApiError::bad("n", reason));
        }
        if asked.stops.iter().any(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
            return Err(ApiError::bad("stop", format!("a stop string must have 1 to {MAX_STOP_BYTES} bytes")));
        }
        if asked.includes_usage && !asked.streams {
            return Err(ApiError::bad("stream_options", "`stream_options` requires `stream`"));
        }
        refuse(&mut fields, endpoint)?;
        fields.finish()?;
        Ok(asked)
    }

    /// Returns the number of answers to all questions. Those to the first one come first.
    pub fn num_answers(&self) -> usize {
        self.questions.len() * self.n
    }
}

/// Reads the texts of `/v1/completions`.
fn prompts(fields: &mut Fields) -> Result<Vec<Question>, ApiError> {
    let wrong = || {
        let reason = format!("`prompt` must be a non-empty string, or a list of 1 to {MAX_ANSWERS} of them");
        ApiError::bad("prompt", reason)
    };
    let list = match fields.take("prompt") {
        Some(Json::Array(list)) => list,
        Some(text) => vec![text],
        None => return Err(wrong()),
    };
    if list.is_empty() || list.len() > MAX_ANSWERS as usize {
        return Err(wrong());
    }
    let question = |value| match value {
        Json::String(text) if !text.is_empty() => Ok(Question::Text(text)),
        Json::Number(_) | Json::Array(_) => {
            Err(ApiError::unsupported("prompt", "it must be a string or a list of strings, not of tokens"))
        }
        _ => Err(wrong()),
    };
    list.into_iter().map(question).collect()
}

/// Returns the number of tokens that an answer may have, and the field that says so.
fn max_tokens(fields: &mut Fields, endpoint: Endpoint) -> Result<(Option<usize>, &'static str), ApiError> {
    let (mut count, mut field) = (fields.integer("max_tokens", 1..=MAX_TOKENS)?, "max_tokens");
    if endpoint == Endpoint::Chat
        && let Some(newer) = fields.integer("max_completion_tokens", 1..=MAX_TOKENS)?
    {
        if count.is_some_and(|count| count != newer) {
            let reason = "`max_tokens` and `max_completion_tokens` contradict each other";
            return Err(ApiError::bad("max_completion_tokens", reason));
        }
        (count, field) = (Some(newer), "max_completion_tokens");
    }
    Ok((count.map(|count| count as usize), field))
}

fn chance(fields: &mut Fields) -> Result<Chance, ApiError> {
    let top_p = fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0);
    let penalty = fields.number("repetition_penalty", 0.01..=100.0)?;
    Ok(Chance {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0),
        // vLLM's -1 means all as well.
        top_k: fields.integer("top_k", -1..=i64::from(i32::MAX))?.unwrap_or(0).max(0),
        top_p,
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0),
        repetition_penalty: penalty.filter(|penalty| *penalty != 1.0),
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        logit_bias: logit_bias(fields)?,
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64),
    })
}

/// Reads what is added to the scores of tokens. Whether the model has them, [`Chance::expect_tokens`] says.
fn logit_bias(fields: &mut Fields) -> Result<BTreeMap<i64, f64>, ApiError> {
    let name = "logit_bias";
    let given = match fields.take(name) {
        None => return Ok(BTreeMap::new()),
        Some(Json::Object(given)) if given.len() <= MAX_BIASED => given,
        Some(_) => {
            let reason = format!("`{name}` must be an object of at most {MAX_BIASED} token ids and their biases");
            return Err(ApiError::bad(name, reason));
        }
    };
    let biased = |(key, bias): (String, Json)| {
        let Some(id) = key.parse::<i64>().ok().filter(|id| *id >= 0 && id.to_string() == key) else {
            let key: String = key.chars().take(MAX_NAME).collect();
            let reason = format!("`{name}` has the key {key:?}; its keys must be ids of tokens, such as \"42\"");
            return Err(ApiError::bad(name, reason));
        };
        let (low, high) = (*BIASES.start(), *BIASES.end());
        let wrong = || ApiError::bad(name, format!("`{name}` of token {id} must be a number from {low} to {high}"));
        Ok((id, bias.as_f64().filter(|bias| BIASES.contains(bias)).ok_or_else(wrong)?))
    };
    given.into_iter().map(biased).collect()
}

/// Returns the number of the most likely tokens that are told at each place; `None`: no log probabilities are told.
fn top_logprobs(fields: &mut Fields, endpoint: Endpoint) -> Result<Option<usize>, ApiError> {
    if endpoint == Endpoint::Completions {
        return Ok(fields.integer("logprobs", 0..=MAX_TOP)?.map(|count| count as usize));
    }
    let is_told = fields.flag("logprobs")?.unwrap_or(false);
    let count = fields.integer("top_logprobs", 0..=MAX_TOP)?.unwrap_or(0);
    match count > 0 && !is_told {
        true => Err(ApiError::bad("top_logprobs", "`top_logprobs` requires `logprobs`: set it to true")),
        false => Ok(is_told.then_some(count as usize)),
    }
}

fn includes_usage(fields: &mut Fields) -> Result<bool, ApiError> {
    let options = match fields.take("stream_options") {
        None => return Ok(false),
        Some(Json::Object(options)) => options,
        Some(_) => return Err(ApiError::bad("stream_options", "`stream_options` must be an object")),
    };
    let mut includes = false;
    for (name, value) in options {
        let param = format!("stream_options.{}", name.chars().take(MAX_NAME).collect::<String>());
        match (name.as_str(), value) {
            (_, Json::Null) | ("include_obfuscation", Json::Bool(false)) => {}
            ("include_usage", Json::Bool(flag)) => includes = flag,
            ("include_usage", _) => {
                return Err(ApiError::bad(param.clone(), format!("`{param}` must be true or false")));
            }
            _ => return Err(ApiError::unsupported(param, "only `include_usage` is")),
        }
    }
    Ok(includes)
}

/// Fields of OpenAI's that this server does not do, beside values of theirs that ask for nothing.
fn refuse(fields: &mut Fields, endpoint: Endpoint) -> Result<(), ApiError> {
    let is_one = |value: &Json| value.as_i64() == Some(1);
    let is_false = |value: &Json| value.as_bool() == Some(false);
    // Who asks is nothing that an answer depends on.
    fields.only("user", Json::is_string, "it must be a string")?;
    match endpoint {
        Endpoint::Chat => {
            let is_text = |value: &Json| value.get("type").and_then(Json::as_str) == Some("text");
            let hint = "only {\"type\": \"text\"} is supported: describe the format in a message, and check the answer";
            fields.only("response_format", is_text, hint)?;
            fields.only("metadata", Json::is_object, "it must be an object")?;
            for name in ["prompt_cache_key", "safety_identifier", "service_tier"] {
                fields.only(name, Json::is_string, "it must be a string")?;
            }
            fields.only("store", is_false, "answers are not stored")
        }
        Endpoint::Completions => {
            fields.only("echo", is_false, "the prompt is not repeated")?;
            fields.only("best_of", is_one, "ask for several answers with `n`")?;
            fields.only("suffix", |value| value.as_str() == Some(""), "text can only be continued at its end")
        }
    }
}
