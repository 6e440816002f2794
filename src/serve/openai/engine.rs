//! The queue of requests, and the thread in which the model answers them.

use super::batch::{Begun, Event, answer_or_refuse};
use super::reading::{Limits, Reading, Ready};
use crate::eval::generator::Reader;
use anyhow::{Context, Result};
use flume::{Receiver, Sender};
#[cfg(test)]
use loongforge_core::openai::Finish;
use loongforge_core::openai::{ApiError, Asked};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// The interval at which a request that waits to be read looks whether its client has gone.
const LOOK: Duration = Duration::from_secs(1);
/// Answers that are made together count as at least so many for [`Engine::memory`]: a large request alone must not fill it.
const MIN_BATCH: usize = 4;

/// A request that is read.
struct Job {
    /// Answers to each question.
    n: usize,
    ready: Vec<Ready>,
    events: Sender<Event>,
    /// Its place among those that wait.
    place: OwnedSemaphorePermit,
    memory: OwnedSemaphorePermit,
}

impl Job {
    fn num_answers(&self) -> usize {
        self.n * self.ready.len()
    }
}

/// Reads the questions of a request.
type Read = dyn Fn(Asked) -> Result<Vec<Ready>, ApiError> + Send + Sync;

/// Where requests are brought.
#[derive(Clone)]
pub struct Engine {
    jobs: Sender<Job>,
    /// The model's end of the queue, from which those are taken whose clients have gone.
    waiting: Receiver<Job>,
    /// A channel that carries nothing: it is closed when the model's thread ends.
    ended: Receiver<()>,
    read: Arc<Read>,
    /// Places of requests that wait, whether they are read or not.
    places: Arc<Semaphore>,
    /// Requests that are being read, wait as tokens and pictures, or are being answered: those take memory.
    memory: Arc<Semaphore>,
    model_type: Arc<str>,
}

/// The model's end of the queue, which is empty when the model's thread has ended: who waits hears that there is no answer.
struct Queue(Receiver<Job>);

impl Drop for Queue {
    fn drop(&mut self) {
        drop(self.0.drain());
    }
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
        let (waiting, places, batch) = (queue.clone(), limits.queue, limits.batch);
        let serve = move || {
            // It ends behind `alive`, without which nothing more is asked.
            let queue = Queue(queue);
            let _alive = alive;
            match open() {
                Ok(reader) => {
                    if opened.send(Ok(Reading::new(&reader, limits))).is_ok() {
                        answer_all(&reader, batch, &queue.0);
                    }
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        };
        std::thread::Builder::new().name("answers".into()).spawn(serve).context("cannot start the model's thread")?;
        let reading = is_open.recv().context("the model's thread has ended")??;
        let model_type = reading.model_type().into();
        let read: Arc<Read> = Arc::new(move |asked| reading.read_all(asked));
        Ok(Self { model_type, ..Self::of((jobs, waiting), ended, read, [places, batch]) })
    }

    fn of(
        (jobs, waiting): (Sender<Job>, Receiver<Job>),
        ended: Receiver<()>,
        read: Arc<Read>,
        most: [usize; 2],
    ) -> Self {
        let [places, batch] = most;
        // Those of one batch are read while the one before is answered.
        let memory = Arc::new(Semaphore::new(2 * batch.max(MIN_BATCH)));
        Self { jobs, waiting, ended, read, places: Arc::new(Semaphore::new(places)), memory, model_type: "".into() }
    }

    /// Returns the model's type, as its config says it.
    pub fn model_type(&self) -> &str {
        &self.model_type
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
            return Err(has_ended());
        }
        let Some(place) = self.place() else {
            let waiting = match limits.queue {
                1 => "1 request is".to_owned(),
                queue => format!("{queue} requests are"),
            };
            return Err(ApiError::new(429, format!("{waiting} already waiting")));
        };
        tokio::spawn(self.clone().bring(asked, events, place));
        Ok(answer)
    }

    /// A place among those that wait, of whom those in the queue whose clients have gone keep none.
    fn place(&self) -> Option<OwnedSemaphorePermit> {
        let take = || self.places.clone().try_acquire_owned().ok();
        take().or_else(|| {
            // Once around: the others keep their order, and find the room that they had.
            for _ in 0..self.waiting.len() {
                let Ok(waiting) = self.waiting.try_recv() else { break };
                if !waiting.events.is_disconnected() {
                    let _ = self.jobs.try_send(waiting);
                }
            }
            take()
        })
    }

