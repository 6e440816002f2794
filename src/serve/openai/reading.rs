//! Converts requests into what the model takes, in threads of their own and not in the model's: a large one delays no other.

use super::random::random;
use crate::answer::{Positions, Wanted};
use crate::eval::generator::Reader;
use loongforge_core::data::{DataError, Processor, Question, Sample};
use loongforge_core::message::SampleId;
use loongforge_core::openai::{ApiError, Asked, CallStream, confine};
use loongforge_torch::model::Sampling;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The limits of the requests to a server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// New tokens of an answer.
    pub max_new_tokens: usize,
    /// Tokens of a prompt and its answer, where the model has no fewer.
    pub max_context: usize,
    /// Answers that are made together.
    pub batch: usize,
    /// Requests that wait.
    pub queue: usize,
    /// Requests may name files below this folder.
    pub files: Option<PathBuf>,
}

/// Reads requests for a model.
pub struct Reading {
    processor: Arc<Processor>,
    positions: Option<Positions>,
    limits: Limits,
    model_type: String,
}

/// A question that can be answered.
pub struct Ready {
    pub sample: Arc<Sample>,
    pub wanted: Wanted,
    pub calls: Option<CallStream>,
}

impl Reading {
    /// Reads for the model of `reader`.
    pub fn new(reader: &Reader, limits: Limits) -> Self {
        let config = &reader.model().folder().json;
        let model_type = config["model_type"].as_str().unwrap_or_default().to_owned();
        Self { processor: reader.shared_processor(), positions: Positions::of(config), limits, model_type }
    }

    /// Returns the model's type, as its config says it.
    pub fn model_type(&self) -> &str {
        &self.model_type
    }

    /// Reads all questions of a request, in their order.
    ///
    /// # Errors
    /// 400: one of them cannot be answered, or a token is named that the model lacks.
    pub fn read_all(&self, mut asked: Asked) -> Result<Vec<Ready>, ApiError> {
        asked.chance.expect_tokens(self.processor.tokenizer().vocab_size())?;
        let questions = std::mem::take(&mut asked.questions);
        let is_list = questions.len() > 1;
        let read = |(at, question): (usize, Question)| {
            let field = asked.questions_field;
            let param = if is_list { format!("{field}[{at}]") } else { field.to_owned() };
            self.read(&asked, question, &param)
        };
        questions.into_iter().enumerate().map(read).collect()
    }

    /// Reads one of the questions, which the field `param` has.
    fn read(&self, asked: &Asked, question: Question, param: &str) -> Result<Ready, ApiError> {
        let Self { positions, ref limits, .. } = *self;
        let goes_on = matches!(question, Question::Text(_));
        let (sample, calls) = self.prompt(asked, question, param)?;
        let num_tokens = sample.input_ids.len();
        let left = positions.map_or(usize::MAX, |positions| positions.left(num_tokens));
        let room = left.min(limits.max_context.saturating_sub(num_tokens));
        let most = self.most();
        if num_tokens == 0 {
            return Err(ApiError::bad(param, "the prompt has no tokens"));
        }
        if room == 0 {
            return Err(too_long(param, format!("the prompt has {num_tokens} tokens; {most}")));
        }
        let max_new_tokens = match asked.max_tokens {
            None => limits.max_new_tokens.min(room),
            Some(wanted) if wanted > limits.max_new_tokens => {
                let (most, field) = (limits.max_new_tokens, asked.max_tokens_field);
                let reason = format!(
                    "`{field}` is {wanted}, but this server generates at most {most} (start it with --max-new-tokens)"
                );
                return Err(ApiError::bad(field, reason));
            }
            Some(wanted) if wanted > room => {
                let reason = format!("the prompt has {num_tokens} tokens and the answer up to {wanted}: {most}");
                return Err(too_long(param, reason));
            }
            Some(wanted) => wanted,
        };
        let chance = &asked.chance;
        let is_greedy = chance.temperature == 0.0 || chance.top_p == 0.0;
        let sampling = (!is_greedy).then(|| Sampling {
            temperature: chance.temperature,
            top_k: chance.top_k,
            top_p: chance.top_p,
            min_p: chance.min_p,
            seed: chance.seed.unwrap_or_else(random),
        });
        let wanted = Wanted {
            max_new_tokens,
            sampling,
            repetition_penalty: chance.repetition_penalty,
            presence_penalty: chance.presence_penalty,
            frequency_penalty: chance.frequency_penalty,
            logit_bias: chance.logit_bias.clone(),
            stops: asked.stops.clone(),
            top_logprobs: asked.top_logprobs,
            goes_on,
        };
        Ok(Ready { sample: Arc::new(sample), wanted, calls })
    }

    /// Says how many tokens there may be.
    fn most(&self) -> String {
        let max_context = self.limits.max_context;
        match self.positions {
            Some(Positions { most, apart: true }) => {
                format!("prompt and answer may have at most {most} tokens each and {max_context} together")
            }
            Some(Positions { most, apart: false }) => {
                format!("prompt and answer together may have at most {} tokens", most.min(max_context))
            }
            None => format!("prompt and answer together may have at most {max_context} tokens"),
        }
    }

    /// The question as the model reads it, and what finds calls of tools in an answer to it.
    fn prompt(&self, asked: &Asked, question: Question, param: &str) -> Result<(Sample, Option<CallStream>), ApiError> {
        let processor = &self.processor;
        let mut calls = None;
        let sample = match question {
            Question::Text(text) => processor.text_prompt(SampleId(0), &text),
            Question::Chat(mut conversation) => {
                // Of variables that it does not use the log tells: many clients send `enable_thinking` to every model.
                let template = processor
                    .expect_template()
                    .map_err(|_| ApiError::bad(param, "the model has no chat template; use /v1/completions"))?
                    .of(&conversation.turns);
                if conversation.turns.iter().any(|turn| !turn.tools.is_empty()) {
                    if !template.takes_tools() {
                        let hint = "the model's chat template has no tools: describe them in a message";
                        return Err(ApiError::unsupported("tools", hint));
                    }
                    calls = template.tags_calls().then(|| CallStream::new(asked.parallel_calls));
                }
                confine(&mut conversation, self.limits.files.as_deref())?;
                processor.prompt_begun(SampleId(0), &conversation, Path::new(""), &asked.start)
            }
        };
        let sample = sample.map_err(|error| match error {
            // The rest of it was not looked at.
            DataError::TooLong { num_tokens, .. } => {
                too_long(param, format!("the prompt has {num_tokens} tokens or more; {}", self.most()))
            }
            error => ApiError::of_data(param, error),
        });
        Ok((sample?, calls))
    }
}

fn too_long(param: &str, reason: String) -> ApiError {
    ApiError::bad(param, reason).with_code("context_length_exceeded")
}
