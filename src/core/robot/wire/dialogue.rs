//! One client's side of a connection, without sockets and clocks: messages in, answers out.

use super::array::{Keys, floats};
use super::msgpack::{Value, write};
use super::names::Names;
use crate::robot::policy::{Actions, Moment, Observation, PolicySpec};

/// Bytes of a message at most.
pub const MAX_MESSAGE: usize = 64 << 20;

/// A message of WebSocket's.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    Binary(Vec<u8>),
    Text(String),
}

/// An answer to the client.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    pub frame: Option<Frame>,
    /// The connection ends with WebSocket's code 1011, internal error.
    pub ends: bool,
}

/// The request that a message makes.
#[derive(Clone, Debug)]
pub enum Heard {
    /// An answer that needs no policy.
    Reply(Reply),
    /// Actions for this; they are handed to [`Dialogue::answer`] before another message is heard.
    Ask(Box<Observation>, Moment),
}

/// Milliseconds that an answer took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// The time of the policy.
    pub infer: f64,
    /// The time from the message before this one to its answer, the policy included.
    pub before: Option<f64>,
}

/// The description of the policy that every connection of a server has.
#[derive(Clone, Debug)]
pub struct Offer {
    pub spec: PolicySpec,
    pub names: Names,
}

/// A protocol, as one connection speaks it.
pub trait Dialogue: Send {
    /// Returns the message that the server sends first.
    fn greeting(&self) -> Option<Vec<u8>>;

    /// Hears a message; `now` is in seconds since 1970.
    fn hear(&mut self, message: &[u8], now: f64) -> Heard;

    /// Answers the last [`Heard::Ask`].
    fn answer(&mut self, outcome: Result<Actions, String>, timing: Timing, now: f64) -> Reply;

    /// Refuses what is no message of the protocol's: text, or one that is too large.
    fn refuse(&mut self, reason: &str, now: f64) -> Reply;
}

impl Reply {
    /// Answers nothing, and goes on.
    pub fn none() -> Self {
        Self { frame: None, ends: false }
    }

    /// Answers with a value in MessagePack.
    pub fn say(value: &Value<'_>) -> Self {
        Self { frame: Some(Frame::Binary(write(value))), ends: false }
    }

    /// Makes an error as openpi's server sends one: text, and the end.
    pub fn end(reason: &str) -> Self {
        Self { frame: Some(Frame::Text(reason.to_owned())), ends: true }
    }
}

/// A chunk of which one action after another is sent, and how far that is.
#[derive(Default)]
pub struct Cached {
    chunk: Option<Actions>,
    next: usize,
}

impl Cached {
    /// Keeps a chunk, to be handed out action by action.
    pub fn fill(&mut self, chunk: Actions) {
        (self.chunk, self.next) = (Some(chunk), 0);
    }

    /// Forgets the chunk: the next observation asks for another.
    pub fn clear(&mut self) {
        self.chunk = None;
    }

    /// Returns the whole chunk, including actions already handed out; `None` if none is kept.
    pub fn chunk(&self) -> Option<&Actions> {
        self.chunk.as_ref()
    }

    /// Returns the next action, if the chunk has one among the first `num_executed`.
    pub fn next(&mut self, num_executed: usize) -> Option<Vec<f32>> {
        let chunk = self.chunk.as_ref().filter(|chunk| self.next < num_executed.min(chunk.num_steps()))?;
        let action = chunk.step(self.next).to_vec();
        self.next += 1;
        Some(action)
    }
}

/// Bytes of floats, little end first.
pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Returns a map under texts.
pub fn map<'a, const N: usize>(entries: [(&'a str, Value<'a>); N]) -> Value<'a> {
    Value::Map(entries.map(|(key, value)| (Value::Text(key), value)).into())
}

/// Returns the array of floats, as clients of all protocols know it.
pub fn array<'a>(keys: Keys, shape: &[usize], bytes: &'a [u8]) -> Value<'a> {
    floats(keys, "<f4", shape, bytes)
}
