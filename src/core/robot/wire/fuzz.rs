//! Messages of robots for `crate::fuzz`: the first byte chooses the protocol, the rest is a message. No other code uses it.

use super::array::{Keys, floats};
use super::dialogue::{Heard, Offer, Timing, array, map};
use super::msgpack::{Value, read, write};
use super::names::Names;
use super::protocol::Protocol;
use crate::robot::pads;
use crate::robot::policy::Actions;
use std::sync::Arc;

const PROTOCOLS: [Protocol; 3] = [Protocol::OpenPi, Protocol::VlaEval, Protocol::LoongForge];

/// Lets each protocol hear a message of arbitrary bytes twice; the first byte chooses the protocol.
pub fn request(bytes: &[u8]) {
    let Some((first, message)) = bytes.split_first() else { return };
    let spec = pads::spec("fuzz");
    let names = Names::new(&spec, &["ignored=-".to_owned()], &[], None).expect("a rule");
    let mut dialogue = PROTOCOLS[usize::from(*first) % 3].begin(Arc::new(Offer { spec, names }));
    for _ in 0..2 {
        match dialogue.hear(message, 0.0) {
            Heard::Reply(_) => {}
            Heard::Ask(observation, _) => {
                assert!(observation.state.iter().all(|value| value.is_finite()) && observation.state.len() == 2);
                let chunk = Actions { width: 2, values: vec![0.0; 16] };
                assert!(dialogue.answer(Ok(chunk), Timing::default(), 0.0).frame.is_some());
            }
        }
    }
    if let Ok(value) = read(message) {
        let again = write(&value);
        // Compared as bytes: what is no number is not equal to itself.
        assert_eq!(read(&again).map(|value| write(&value)), Ok(again));
    }
}

/// Returns a good message of each protocol.
pub fn requests() -> Vec<Vec<u8>> {
    let (picture, state) = ([7u8; 4 * 4 * 3], [0.25f32, 0.5].map(f32::to_le_bytes).concat());
    let openpi = map([
        ("observation/image", floats(Keys::Bytes, "|u1", &[4, 4, 3], &picture)),
        ("observation/state", array(Keys::Bytes, &[2], &state)),
        ("prompt", Value::Text("go to the red pad")),
        ("ignored", Value::Nil),
    ]);
    let image = map([
        ("__image__", Value::Bool(true)),
        ("format", Value::Text("raw")),
        ("data", Value::Bytes(&picture)),
        ("dtype", Value::Text("|u1")),
        ("shape", Value::List([4, 4, 3].map(Value::Int).into())),
    ]);
    let vla_eval = |kind, payload| {
        map([
            ("type", Value::Text(kind)),
            ("payload", payload),
            ("seq", Value::Int(3)),
            ("timestamp", Value::Float(0.5)),
        ])
    };
    let observation = map([
        ("images", map([("top", image)])),
        ("task_description", Value::Text("go to the blue pad")),
        ("state", array(Keys::Text, &[1, 2], &state)),
    ]);
    let loongforge = map([
        ("type", Value::Text("infer")),
        ("request_id", Value::Text("r")),
        ("protocol_version", Value::Text("1.0")),
        (
            "payload",
            map([
                ("images", Value::List(vec![floats(Keys::Bytes, "uint8", &[3, 4, 4], &picture)])),
                ("instructions", Value::List(vec![Value::Text("go to the green pad")])),
                ("state", Value::List(vec![Value::Float(0.5), Value::Int(0)])),
                ("episode_id", Value::Text("e")),
                ("return_action_chunk", Value::Bool(true)),
            ]),
        ),
    ]);
    let seed = |protocol: u8, value: &Value<'_>| [&[protocol][..], &write(value)].concat();
    vec![
        seed(0, &openpi),
        seed(1, &vla_eval("observation", observation)),
        seed(1, &vla_eval("hello", map([("protocol_version", Value::Int(1))]))),
        seed(2, &loongforge),
    ]
}
