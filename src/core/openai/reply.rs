//! The JSON that is sent back for a request.

use serde_json::{Value as Json, json};

use super::calls::Call;
use super::likely::{Likely, logprobs};
use super::request::Endpoint;

/// The reason why an answer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or a stop string did.
    Stop,
    /// It has as many tokens as it may have.
    Length,
    /// The model ended it behind calls of tools.
    ToolCalls,
}

impl Finish {
    /// Returns the value of `finish_reason` in OpenAI's answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
        }
    }
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub text: String,
    pub calls: Vec<Call>,
    /// The probabilities of its tokens, where they are asked for.
    pub likely: Vec<Likely>,
    pub finish: Finish,
}

/// Numbers of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
}

impl Usage {
    fn json(self) -> Json {
        let Self { prompt_tokens, completion_tokens } = self;
        let total_tokens = prompt_tokens + completion_tokens;
        json!({"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total_tokens})
    }
}

/// The properties that all answers to one request have in common.
#[derive(Clone, Debug)]
pub struct Reply {
    pub endpoint: Endpoint,
    /// Nobody else's.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    /// Each token's probability is asked for.
    pub has_logprobs: bool,
    /// The numbers of tokens come behind the pieces, each of which has `usage` then, which is `null`.
    pub includes_usage: bool,
}

impl Reply {
    /// Returns the whole answers, in their order.
    pub fn whole(&self, answers: &[Answer], usage: Usage) -> Json {
        let choice = |(index, answer): (usize, &Answer)| {
            let Answer { text, calls, likely, finish } = answer;
            let logprobs = self.has_logprobs.then(|| logprobs(self.endpoint, likely));
            let mut choice = json!({"index": index, "logprobs": logprobs, "finish_reason": finish.name()});
            match self.endpoint {
                Endpoint::Chat => {
                    // An answer of calls alone has no content.
                    let content = Some(text).filter(|text| calls.is_empty() || !text.is_empty());
                    choice["message"] = json!({"role": "assistant", "content": content, "refusal": null});
                    if !calls.is_empty() {
                        let calls = calls.iter().enumerate().map(|(number, call)| self.call_json(index, number, call));
                        choice["message"]["tool_calls"] = calls.collect();
                    }
                }
                Endpoint::Completions => choice["text"] = text.as_str().into(),
            }
            choice
        };
        let object = match self.endpoint {
            Endpoint::Chat => "chat.completion",
            Endpoint::Completions => "text_completion",
        };
        self.json(object, answers.iter().enumerate().map(choice).collect(), Some(usage))
    }

    /// Returns the first piece of answer `index`, without text; that of a chat says who speaks.
    pub fn begin(&self, index: usize) -> Json {
        self.chunk(index, json!({"role": "assistant", "content": ""}), "", &[], None)
    }

    /// Returns a piece of answer `index`, and the tokens since the one before.
    pub fn piece(&self, index: usize, text: &str, likely: &[Likely]) -> Json {
        self.chunk(index, json!({"content": text}), text, likely, None)
    }

    /// Returns the piece with call `number` of answer `index`, counted from 0, and the tokens since the piece before.
    pub fn call(&self, index: usize, number: usize, call: &Call, likely: &[Likely]) -> Json {
        let mut json = self.call_json(index, number, call);
        json["index"] = number.into();
        self.chunk(index, json!({"tool_calls": [json]}), "", likely, None)
    }

    /// Returns a call, with an id that no other has.
    fn call_json(&self, index: usize, number: usize, call: &Call) -> Json {
        let id = format!("call-{}-{index}-{number}", self.id.trim_start_matches("chatcmpl-"));
        json!({"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
    }

    /// Returns the last piece of answer `index`, which says why it has ended, and the tokens since the one before.
    pub fn end(&self, index: usize, finish: Finish, likely: &[Likely]) -> Json {
        self.chunk(index, json!({}), "", likely, Some(finish))
    }

    /// Returns the piece after the last one, where the numbers of tokens are asked for.
    pub fn usage(&self, usage: Usage) -> Json {
        self.json(self.chunk_object(), json!([]), Some(usage))
    }

    fn chunk(&self, index: usize, delta: Json, text: &str, likely: &[Likely], finish: Option<Finish>) -> Json {
        let logprobs = (!likely.is_empty()).then(|| logprobs(self.endpoint, likely));
        let mut choice = json!({"index": index, "logprobs": logprobs, "finish_reason": finish.map(Finish::name)});
        match self.endpoint {
            Endpoint::Chat => choice["delta"] = delta,
            Endpoint::Completions => choice["text"] = text.into(),
        }
        self.json(self.chunk_object(), json!([choice]), None)
    }

    fn chunk_object(&self) -> &'static str {
        match self.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completions => "text_completion",
        }
    }

    fn json(&self, object: &str, choices: Json, usage: Option<Usage>) -> Json {
        let Self { id, created, model, .. } = self;
        let mut reply = json!({"id": id, "object": object, "created": created, "model": model, "choices": choices});
        match usage {
            Some(usage) => reply["usage"] = usage.json(),
            None if self.includes_usage => reply["usage"] = Json::Null,
            None => {}
        }
        reply
    }
}

/// Returns the answer to `/v1/models`: the one that is served.
pub fn models(name: &str, created: u64) -> Json {
    json!({"object": "list", "data": [{"id": name, "object": "model", "created": created, "owned_by": "loongforge"}]})
}
