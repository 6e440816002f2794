//! The thread in which the model answers.

use super::batch::{Begun, Event, answer_or_refuse};
use super::random::random;
use crate::answer::{Positions, Wanted};
use crate::eval::generator::Reader;
use anyhow::{Context, Result};
use flume::{Receiver, Sender, TrySendError};
use loongforge_core::data::{Question, Sample};
use loongforge_core::message::SampleId;
use loongforge_core::openai::{ApiError, Asked, CallStream, confine};
use loongforge_torch::model::Sampling;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The bounds of the requests of a server.
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

struct Job {
    asked: Asked,
    events: Sender<Event>,
}

/// The queue to which requests are brought.
#[derive(Clone)]
pub struct Engine {
    jobs: Sender<Job>,
    /// The model's end of the queue, from which those are taken whose clients have gone.
    waiting: Receiver<Job>,
    /// A channel that carries nothing: it is closed when the model's thread ends.
    ended: Receiver<()>,
}

/// The model's end of the queue, which is empty when the model's thread has ended: who waits hears that there is no answer.
struct Queue(Receiver<Job>);

impl Drop for Queue {
    fn drop(&mut self) {
        drop(self.0.drain());
    }
}

/// A question that can be answered.
struct Ready {
    sample: Rc<Sample>,
    wanted: Wanted,
    calls: Option<CallStream>,
}

