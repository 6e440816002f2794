//! The protocol of LoongForge's evaluation servers (baidu-baige): requests with a type and an id; a chunk is kept, and one action of
//! it is sent an observation.

use super::array::Keys;
use super::dialogue::{Cached, Dialogue, Heard, Offer, Reply, Timing, bytes_of, map};
use super::fields::{Field, fields};
use super::msgpack::{Value, cut, read, write};
use crate::robot::policy::{Actions, Moment};
use std::sync::Arc;

const PROTOCOL_VERSION: &str = "1.0";
/// The name of the only statistics that a checkpoint has.
const UNNORM_KEY: &str = "default";
/// Fields of a request that say how it is answered.
const CONTROL: [&str; 4] = ["episode_id", "episode_step", "disable_action_cache", "return_action_chunk"];

/// One connection of a runner.
pub struct LoongForge {
    offer: Arc<Offer>,
    cached: Cached,
    episode: String,
    moment: Moment,
    asked: Asked,
}

/// The form of the answer to the request that waits for its actions.
#[derive(Clone, Debug, Default)]
struct Asked {
    id: String,
    /// The whole chunk, not one action of it.
    is_chunk: bool,
    /// The rest of the chunk is not kept.
    is_fresh: bool,
}

impl LoongForge {
    /// Begins a connection to the policy that is offered.
    pub fn new(offer: Arc<Offer>) -> Self {
        let (cached, moment, asked) = (Cached::default(), Moment::default(), Asked::default());
        Self { offer, cached, episode: "default".to_owned(), moment, asked }
    }

    fn begin(&mut self, episode: &str) {
        self.cached.clear();
        self.moment = Moment { episode: self.moment.episode + 1, request: 0 };
        episode.clone_into(&mut self.episode);
    }

    fn heard(&mut self, message: &Value<'_>, kind: &str, id: &str) -> Result<Heard, String> {
        let nothing = Value::Map(Vec::new());
        let payload = message.get("payload").unwrap_or(&nothing);
        let episode = payload.get("episode_id").and_then(Value::text).filter(|episode| !episode.is_empty());
        match kind {
            "ping" => Ok(Heard::Reply(done("pong", id, None))),
            "reset" => {
                let episode = episode.ok_or("episode_id required")?;
                self.begin(episode);
                Ok(Heard::Reply(done("reset", id, Some(map([("episode_id", Value::Text(episode))])))))
            }
            "infer" | "predict_action" => self.infer(payload, episode, id),
            other => {
                let other = cut(other);
                Err(format!("unknown type {other:?}, expected one of ping, reset, infer, predict_action"))
            }
        }
    }

    fn infer(&mut self, payload: &Value<'_>, episode: Option<&str>, id: &str) -> Result<Heard, String> {
        let flag = |name: &str| payload.get(name) == Some(&Value::Bool(true));
        self.asked =
            Asked { id: id.to_owned(), is_chunk: flag("return_action_chunk"), is_fresh: flag("disable_action_cache") };
        if let Some(episode) = episode.filter(|episode| *episode != self.episode) {
            self.begin(episode);
        }
        if self.asked.is_fresh {
            self.cached.clear();
        }
        // Also where the chunk that is kept has the answer, and an observation is not looked at.
        let mut given = fields(payload, Keys::Bytes)?;
        let is_own_key = |field: &Field<'_>| *field == Field::Text(UNNORM_KEY);
        given.retain(|(name, field)| !(CONTROL.contains(&&**name) || name == "unnorm_key" && is_own_key(field)));
        let is_whole = self.asked.is_chunk && self.asked.is_fresh;
        if self.offer.names.has_begun(&given) && !is_whole {
            return Err("action_prefix requires return_action_chunk and disable_action_cache".to_owned());
        }
        if let Some(reply) = self.next(None) {
            return Ok(Heard::Reply(reply));
        }
        let observation = self.offer.names.observation(&given)?;
        let moment = self.moment;
        self.moment.request += 1;
        Ok(Heard::Ask(Box::new(observation), moment))
    }

