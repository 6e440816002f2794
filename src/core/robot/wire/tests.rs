//! Whole dialogues of every protocol, and messages that are wrong.

use super::array::floats;
use super::dialogue::{array, map};
use super::*;
use crate::robot::pads::{self, CAMERA};
use crate::robot::{Actions, DataNames, Moment, Observation};
use std::sync::Arc;

const STATE: [f32; 2] = [0.25, 0.75];
/// The bytes of the state.
const STATE_BYTES: [u8; 8] = [0, 0, 0x80, 0x3e, 0, 0, 0x40, 0x3f];
const PICTURE: [u8; 24] = [9; 24];

fn offer(rules: &[&str], without: &[&str]) -> Arc<Offer> {
    let spec = pads::spec("test");
    let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
    let names = Names::new(&spec, &owned(rules), &owned(without), None).unwrap();
    Arc::new(Offer { spec, names })
}

/// Returns an observation of openpi's client; `change` sees its fields.
fn observation<'a>(change: impl FnOnce(&mut Vec<(Value<'a>, Value<'a>)>)) -> Vec<u8> {
    let mut entries = vec![
        (Value::Text("observation/image"), floats(Keys::Bytes, "|u1", &[2, 4, 3], &PICTURE)),
        (Value::Text("observation/state"), array(Keys::Bytes, &[2], &STATE_BYTES)),
        (Value::Text("prompt"), Value::Text("go to the red pad")),
    ];
    change(&mut entries);
    write(&Value::Map(entries))
}

/// Actions that are being executed come with an observation, where the policy can go on with them.
#[test]
fn begun_actions_are_a_field() {
    let message = observation(|fields| {
        fields.push((Value::Text("action_prefix"), array(Keys::Bytes, &[1, 2], &STATE_BYTES)));
    });
    let observed = |continues_chunks: bool, message: &[u8]| {
        let spec = crate::robot::PolicySpec { continues_chunks, ..pads::spec("test") };
        let names = Names::new(&spec, &[], &[], None).unwrap();
        let value = read(message).unwrap();
        names.observation(&super::fields::fields(&value, Keys::Bytes).unwrap())
    };
    assert_eq!(observed(true, &message).unwrap().begun, STATE);
    assert!(observed(true, &observation(|_| ())).unwrap().begun.is_empty());
    assert!(observed(false, &message).unwrap_err().contains("cannot continue a started chunk"));
    for (shape, values, part) in [
        (vec![3], vec![0.5; 3], "3 values"),
        (vec![8, 2], vec![0.5; 16], "16 values"),
        (vec![1, 2], vec![f32::NAN; 2], "NaN"),
    ] {
        let bytes: Vec<u8> = values.iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
        let message = observation(|fields| {
            fields.push((Value::Text("action_prefix"), floats(Keys::Bytes, "<f4", &shape, &bytes)));
        });
        let error = observed(true, &message).unwrap_err();
        assert!(error.starts_with("action_prefix: ") && error.contains(part), "{error}");
    }
}

fn asked(heard: Heard) -> (Observation, Moment) {
    match heard {
        Heard::Ask(observation, moment) => (*observation, moment),
        Heard::Reply(reply) => panic!("{reply:?}"),
    }
}

fn replied(heard: Heard) -> Reply {
    if let Heard::Reply(reply) = heard { reply } else { panic!("{heard:?}") }
}

fn error_of(reply: &Reply) -> String {
    match &reply.frame {
        Some(Frame::Text(text)) => text.clone(),
        Some(Frame::Binary(bytes)) => format!("{:?}", read(bytes).unwrap()),
        None => String::new(),
    }
}

fn chunk() -> Actions {
    Actions { width: 2, values: (0..16).map(|value| value as f32).collect() }
}

/// Returns the values of an array of 32-bit floats, and its shape.
fn actions(value: &Value<'_>, keys: Keys) -> (Vec<usize>, Vec<f64>) {
    let array = super::array::Array::of(value, keys).unwrap().expect("an array");
    (array.shape.clone(), array.numbers().unwrap())
}