    /// Reads a request in a thread of its own, and puts it into the queue. One whose client goes before that is left.
    async fn bring(self, asked: Asked, events: Sender<Event>, place: OwnedSemaphorePermit) {
        let mut memory = pin!(self.memory.clone().acquire_owned());
        let memory = loop {
            match timeout(LOOK, memory.as_mut()).await {
                Ok(Ok(memory)) => break memory,
                Err(_) if !events.is_disconnected() => {}
                _ => return,
            }
        };
        if events.is_disconnected() {
            return;
        }
        let (n, read) = (asked.n, self.read.clone());
        // A prompt of a size that nobody thought of must not end the server: who asked hears that the answer ended early.
        let Ok(read) = spawn_blocking(move || read(asked)).await else { return };
        let refused = match read {
            Err(error) => error,
            Ok(_) if self.ended.is_disconnected() => has_ended(),
            // It has a place, so there is room.
            Ok(ready) => return drop(self.jobs.try_send(Job { n, ready, events, place, memory })),
        };
        let _ = events.try_send(Event::Refused(refused));
    }
}

fn has_ended() -> ApiError {
    ApiError::new(503, "the server is shutting down")
}

/// Answers until nobody asks any more, or the model cannot answer any more; at most `batch` answers together.
fn answer_all(reader: &Reader, batch: usize, queue: &Receiver<Job>) {
    // One that has come and found no place in the last batch.
    let mut held: Option<Job> = None;
    while let Some(first) = held.take().or_else(|| queue.recv().ok()) {
        let mut room = batch.saturating_sub(first.num_answers());
        let mut jobs = vec![first];
        while room > 0
            && let Ok(job) = queue.try_recv()
        {
            // One whose client has gone takes no place.
            if job.events.is_disconnected() {
                continue;
            }
            if job.num_answers() > room {
                held = Some(job);
                break;
            }
            room -= job.num_answers();
            jobs.push(job);
        }
        let (mut begun, mut memory): (Vec<Begun>, Vec<OwnedSemaphorePermit>) = (Vec::new(), Vec::new());
        for Job { n, ready, events, place, memory: taken } in jobs {
            drop(place);
            memory.push(taken);
            begun.extend(begin(n, &ready, &events));
        }
        if begun.is_empty() {
            continue;
        }
        if !answer_or_refuse(reader, &begun) && reader.model().has_failed() {
            return;
        }
    }
}

/// Begins the answers to a request, `n` to each question: none where nobody waits for them.
fn begin(n: usize, ready: &[Ready], events: &Sender<Event>) -> Vec<Begun> {
    let prompt_tokens: usize = ready.iter().map(|it| it.sample.input_ids.len()).sum();
    if events.try_send(Event::Begun { prompt_tokens }).is_err() {
        return Vec::new();
    }
    // Draws are those of each prompt alone.
    let of_own = |index: usize| {
        let Ready { sample, wanted, calls } = &ready[index / n];
        let mut wanted = wanted.clone();
        if let Some(sampling) = &mut wanted.sampling {
            sampling.seed = sampling.seed.wrapping_add((index % n) as u64);
        }
        Begun { index, sample: sample.clone(), wanted, calls: calls.clone(), events: events.clone() }
    };
    (0..ready.len() * n).map(of_own).collect()
}

