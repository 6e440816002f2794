//! openpi's protocol: the server speaks first, then each observation is answered with a whole chunk of actions.

use super::array::Keys;
use super::dialogue::{Dialogue, Heard, Offer, Reply, Timing, array, bytes_of, map};
use super::fields::fields;
use super::msgpack::{Value, read, write};
use crate::robot::policy::{Actions, Moment, Observation};
use std::sync::Arc;

/// One connection of `openpi-client`.
pub struct OpenPi {
    offer: Arc<Offer>,
    num_requests: u64,
}

impl OpenPi {
    /// Begins a connection to the policy that is offered.
    pub fn new(offer: Arc<Offer>) -> Self {
        Self { offer, num_requests: 0 }
    }

    fn observation(&self, message: &[u8]) -> Result<Observation, String> {
        let value = read(message)?;
        match value {
            Value::Map(_) => self.offer.names.observation(&fields(&value, Keys::Bytes)?),
            _ => Err("an observation must be a map".to_owned()),
        }
    }
}

impl Dialogue for OpenPi {
    fn greeting(&self) -> Option<Vec<u8>> {
        let spec = &self.offer.spec;
        Some(write(&map([
            ("policy", Value::Text(&spec.name)),
            ("action_horizon", Value::Int(spec.chunk_size as i128)),
            ("action_dim", Value::Int(spec.action_width as i128)),
        ])))
    }

    fn hear(&mut self, message: &[u8], _: f64) -> Heard {
        match self.observation(message) {
            Ok(observation) => {
                self.num_requests += 1;
                Heard::Ask(Box::new(observation), Moment { episode: 0, request: self.num_requests - 1 })
            }
            Err(reason) => Heard::Reply(Reply::end(&reason)),
        }
    }

    fn answer(&mut self, outcome: Result<Actions, String>, timing: Timing, _: f64) -> Reply {
        let actions = match outcome {
            Ok(actions) => actions,
            Err(reason) => return Reply::end(&reason),
        };
        let bytes = bytes_of(&actions.values);
        let infer = Value::Float(timing.infer);
        let mut server = vec![(Value::Text("infer_ms"), infer.clone())];
        server.extend(timing.before.map(|millis| (Value::Text("prev_total_ms"), Value::Float(millis))));
        Reply::say(&map([
            ("actions", array(Keys::Bytes, &[actions.num_steps(), actions.width], &bytes)),
            ("policy_timing", map([("infer_ms", infer)])),
            ("server_timing", Value::Map(server)),
        ]))
    }

    fn refuse(&mut self, reason: &str, _: f64) -> Reply {
        Reply::end(reason)
    }
}