#[test]
fn openpi_begins_and_gets_whole_chunks() {
    let mut dialogue = Protocol::OpenPi.begin(offer(&[], &[]));
    let greeting = dialogue.greeting().unwrap();
    assert_eq!(read(&greeting).unwrap().get("action_horizon"), Some(&Value::Int(8)));
    for request in 0..2 {
        let (seen, moment) = asked(dialogue.hear(&observation(|_| ()), 0.0));
        assert_eq!((seen.state.as_slice(), seen.prompt.as_str()), (&STATE[..], "go to the red pad"));
        assert_eq!((&*seen.images[0].0, seen.images[0].1.dimensions()), (CAMERA, (4, 2)));
        assert_eq!(moment, Moment { episode: 0, request });
        let reply = dialogue.answer(Ok(chunk()), Timing { infer: 1.5, before: Some(2.0) }, 0.0);
        let Some(Frame::Binary(bytes)) = &reply.frame else { panic!("{reply:?}") };
        let value = read(bytes).unwrap();
        let (shape, values) = actions(value.get("actions").unwrap(), Keys::Bytes);
        assert_eq!((shape, values[15], reply.ends), (vec![8, 2], 15.0, false));
        let timing = value.get("server_timing").unwrap();
        assert_eq!(timing.get("infer_ms"), Some(&Value::Float(1.5)));
        assert_eq!(timing.get("prev_total_ms"), Some(&Value::Float(2.0)));
    }
    let reply = dialogue.answer(Err("it fell over".to_owned()), Timing::default(), 0.0);
    assert_eq!(reply, Reply { frame: Some(Frame::Text("it fell over".to_owned())), ends: true });
}

#[test]
fn every_bad_message_of_openpi_ends_with_its_reason() {
    let dimmed = [7u8; 12];
    let complex = floats(Keys::Bytes, "<c8", &[2, 2, 3], &dimmed);
    let endless = f32::NAN.to_le_bytes().repeat(2);
    let long = "a".repeat((1 << 16) + 1);
    let many = vec![0; (1 << 16) + 1];
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (observation(|_| ())[..50].to_vec(), "cut off"),
        (vec![0x91; 100], "nested"),
        (b"\x93\x01\x02\x03".to_vec(), "must be a map"),
        (observation(|all| all[0].1 = complex.clone()), "\"<c8\""),
        (observation(|all| all[0].1 = floats(Keys::Bytes, "|O", &[1], &dimmed)), "\"|O\""),
        (observation(|all| all[0].1 = floats(Keys::Bytes, "|u1", &[3, 1, 3], &dimmed[..9])), "first or last"),
        (observation(|all| all[0].1 = floats(Keys::Bytes, "|u1", &[1 << 40, 3], &dimmed)), "12 bytes"),
        (observation(|all| all[2].1 = Value::Text(&long)), "prompt: the prompt has 65537 bytes, more than 65536"),
        (observation(|all| all[0].1 = Value::Text("x")), "observation/image: unknown field; name its part"),
        (observation(|all| drop(all.remove(0))), "missing picture of observation.images.top"),
        (observation(|all| drop(all.remove(1))), "the state has 0 values, but the policy reads 2"),
        (observation(|all| all[1].1 = array(Keys::Bytes, &[2], &endless)), "NaN"),
        (observation(|all| all[1].1 = floats(Keys::Bytes, "|u1", &[many.len()], &many)), "65537 values, more than"),
        (observation(|all| drop(all.remove(2))), "missing prompt"),
        (observation(|all| all.push((Value::Text("gripper"), Value::Int(1)))), "gripper: unknown field"),
        (observation(|all| all.push((Value::Text("state"), Value::List(vec![Value::Int(1)])))), "several fields"),
        (observation(|all| all.push((Value::Text("task"), Value::Text("b")))), "already this part"),
    ];
    for (message, expected) in cases {
        let mut dialogue = Protocol::OpenPi.begin(offer(&[], &[]));
        let reply = replied(dialogue.hear(&message, 0.0));
        assert!(reply.ends && error_of(&reply).contains(expected), "{expected}: {reply:?}");
    }
}

