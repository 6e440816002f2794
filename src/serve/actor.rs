//! The thread in which a policy acts.

use anyhow::{Context, Result};
use flume::{Receiver, Sender};
use loongforge_core::robot::{Actions, Moment, Observation, Policy, PolicySpec};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Connections at a time, each of which has one request that waits for the policy.
pub(super) const MAX_CONNECTIONS: usize = 64;

/// Actions or why there are none, and milliseconds.
type Outcome = (Result<Actions, String>, f64);

struct Request {
    observation: Observation,
    moment: Moment,
    answer: Sender<Outcome>,
}

/// The queue to which connections bring their observations.
#[derive(Clone)]
pub struct Actor {
    requests: Sender<Request>,
    /// Nothing comes out of it: it is closed when the policy's thread ends.
    ended: Receiver<()>,
}

impl Actor {
    /// Opens the policy in its thread, which ends with the last clone of what is returned.
    ///
    /// # Errors
    /// The policy cannot be opened, or the system has no thread left.
    pub fn start(open: impl FnOnce() -> Result<Box<dyn Policy>> + Send + 'static) -> Result<(Self, PolicySpec)> {
        let (requests, queue) = flume::bounded(MAX_CONNECTIONS);
        let (opened, spec) = flume::bounded(1);
        let (alive, ended) = flume::bounded(1);
        let serve = move || {
            let _alive: Sender<()> = alive;
            match open() {
                Ok(policy) => {
                    if opened.send(Ok(policy.spec().clone())).is_ok() {
                        answer_all(policy, &queue);
                    }
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        };
        std::thread::Builder::new().name("policy".into()).spawn(serve).context("cannot start the policy's thread")?;
        let spec = spec.recv().context("the policy's thread has ended")??;
        Ok((Self { requests, ended }, spec))
    }

    /// Waits until the policy's thread has ended: it acts no more.
    pub async fn ended(&self) {
        let _ = self.ended.recv_async().await;
    }

    /// Returns the policy's actions, checked, and the milliseconds that they took.
    pub async fn act(&self, observation: Observation, moment: Moment) -> Outcome {
        let (answer, outcome) = flume::bounded(1);
        let gone = |_| (Err("the policy's thread has ended".to_owned()), 0.0);
        match self.requests.send_async(Request { observation, moment, answer }).await {
            Ok(()) => outcome.recv_async().await.unwrap_or_else(gone),
            Err(_) => (Err("the policy's thread has ended".to_owned()), 0.0),
        }
    }
}

/// Answers until nobody asks any more, or the policy cannot act any more.
fn answer_all(mut policy: Box<dyn Policy>, queue: &Receiver<Request>) {
    while let Ok(Request { observation, moment, answer }) = queue.recv() {
        let begun = Instant::now();
        // A picture of a size that nobody thought of must not end the server.
        let outcome = catch_unwind(AssertUnwindSafe(|| policy.act(&observation, moment)));
        let outcome =
            outcome.unwrap_or_else(|_| Err("the policy failed on this observation (see the server)".to_owned()));
        let outcome = outcome.and_then(|actions| actions.check().map(|()| actions));
        let is_last = outcome.is_err() && policy.has_failed();
        // A client that has gone wants no answer.
        let _ = answer.send((outcome, begun.elapsed().as_secs_f64() * 1e3));
        if is_last {
            // Who waits hears that there is no answer.
            drop(queue.drain());
            return;
        }
    }
}