#[cfg(test)]
impl Engine {
    /// Makes an engine that answers every request with this text, of two tokens behind a prompt of three.
    pub fn saying(text: &'static str, finish: Finish, model_type: &str) -> Self {
        let (alive, ended) = flume::bounded(1);
        let (jobs, waiting) = flume::bounded::<Job>(4);
        let queue = waiting.clone();
        std::thread::spawn(move || {
            let _alive: Sender<()> = alive;
            while let Ok(job) = queue.recv() {
                let text = Event::Text { index: 0, text: text.to_owned() };
                for event in [Event::Begun { prompt_tokens: 3 }, text, Event::End { index: 0, finish, num_tokens: 2 }] {
                    let _ = job.events.try_send(event);
                }
            }
        });
        let read: Arc<Read> = Arc::new(|_| Ok(Vec::new()));
        Self { model_type: model_type.into(), ..Self::of((jobs, waiting), ended, read, [4, 4]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::openai::Endpoint;
    use tokio::time::sleep;

    fn limits() -> Limits {
        Limits { max_new_tokens: 4, max_context: 64, batch: 4, queue: 2, files: None }
    }

    /// An engine without a model, and what keeps it from having ended.
    fn engine(read: impl Fn(Asked) -> Result<Vec<Ready>, ApiError> + Send + Sync + 'static) -> (Engine, Sender<()>) {
        let Limits { queue, batch, .. } = limits();
        let (alive, ended) = flume::bounded(1);
        (Engine::of(flume::bounded(queue), ended, Arc::new(read), [queue, batch]), alive)
    }

    fn ask(engine: &Engine, n: usize) -> Result<Receiver<Event>, ApiError> {
        let body = format!(r#"{{"prompt": "a", "n": {n}}}"#);
        engine.ask(Asked::read(Endpoint::Completions, body.as_bytes()).unwrap(), &limits())
    }

    /// Waits for the next request in the queue, and takes it.
    async fn next(engine: &Engine) -> usize {
        timeout(Duration::from_secs(60), engine.waiting.recv_async()).await.expect("a request").unwrap().n
    }

    #[tokio::test]
    async fn clients_that_have_gone_keep_no_place_in_the_queue() {
        let (engine, alive) = engine(|_| Ok(Vec::new()));
        let first = ask(&engine, 1).unwrap();
        while engine.waiting.is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        let _second = ask(&engine, 2).unwrap();
        assert_eq!(ask(&engine, 3).unwrap_err().status, 429);
        drop(first);
        let _third = ask(&engine, 3).unwrap();
        assert_eq!(ask(&engine, 4).unwrap_err().status, 429);
        let mut found = [next(&engine).await, next(&engine).await];
        found.sort_unstable();
        assert_eq!(found, [2, 3]);
        drop(alive);
        assert_eq!(ask(&engine, 1).unwrap_err().status, 503);
    }

    #[tokio::test]
    async fn a_request_that_is_read_for_long_delays_no_other() {
        let (go, wait) = flume::bounded::<()>(1);
        let (engine, _alive) = engine(move |asked| {
            if asked.n == 1 {
                let _ = wait.recv();
            }
            Ok(Vec::new())
        });
        let (_long, _short) = (ask(&engine, 1).unwrap(), ask(&engine, 2).unwrap());
        assert_eq!(next(&engine).await, 2);
        go.send(()).unwrap();
        assert_eq!(next(&engine).await, 1);
    }

    #[tokio::test]
    async fn a_request_that_cannot_be_answered_or_read_is_told() {
        let (engine, alive) = engine(|asked| match asked.n {
            1 => Err(ApiError::bad("prompt", "no")),
            2 => panic!("as it was told"),
            _ => Ok(Vec::new()),
        });
        let answer = ask(&engine, 1).unwrap();
        assert!(matches!(answer.recv_async().await, Ok(Event::Refused(error)) if error.status == 400));
        assert!(ask(&engine, 2).unwrap().recv_async().await.is_err());
        let answer = ask(&engine, 3).unwrap();
        drop(alive);
        assert!(matches!(answer.recv_async().await, Ok(Event::Refused(error)) if error.status == 503));
    }

    #[tokio::test(start_paused = true)]
    async fn who_goes_before_the_request_is_read_leaves_its_place() {
        let (engine, _alive) = engine(|_| Ok(Vec::new()));
        let all = engine.memory.clone().try_acquire_many_owned(8).unwrap();
        let answers = (ask(&engine, 1).unwrap(), ask(&engine, 2).unwrap());
        sleep(LOOK * 3).await;
        assert_eq!(engine.places.available_permits(), 0);
        drop(answers);
        sleep(LOOK * 3).await;
        assert_eq!(engine.places.available_permits(), 2);
        drop(all);
    }

    #[tokio::test]
    async fn a_queue_that_ends_tells_who_waits() {
        let (engine, _alive) = engine(|_| Ok(Vec::new()));
        let answer = ask(&engine, 1).unwrap();
        while engine.waiting.is_empty() {
            sleep(Duration::from_millis(1)).await;
        }
        drop(Queue(engine.waiting.clone()));
        assert!(answer.is_disconnected());
    }
}