impl Engine {
    /// Loads the model in its thread, which ends with the last clone of what is returned.
    ///
    /// # Errors
    /// The model cannot be loaded, or the system has no thread left.
    pub fn start(open: impl FnOnce() -> Result<Reader> + Send + 'static, limits: Limits) -> Result<Self> {
        let (jobs, queue) = flume::bounded(limits.queue);
        let (opened, is_open) = flume::bounded(1);
        let (alive, ended) = flume::bounded(1);
        let waiting = queue.clone();
        let serve = move || {
            // It ends behind `alive`, without which nothing more is asked.
            let queue = Queue(queue);
            let _alive = alive;
            match open() {
                Ok(reader) => {
                    if opened.send(Ok(())).is_ok() {
                        answer_all(&reader, &limits, &queue.0);
                    }
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        };
        std::thread::Builder::new().name("answers".into()).spawn(serve).context("cannot start the model's thread")?;
        is_open.recv().context("the model's thread has ended")??;
        Ok(Self { jobs, waiting, ended })
    }

    /// Waits until the model's thread has ended: it answers nothing any more.
    pub async fn ended(&self) {
        let _ = self.ended.recv_async().await;
    }

    /// Brings a request; its answer comes through what is returned, and stops when that is dropped.
    ///
    /// # Errors
    /// The status is 400 where the request asks for more answers than are made together, 429 where too many requests wait, and 503 where
    /// the model's thread has ended.
    pub fn ask(&self, asked: Asked, limits: &Limits) -> Result<Receiver<Event>, ApiError> {
        let (n, all, most) = (asked.n, asked.num_answers(), limits.batch);
        if all > most {
            let (param, what) = match n > most {
                true => ("n", format!("`n` is {n}")),
                false => ("prompt", format!("{} prompts with `n` {n} make {all} answers", asked.questions.len())),
            };
            let reason = format!("{what}, but at most {most} answers are made together (--batch of the server)");
            return Err(ApiError::bad(param, reason));
        }
        // Each token is one event at most, or two with its probability, so that the model never waits for a slow client.
        let most_events = if asked.top_logprobs.is_some() { 2 } else { 1 };
        let (events, answer) = flume::bounded(all * most_events * (limits.max_new_tokens + 4));
        if self.ended.is_disconnected() {
            return Err(ApiError::new(503, "the server is shutting down"));
        }
        match self.queue(Job { asked, events }) {
            true => Ok(answer),
            false => Err(ApiError::new(429, format!("{} requests are already waiting", limits.queue))),
        }
    }

    /// Puts a request into the queue, in which those whose clients have gone keep no place; returns whether there was one.
    fn queue(&self, job: Job) -> bool {
        let Err(TrySendError::Full(job)) = self.jobs.try_send(job) else { return true };
        // Once around: the others keep their order, and find the place that they had.
        for _ in 0..self.waiting.len() {
            let Ok(waiting) = self.waiting.try_recv() else { break };
            if !waiting.events.is_disconnected() {
                let _ = self.jobs.try_send(waiting);
            }
        }
        self.jobs.try_send(job).is_ok()
    }
}

/// Answers until nobody asks any more, or the model cannot answer any more.
fn answer_all(reader: &Reader, limits: &Limits, queue: &Receiver<Job>) {
    // One that has come and found no place in the last batch.
    let mut held: Option<Job> = None;
    while let Some(first) = held.take().or_else(|| queue.recv().ok()) {
        let mut room = limits.batch.saturating_sub(first.asked.num_answers());
        let mut jobs = vec![first];
        while room > 0
            && let Ok(job) = queue.try_recv()
        {
            // One whose client has gone takes no place.
            if job.events.is_disconnected() {
                continue;
            }
            if job.asked.num_answers() > room {
                held = Some(job);
                break;
            }
            room -= job.asked.num_answers();
            jobs.push(job);
        }
        // A prompt of a size that nobody thought of must not end the server: who asked hears that the answer ended early.
        let begin = |job| catch_unwind(AssertUnwindSafe(|| begin(reader, limits, job))).unwrap_or_default();
        let begun: Vec<Begun> = jobs.into_iter().flat_map(begin).collect();
        if begun.is_empty() {
            continue;
        }
        if !answer_or_refuse(reader, &begun) && reader.model().has_failed() {
            return;
        }
    }
}

/// Begins the answers to a request: none where it was refused, or nobody waits for it.
fn begin(reader: &Reader, limits: &Limits, Job { mut asked, events }: Job) -> Vec<Begun> {
    if events.is_disconnected() {
        return Vec::new();
    }
    let n = asked.n;
    let questions = std::mem::take(&mut asked.questions);
    let is_list = questions.len() > 1;
    let read = |(at, question): (usize, Question)| {
        let param = match &question {
            Question::Chat(_) => "messages".to_owned(),
            Question::Text(_) if is_list => format!("prompt[{at}]"),
            Question::Text(_) => "prompt".to_owned(),
        };
        read(reader, limits, &asked, question, &param)
    };
    let read: Result<Vec<Ready>, ApiError> = questions.into_iter().enumerate().map(read).collect();
    let read = match read {
        Ok(read) => read,
        Err(error) => {
            let _ = events.try_send(Event::Refused(error));
            return Vec::new();
        }
    };
    let prompt_tokens: usize = read.iter().map(|it| it.sample.input_ids.len()).sum();
    if events.try_send(Event::Begun { prompt_tokens }).is_err() {
        return Vec::new();
    }
    // Draws are those of each prompt alone.
    let of_own = |index: usize| {
        let Ready { sample, wanted, calls } = &read[index / n];
        let mut wanted = wanted.clone();
        if let Some(sampling) = &mut wanted.sampling {
            sampling.seed = sampling.seed.wrapping_add((index % n) as u64);
        }
        Begun { index, sample: sample.clone(), wanted, calls: calls.clone(), events: events.clone() }
    };
    (0..read.len() * n).map(of_own).collect()
}

/// Reads one of the questions, which the field `param` has.
fn read(reader: &Reader, limits: &Limits, asked: &Asked, question: Question, param: &str) -> Result<Ready, ApiError> {
    let goes_on = matches!(question, Question::Text(_));
    let (sample, calls) = prompt(reader, limits, asked, question, param)?;
    let num_tokens = sample.input_ids.len();
    let positions = Positions::of(&reader.model().folder().json);
    let left = positions.map_or(usize::MAX, |positions| positions.left(num_tokens));
    let room = left.min(limits.max_context.saturating_sub(num_tokens));
    let most = match positions {
        Some(Positions { most, apart: true }) => {
            format!("prompt and answer may have at most {most} tokens each and {} together", limits.max_context)
        }
        Some(Positions { most, apart: false }) => {
            format!("prompt and answer together may have at most {} tokens", most.min(limits.max_context))
        }
        None => format!("prompt and answer together may have at most {} tokens", limits.max_context),
    };
    let too_long = |reason: String| ApiError::bad(param, reason).with_code("context_length_exceeded");
    if num_tokens == 0 {
        return Err(ApiError::bad(param, "the prompt has no tokens"));
    }
    if room == 0 {
        return Err(too_long(format!("the prompt has {num_tokens} tokens; {most}")));
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
            return Err(too_long(reason));
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
        stops: asked.stops.clone(),
        top_logprobs: asked.top_logprobs,
        goes_on,
    };
    Ok(Ready { sample: Rc::new(sample), wanted, calls })
}

/// Returns the question as the model reads it, and what finds calls of tools in an answer to it.
fn prompt(
    reader: &Reader,
    limits: &Limits,
    asked: &Asked,
    question: Question,
    param: &str,
) -> Result<(Sample, Option<CallStream>), ApiError> {
    let processor = reader.processor();
    let mut calls = None;
    let sample = match question {
        Question::Text(text) => processor.text_prompt(SampleId(0), &text),
        Question::Chat(mut conversation) => {
            let template = processor
                .expect_template()
                .map_err(|_| ApiError::bad("messages", "the model has no chat template; use /v1/completions"))?
                .of(&conversation.turns);
            let mut variables = conversation.turns.iter().flat_map(|turn| turn.kwargs.keys());
            if let Some(name) = variables.find(|name| !template.knows(name)) {
                let name: String = name.chars().take(64).collect();
                let hint = "the model's chat template has no such variable";
                return Err(ApiError::unsupported(format!("chat_template_kwargs.{name}"), hint));
            }
            if conversation.turns.iter().any(|turn| !turn.tools.is_empty()) {
                if !template.takes_tools() {
                    let hint = "the model's chat template has no tools: describe them in a message";
                    return Err(ApiError::unsupported("tools", hint));
                }
                calls = template.tags_calls().then(|| CallStream::new(asked.parallel_calls));
            }
            confine(&mut conversation, limits.files.as_deref())?;
            processor.prompt(SampleId(0), &conversation, Path::new(""))
        }
    };
    Ok((sample.map_err(|error| ApiError::of_data(param, error))?, calls))
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::openai::Endpoint;

    #[test]
    fn clients_that_have_gone_keep_no_place_in_the_queue() {
        let limits = Limits { max_new_tokens: 4, max_context: 64, batch: 4, queue: 2, files: None };
        let (jobs, waiting) = flume::bounded(limits.queue);
        let (alive, ended) = flume::bounded(1);
        let engine = Engine { jobs, waiting, ended };
        let ask = |n: usize| {
            let body = format!(r#"{{"prompt": "a", "n": {n}}}"#);
            engine.ask(Asked::read(Endpoint::Completions, body.as_bytes()).unwrap(), &limits)
        };
        let (first, _second) = (ask(1).unwrap(), ask(2).unwrap());
        assert_eq!(ask(3).unwrap_err().status, 429);
        drop(first);
        let _third = ask(3).unwrap();
        assert_eq!(ask(4).unwrap_err().status, 429);
        assert_eq!(engine.waiting.iter().take(2).map(|job| job.asked.n).collect::<Vec<_>>(), [2, 3]);
        drop(alive);
        assert_eq!(ask(1).unwrap_err().status, 503);
    }

    #[test]
    fn a_queue_that_ends_tells_who_waits() {
        let (jobs, waiting) = flume::bounded(1);
        let (events, answer) = flume::bounded::<Event>(1);
        let asked = Asked::read(Endpoint::Completions, br#"{"prompt": "a"}"#).unwrap();
        assert!(jobs.try_send(Job { asked, events }).is_ok());
        drop(Queue(waiting));
        assert!(answer.is_disconnected());
    }
}
