//! What is sent back for a request.

use serde_json::{Value as Json, json};

use super::request::Endpoint;

/// Why an answer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended it, or a stop string did.
    Stop,
    /// It has as many tokens as it may have.
    Length,
}

impl Finish {
    /// Returns the value of `finish_reason` in OpenAI's answers.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
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

/// What all that is said of the answers to one request has in common.
#[derive(Clone, Debug)]
pub struct Reply {
    pub endpoint: Endpoint,
    /// Nobody else's.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
}

impl Reply {
    /// The whole answers, in their order.
    pub fn whole(&self, answers: &[(String, Finish)], usage: Usage) -> Json {
        let choice = |(index, (text, finish)): (usize, &(String, Finish))| {
            let mut choice = json!({"index": index, "logprobs": null, "finish_reason": finish.name()});
            match self.endpoint {
                Endpoint::Chat => choice["message"] = json!({"role": "assistant", "content": text, "refusal": null}),
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

    /// A piece of answer `index`; the first of a chat says who speaks.
    pub fn piece(&self, index: usize, text: &str, is_first: bool) -> Json {
        let delta = match is_first {
            true => json!({"role": "assistant", "content": text}),
            false => json!({"content": text}),
        };
        self.chunk(index, delta, text, None)
    }

    /// The last piece of answer `index`, which says why it has ended.
    pub fn end(&self, index: usize, finish: Finish) -> Json {
        self.chunk(index, json!({}), "", Some(finish))
    }

    /// What comes after the last piece, where the numbers of tokens are asked for.
    pub fn usage(&self, usage: Usage) -> Json {
        self.json(self.chunk_object(), json!([]), Some(usage))
    }

    fn chunk(&self, index: usize, delta: Json, text: &str, finish: Option<Finish>) -> Json {
        let mut choice = json!({"index": index, "logprobs": null, "finish_reason": finish.map(Finish::name)});
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
        if let Some(usage) = usage {
            reply["usage"] = usage.json();
        }
        reply
    }
}

/// The answer to `/v1/models`: the one that is served.
pub fn models(name: &str, created: u64) -> Json {
    json!({"object": "list", "data": [{"id": name, "object": "model", "created": created, "owned_by": "loongforge"}]})
}