#[test]
fn rules_say_what_fields_are() {
    let hear = |rules: &[&str], message: &[u8]| Protocol::OpenPi.begin(offer(rules, &[])).hear(message, 0.0);
    let joints = observation(|all| {
        all[1] = (Value::Text("joints"), Value::Float(1.0));
        all.push((Value::Text("gripper"), Value::Int(2)));
    });
    let (seen, _) = asked(hear(&["gripper=state", "joints=state"], &joints));
    assert_eq!(seen.state, [2.0, 1.0], "in the order of the rules");
    let wrist = observation(|all| {
        let picture = all[0].1.clone();
        all.push((Value::Text("wrist"), picture));
    });
    assert!(error_of(&replied(hear(&[], &wrist))).contains("observation/image: unknown field"));
    let (seen, _) = asked(hear(&["wrist=top", "observation/image=-"], &wrist));
    assert_eq!(seen.images.len(), 1);
    let done = observation(|all| {
        let scalar =
            [("__npgeneric__", Value::Bool(true)), ("data", Value::Bool(false)), ("dtype", Value::Text("|b1"))];
        let scalar = scalar.map(|(key, value)| (Keys::Bytes.key(key), value));
        all.push((Value::Text("done"), Value::Map(scalar.into())));
    });
    asked(hear(&["done=-"], &done));
    let blind = observation(|all| drop(all.remove(0)));
    let (seen, _) = asked(Protocol::OpenPi.begin(offer(&[], &["top"])).hear(&blind, 0.0));
    assert!(seen.images.is_empty());
    let names = |rule: &str| Names::new(&pads::spec("test"), &[rule.to_owned()], &[], None).unwrap_err();
    assert!(names("a=side").contains("not one of the policy's cameras (observation.images.top)"));
    assert!(names("a").contains("FIELD=PART"));
}

#[test]
fn cameras_whose_names_end_alike_go_by_their_whole_names() {
    let cameras = ["observation.images.left.rgb", "observation.images.right.rgb"].map(str::to_owned);
    let spec = crate::robot::PolicySpec { cameras: cameras.to_vec(), ..pads::spec("test") };
    let names = Names::new(&spec, &[], &cameras[..1], None).unwrap();
    let heard = |field: &'static str| {
        let message = observation(|all| all[0].0 = Value::Text(field));
        let value = read(&message).unwrap();
        let given = super::fields::fields(&value, Keys::Bytes).unwrap();
        names.observation(&given)
    };
    assert_eq!(heard("observation.images.right.rgb").unwrap().images[0].0, cameras[1]);
    let error = heard("images/rgb").unwrap_err();
    assert!(error.contains("images/rgb: unknown field"), "{error}");
}

/// The names are those that lerobot's preprocessor would give.
#[test]
fn fields_may_have_the_names_of_the_data() {
    let cameras = ["observation.images.base", "observation.images.wrist"].map(str::to_owned);
    let data = DataNames {
        cameras: vec![("observation.images.front".to_owned(), cameras[0].clone())],
        state: "observation.joints".to_owned(),
        ..DataNames::default()
    };
    let spec = crate::robot::PolicySpec { cameras: cameras.to_vec(), data, ..pads::spec("test") };
    let names = Names::new(&spec, &[], &cameras, None).unwrap();
    let heard = |picture: &'static str, state: &'static str| {
        let message = observation(|all| (all[0].0, all[1].0) = (Value::Text(picture), Value::Text(state)));
        let value = read(&message).unwrap();
        names.observation(&super::fields::fields(&value, Keys::Bytes).unwrap())
    };
    let seen = heard("observation.images.front", "observation.joints").unwrap();
    assert_eq!((seen.images[0].0.as_str(), seen.state), (cameras[0].as_str(), STATE.to_vec()));
    assert_eq!(heard("observation.images.wrist", "observation.state").unwrap().images[0].0, cameras[1]);
    assert!(heard("observation.images.side", "state").unwrap_err().contains("observation.images.side: unknown field"));
}

fn vla_eval(kind: &str, payload: Value<'_>, seq: i128) -> Vec<u8> {
    write(&map([
        ("type", Value::Text(kind)),
        ("payload", payload),
        ("seq", Value::Int(seq)),
        ("timestamp", Value::Float(1.0)),
    ]))
}

