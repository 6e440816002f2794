//! The protocol of AllenAI's `vla-eval`: messages with a type, a payload and a number; one action an observation.

use super::array::Keys;
use super::dialogue::{Cached, Dialogue, Heard, Offer, Reply, Timing, array, bytes_of, map};
use super::fields::fields;
use super::msgpack::{Value, cut, read};
use crate::robot::policy::{Actions, Moment};
use std::sync::Arc;

const PROTOCOL_VERSION: i128 = 1;

/// One connection of a runner.
pub struct VlaEval {
    offer: Arc<Offer>,
    cached: Cached,
    /// The moment of the next chunk.
    moment: Moment,
    /// Episodes that have begun.
    num_episodes: u64,
    /// The number of the observation that waits for its action.
    asked: i128,
}

impl VlaEval {
    /// Begins a connection to the policy that is offered.
    pub fn new(offer: Arc<Offer>) -> Self {
        Self { offer, cached: Cached::default(), moment: Moment::default(), num_episodes: 0, asked: 0 }
    }

    fn begin_episode(&mut self) {
        self.cached.clear();
        self.moment = Moment { episode: self.num_episodes, request: 0 };
        self.num_episodes += 1;
    }

    fn observation(&mut self, payload: &Value<'_>, seq: i128, now: f64) -> Result<Heard, String> {
        // Also where the chunk that is kept has the answer, and an observation is not looked at.
        let given = fields(payload, Keys::Text)?;
        if self.offer.names.has_begun(&given) {
            return Err(
                "started actions are not supported by this protocol, which sends one action at a time".to_owned()
            );
        }
        if let Some(reply) = self.action(seq, now) {
            return Ok(Heard::Reply(reply));
        }
        self.asked = seq;
        let observation = self.offer.names.observation(&given)?;
        let moment = self.moment;
        self.moment.request += 1;
        Ok(Heard::Ask(Box::new(observation), moment))
    }

    fn hello(&self, payload: &Value<'_>, seq: i128, now: f64) -> Reply {
        match payload.get("protocol_version") {
            None | Some(Value::Int(PROTOCOL_VERSION)) => {}
            Some(other) => {
                let other = other.shown();
                return failed(&format!("protocol_version is {other}, expected {PROTOCOL_VERSION}"), seq, now);
            }
        }
        let spec = &self.offer.spec;
        let dims = Value::Int(spec.action_width as i128);
        let actions = map([("name", Value::Text("actions")), ("dims", dims), ("format", Value::Text("raw"))]);
        let payload = map([
            ("harness_version", Value::Text(concat!("loongforge ", env!("CARGO_PKG_VERSION")))),
            ("protocol_version", Value::Int(PROTOCOL_VERSION)),
            ("model_server", Value::Text(&spec.name)),
            ("capabilities", map([])),
            ("action_spec", map([("actions", actions)])),
        ]);
        message("hello", payload, seq, now)
    }

    fn action(&mut self, seq: i128, now: f64) -> Option<Reply> {
        let action = self.cached.next(self.offer.spec.num_executed)?;
        let bytes = bytes_of(&action);
        Some(message("action", map([("actions", array(Keys::Text, &[action.len()], &bytes))]), seq, now))
    }

    fn heard(&mut self, message: &Value<'_>, seq: i128, now: f64) -> Result<Heard, String> {
        let payload = message.get("payload").filter(|payload| matches!(payload, Value::Map(_)));
        let payload = payload.ok_or("the `payload` of a message must be a map")?;
        let kind = message.get("type").and_then(Value::text).ok_or("missing `type`")?;
        Ok(match kind {
            "hello" => Heard::Reply(self.hello(payload, seq, now)),
            "episode_start" => {
                self.begin_episode();
                Heard::Reply(Reply::none())
            }
            "episode_end" => {
                self.cached.clear();
                Heard::Reply(Reply::none())
            }
            "observation" => self.observation(payload, seq, now)?,
            // What a client reports is not answered.
            "error" => Heard::Reply(Reply::none()),
            other => return Err(format!("unknown message type {:?}", cut(other))),
        })
    }
}

impl Dialogue for VlaEval {
    fn greeting(&self) -> Option<Vec<u8>> {
        None
    }

    fn hear(&mut self, message: &[u8], now: f64) -> Heard {
        let message = match read(message) {
            Ok(message) => message,
            Err(reason) => return Heard::Reply(failed(&reason, 0, now)),
        };
        let seq = if let Some(Value::Int(seq)) = message.get("seq") { *seq } else { 0 };
        self.heard(&message, seq, now).unwrap_or_else(|reason| Heard::Reply(failed(&reason, seq, now)))
    }

    fn answer(&mut self, outcome: Result<Actions, String>, _: Timing, now: f64) -> Reply {
        match outcome {
            Ok(chunk) => {
                self.cached.fill(chunk);
                self.action(self.asked, now).unwrap_or_else(|| failed("the policy returned no action", self.asked, now))
            }
            Err(reason) => failed(&reason, self.asked, now),
        }
    }

    fn refuse(&mut self, reason: &str, now: f64) -> Reply {
        failed(reason, 0, now)
    }
}

fn message(kind: &str, payload: Value<'_>, seq: i128, now: f64) -> Reply {
    Reply::say(&map([
        ("type", Value::Text(kind)),
        ("payload", payload),
        ("seq", Value::Int(seq)),
        ("timestamp", Value::Float(now)),
    ]))
}

/// Returns an error, after which the connection goes on.
fn failed(reason: &str, seq: i128, now: f64) -> Reply {
    message("error", map([("error", Value::Text(reason))]), seq, now)
}