    /// Returns the next action of the chunk, or all of it; `None` where it is spent. `latency` is in milliseconds.
    fn next(&mut self, latency: Option<f64>) -> Option<Reply> {
        let action = self.cached.next(self.offer.spec.num_executed)?;
        let chunk = self.cached.chunk().filter(|_| self.asked.is_chunk);
        let (values, width) = chunk.map_or((&action[..], action.len()), |chunk| (&chunk.values[..], chunk.width));
        let bytes = bytes_of(values);
        let data = map([
            ("actions", super::array::floats(Keys::Bytes, "float32", &[values.len() / width.max(1), width], &bytes)),
            ("inference_latency_ms", latency.map_or(Value::Nil, Value::Float)),
        ]);
        let reply = done("inference_result", &self.asked.id, Some(data));
        if self.asked.is_fresh {
            self.cached.clear();
        }
        Some(reply)
    }
}

impl Dialogue for LoongForge {
    fn greeting(&self) -> Option<Vec<u8>> {
        let spec = &self.offer.spec;
        Some(write(&map([
            ("protocol_version", Value::Text(PROTOCOL_VERSION)),
            ("env", Value::Text("loongforge_policy_server")),
            ("ckpt_path", Value::Text(&spec.name)),
            ("action_chunk_size", Value::Int(spec.chunk_size as i128)),
            ("action_dim", Value::Int(spec.action_width as i128)),
            ("supports_preempt", Value::Bool(false)),
            ("available_unnorm_keys", Value::List(vec![Value::Text(UNNORM_KEY)])),
            ("default_unnorm_key", Value::Text(UNNORM_KEY)),
        ])))
    }

    fn hear(&mut self, message: &[u8], _: f64) -> Heard {
        let message = match read(message) {
            Ok(message @ Value::Map(_)) => message,
            Ok(_) => return Heard::Reply(Reply::end("a request must be a map")),
            Err(reason) => return Heard::Reply(Reply::end(&reason)),
        };
        let text = |key: &str| message.get(key).and_then(Value::text);
        let (kind, id) = (text("type").unwrap_or("infer"), text("request_id").unwrap_or("default"));
        match message.get("protocol_version") {
            None | Some(Value::Nil | Value::Text(PROTOCOL_VERSION)) => {}
            Some(other) => {
                let reason = format!("protocol_version mismatch: {} != {PROTOCOL_VERSION:?}", other.shown());
                return Heard::Reply(failed("protocol_error", id, &reason));
            }
        }
        self.heard(&message, kind, id).unwrap_or_else(|reason| {
            let kind = match kind {
                "infer" | "predict_action" => "inference_result",
                "reset" => "reset",
                _ => "unknown",
            };
            Heard::Reply(failed(kind, id, &reason))
        })
    }

    fn answer(&mut self, outcome: Result<Actions, String>, timing: Timing, _: f64) -> Reply {
        let reason = match outcome {
            Ok(chunk) => {
                self.cached.fill(chunk);
                match self.next(Some(timing.infer)) {
                    Some(reply) => return reply,
                    None => "the policy returned no action".to_owned(),
                }
            }
            Err(reason) => reason,
        };
        failed("inference_result", &self.asked.id, &reason)
    }

    fn refuse(&mut self, reason: &str, _: f64) -> Reply {
        Reply::end(reason)
    }
}

fn done(kind: &str, id: &str, data: Option<Value<'_>>) -> Reply {
    let head = [
        ("status", Value::Text("ok")),
        ("ok", Value::Bool(true)),
        ("type", Value::Text(kind)),
        ("request_id", Value::Text(id)),
    ];
    let Value::Map(mut entries) = map(head) else { return Reply::none() };
    entries.extend(data.map(|data| (Value::Text("data"), data)));
    Reply::say(&Value::Map(entries))
}

fn failed(kind: &str, id: &str, reason: &str) -> Reply {
    Reply::say(&map([
        ("status", Value::Text("error")),
        ("ok", Value::Bool(false)),
        ("type", Value::Text(kind)),
        ("request_id", Value::Text(id)),
        ("error", map([("message", Value::Text(reason))])),
    ]))
}