#[test]
fn vla_eval_gets_an_action_an_observation_and_goes_on_after_errors() {
    let mut dialogue = Protocol::VlaEval.begin(offer(&[], &[]));
    assert_eq!(dialogue.greeting(), None);
    let hello = vla_eval("hello", map([("protocol_version", Value::Int(1)), ("harness_version", Value::Text("0"))]), 1);
    assert!(error_of(&replied(dialogue.hear(&hello, 0.0))).contains("Text(\"hello\")"));
    let raw = map([
        ("__image__", Value::Bool(true)),
        ("format", Value::Text("raw")),
        ("data", Value::Bytes(&PICTURE)),
        ("dtype", Value::Text("|u1")),
        ("shape", Value::List([2, 4, 3].map(Value::Int).into())),
    ]);
    let payload = map([
        ("images", map([("agentview", raw)])),
        ("task_description", Value::Text("go")),
        ("state", array(Keys::Text, &[2], &STATE_BYTES)),
    ]);
    let start = vla_eval("episode_start", map([]), 2);
    for episode in 0..2 {
        assert_eq!(replied(dialogue.hear(&start, 0.0)), Reply::none());
        for step in 0..5i128 {
            let message = vla_eval("observation", payload.clone(), 10 + step);
            let reply = match dialogue.hear(&message, 0.0) {
                Heard::Ask(seen, moment) => {
                    // 4 of 8 actions are executed.
                    assert_eq!((moment, step % 4), (Moment { episode, request: step as u64 / 4 }, 0));
                    assert_eq!((seen.prompt.as_str(), seen.images[0].1.dimensions()), ("go", (4, 2)));
                    dialogue.answer(Ok(chunk()), Timing::default(), 7.0)
                }
                Heard::Reply(reply) => reply,
            };
            let Some(Frame::Binary(bytes)) = &reply.frame else { panic!("{reply:?}") };
            let value = read(bytes).unwrap();
            assert_eq!(
                (value.get("type"), value.get("seq")),
                (Some(&Value::Text("action")), Some(&Value::Int(10 + step)))
            );
            let (shape, values) = actions(value.get("payload").unwrap().get("actions").unwrap(), Keys::Text);
            assert_eq!((shape, values[0]), (vec![2], (2 * (step % 4)) as f64));
        }
    }
    let bad = [vla_eval("observation", Value::Nil, 77), vla_eval("vote", map([]), 77), b"\xc1".to_vec()];
    dialogue.hear(&start, 0.0);
    for message in bad {
        let reply = replied(dialogue.hear(&message, 0.0));
        assert!(!reply.ends && error_of(&reply).contains("Text(\"error\")"), "{reply:?}");
    }
    assert!(matches!(dialogue.hear(&vla_eval("observation", payload, 78), 0.0), Heard::Ask(..)));
}

/// Returns a request of LoongForge's client, which may have begun actions, and asks for a whole chunk.
fn request(picture: &Value<'_>, is_begun: bool, whole: bool) -> Vec<u8> {
    let mut payload = vec![
        (Value::Text("images"), Value::List(vec![picture.clone()])),
        (Value::Text("instructions"), Value::List(vec![Value::Text("go")])),
        (Value::Text("state"), array(Keys::Bytes, &[2], &STATE_BYTES)),
        (Value::Text("return_action_chunk"), Value::Bool(whole)),
        (Value::Text("disable_action_cache"), Value::Bool(whole)),
    ];
    if is_begun {
        payload.push((Value::Text("action_prefix"), array(Keys::Bytes, &[1, 2], &STATE_BYTES)));
    }
    write(&map([
        ("type", Value::Text("infer")),
        ("request_id", Value::Text("r1")),
        ("protocol_version", Value::Text("1.0")),
        ("payload", Value::Map(payload)),
    ]))
}

/// Clients that are sent one action after another execute each, and have no use of begun ones.
#[test]
fn begun_actions_are_refused_where_clients_get_single_ones() {
    let spec = crate::robot::PolicySpec { continues_chunks: true, ..pads::spec("test") };
    let names = Names::new(&spec, &[], &[], None).unwrap();
    let offer = Arc::new(Offer { spec, names });
    let picture = floats(Keys::Bytes, "uint8", &[2, 4, 3], &PICTURE);
    let of_loongforge =
        |whole: bool| Protocol::LoongForge.begin(offer.clone()).hear(&request(&picture, true, whole), 0.0);
    assert!(error_of(&replied(of_loongforge(false))).contains("requires return_action_chunk and disable_action_cache"));
    assert_eq!(asked(of_loongforge(true)).0.begun, STATE);
    // A chunk that is kept does not make them go unread.
    let mut dialogue = Protocol::LoongForge.begin(offer.clone());
    asked(dialogue.hear(&request(&picture, false, false), 0.0));
    dialogue.answer(Ok(chunk()), Timing::default(), 0.0);
    let error = error_of(&replied(dialogue.hear(&request(&picture, true, false), 0.0)));
    assert!(error.contains("requires return_action_chunk and disable_action_cache"), "{error}");
    assert!(!error_of(&replied(dialogue.hear(&request(&picture, false, false), 0.0))).contains("error"));

    let observed = |is_begun: bool, seq| {
        let mut payload = vec![
            (Value::Text("images"), map([("agentview", array(Keys::Text, &[2, 4, 3], &[9; 96]))])),
            (Value::Text("task_description"), Value::Text("go")),
            (Value::Text("state"), array(Keys::Text, &[2], &STATE_BYTES)),
        ];
        if is_begun {
            payload.push((Value::Text("action_prefix"), array(Keys::Text, &[1, 2], &STATE_BYTES)));
        }
        vla_eval("observation", Value::Map(payload), seq)
    };
    let mut dialogue = Protocol::VlaEval.begin(offer);
    dialogue.hear(&vla_eval("episode_start", map([]), 1), 0.0);
    let refused = |heard: Heard| {
        let error = error_of(&replied(heard));
        assert!(error.contains("sends one action at a time"), "{error}");
    };
    refused(dialogue.hear(&observed(true, 2), 0.0));
    asked(dialogue.hear(&observed(false, 3), 0.0));
    dialogue.answer(Ok(chunk()), Timing::default(), 0.0);
    refused(dialogue.hear(&observed(true, 4), 0.0));
    assert!(!error_of(&replied(dialogue.hear(&observed(false, 5), 0.0))).contains("error"));
}

#[test]
fn loongforge_keeps_a_chunk_for_an_episode() {
    let mut dialogue = Protocol::LoongForge.begin(offer(&[], &[]));
    assert_eq!(read(&dialogue.greeting().unwrap()).unwrap().get("protocol_version"), Some(&Value::Text("1.0")));
    let ask = |kind: &str, payload: Value<'_>| {
        write(&map([
            ("type", Value::Text(kind)),
            ("request_id", Value::Text("r7")),
            ("protocol_version", Value::Text("1.0")),
            ("payload", payload),
        ]))
    };
    let payload = |whole: bool, episode| {
        map([
            ("images", Value::List(vec![floats(Keys::Bytes, "uint8", &[2, 4, 3], &PICTURE)])),
            ("instructions", Value::List(vec![Value::Text("go")])),
            ("state", Value::List(STATE.map(|value| Value::Float(value.into())).into())),
            ("unnorm_key", Value::Text("default")),
            ("episode_id", Value::Text(episode)),
            ("return_action_chunk", Value::Bool(whole)),
        ])
    };
    assert!(error_of(&replied(dialogue.hear(&ask("ping", map([])), 0.0))).contains("pong"));
    assert!(error_of(&replied(dialogue.hear(&ask("reset", map([])), 0.0))).contains("episode_id required"));
    replied(dialogue.hear(&ask("reset", map([("episode_id", Value::Text("a"))])), 0.0));
    asked(dialogue.hear(&ask("infer", payload(false, "a")), 0.0));
    let data = |reply: &Reply| {
        let Some(Frame::Binary(bytes)) = &reply.frame else { panic!("{reply:?}") };
        let value = read(bytes).unwrap();
        assert_eq!((value.get("ok"), value.get("request_id")), (Some(&Value::Bool(true)), Some(&Value::Text("r7"))));
        let data = value.get("data").unwrap();
        assert_eq!(data.get("actions").unwrap().entry(&Value::Bytes(b"dtype")), Some(&Value::Text("float32")));
        actions(data.get("actions").unwrap(), Keys::Bytes)
    };
    let first = dialogue.answer(Ok(chunk()), Timing { infer: 3.0, before: None }, 0.0);
    assert_eq!(data(&first), (vec![1, 2], vec![0.0, 1.0]));
    let second = replied(dialogue.hear(&ask("predict_action", payload(false, "a")), 0.0));
    assert_eq!(data(&second), (vec![1, 2], vec![2.0, 3.0]));
    let (_, moment) = asked(dialogue.hear(&ask("infer", payload(true, "b")), 0.0));
    assert_eq!(moment.request, 0, "another episode");
    assert_eq!(data(&dialogue.answer(Ok(chunk()), Timing::default(), 0.0)).0, [8, 2]);
    let wrong = write(&map([("type", Value::Text("ping")), ("protocol_version", Value::Text("2.0"))]));
    assert!(error_of(&replied(dialogue.hear(&wrong, 0.0))).contains("mismatch"));
    assert!(replied(dialogue.hear(b"\xc1", 0.0)).ends);
}
