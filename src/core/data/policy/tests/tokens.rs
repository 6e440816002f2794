//! Samples of policies that learn actions as FAST tokens.

use super::*;

/// Returns the config of a policy whose vocabulary has room for action tokens, and settings that have it learn them.
fn of_tokens(family: &str) -> (Json, Policy) {
    let mut config = config();
    (config["type"], config["sizes"]["vocab_size"]) = (family.into(), 700.into());
    let action_tokenizer = Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens/fast"));
    let token_weight = if family == "pi0_fast" { 0.0 } else { 1.0 };
    (config, Policy { action_tokenizer, token_weight, ..Policy::default() })
}

/// The expected tokens are those of lerobot's `ActionTokenizerProcessorStep` for Pi0-FAST; the last token of a prompt of Pi0.5 predicts
/// the first.
#[test]
fn action_tokens_follow_the_prompt() {
    let bench = Bench::new();
    let plain = bench.sample(&of_tokens("pi05").0, Policy::default(), 9);
    let actions: Vec<f32> = column(&plain, "actions").chunks(5).flat_map(|row| &row[..3]).copied().collect();
    let fast = FastTokenizer::open(&of_tokens("pi05").1.action_tokenizer.unwrap(), HORIZON, 3).unwrap();
    let first = 700 - 1 - 128;
    let tokens: Vec<i64> = fast.encode(&actions).unwrap().ids.iter().map(|id| first - id).collect();
    let model = bench.folder.path();
    let tokenizer = crate::data::tokenizer::Tokenizer::open(model, &Json::Null, &Json::Null).unwrap();
    let (bar, begin) = (tokenizer.id("|").unwrap(), tokenizer.encode("Action: ").unwrap());
    let begin: Vec<i64> = begin.iter().map(|token| token.id).collect();
    let (config, settings) = of_tokens("pi05");
    let maker = bench.maker(&config, settings.clone());
    let own = bench.sample(&config, settings.clone(), 9);
    let (asked, answer) = own.input_ids.split_at(plain.input_ids.len());
    assert_eq!((asked, &answer[..tokens.len()], answer[tokens.len()]), (&plain.input_ids[..], &tokens[..], bar));
    assert_eq!(answer.len(), tokens.len() + 2);
    let mut targets = vec![IGNORE_INDEX; own.input_ids.len()];
    targets[asked.len() - 1..][..answer.len()].copy_from_slice(answer);
    assert_eq!((&own.targets, own.meta.num_targets), (&targets, plain.meta.num_targets));
    assert_eq!((column(&own, "actions"), maker.writes()), (column(&plain, "actions"), None));

    // Pi0-FAST: its prompt ends with the line, and what begins an answer is given.
    let (mut config, settings) = of_tokens("pi0_fast");
    std::fs::write(
        model.join("tokenizer_config.json"),
        json!({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}).to_string(),
    )
    .unwrap();
    let own = bench.sample(&config, settings.clone(), 9);
    let maker = bench.maker(&config, settings);
    let set = Arc::new(Set::open(&goldens().join("image")).unwrap());
    let asked = maker.observe(&maker.observation(&set.step(1, 2).unwrap()).unwrap()).unwrap();
    let bos = *asked.input_ids.last().unwrap();
    assert_eq!(bos, tokenizer.id("<|im_start|>").unwrap());
    let at = own.input_ids.iter().position(|id| *id == bos).unwrap();
    let answer = [&[bos][..], &begin, &tokens, &[bar, tokenizer.id("<|im_end|>").unwrap()]].concat();
    assert_eq!(own.input_ids[at..], answer);
    let mut targets = vec![IGNORE_INDEX; own.input_ids.len()];
    targets[at..at + answer.len() - 1].copy_from_slice(&answer[1..]);
    assert_eq!((own.targets, own.meta.num_targets as usize), (targets, answer.len() - 1));
    assert!(own.columns.is_empty());

    // What it writes is read back, up to the bar; the rest is padding.
    let (found, flaw) = maker.read_tokens(&[&answer[1..], &[5]].concat());
    assert_eq!((flaw, found.len()), (None, HORIZON * 5));
    for (row, decoded) in found.chunks(5).zip(fast.decode(&fast.encode(&actions).unwrap().ids).unwrap().chunks(3)) {
        assert_eq!((&row[..3], &row[3..]), (decoded, &[0.0; 2][..]));
    }
    assert_eq!(maker.writes(), Some((bar, 256)));
    assert!(maker.read_tokens(&answer[1..9]).1.unwrap().contains("coefficients"));
    assert!(maker.read_tokens(&tokens).1.unwrap().contains("does not begin with"));
    // A text before it is no action.
    assert_eq!(maker.read_tokens(&[&[7, 8][..], &answer[1..]].concat()), (found, None));

    // Its files name lerobot's steps, and have the tokenizer of actions.
    let files = maker.files();
    assert!(files.iter().any(|(name, _)| name == "action_tokenizer/tokenizer.json"));
    let before: Json =
        serde_json::from_slice(&files.iter().find(|it| it.0 == "policy_preprocessor.json").unwrap().1).unwrap();
    let steps: Vec<&str> =
        before["steps"].as_array().unwrap().iter().map(|it| it["registry_name"].as_str().unwrap()).collect();
    assert_eq!(steps[4], "pi0_fast_prepare_state_tokenizer_processor_step");
    assert_eq!((steps[6], steps.len()), ("action_tokenizer_processor", 8));
    config["max_action_tokens"] = 3.into();
    let (_, settings) = of_tokens("pi0_fast");
    assert_eq!(bench.sample(&config, settings, 9).meta.num_targets, 2);
}

#[test]
fn settings_of_action_tokens_are_checked() {
    let bench = Bench::new();
    let ((config, settings), narrow) = (of_tokens("pi05"), config());
    let with = |change: &dyn Fn(&mut Policy)| {
        let mut settings = settings.clone();
        change(&mut settings);
        bench.error(&config, settings)
    };
    for (error, part) in [
        (with(&|it| it.action_tokenizer = None), "action_tokenizer: the folder does not exist"),
        (with(&|it| it.token_weight = 0.0), "policy.action_tokenizer is only for policies that learn action tokens"),
        (
            with(&|it| (it.token_weight, it.action_tokenizer, it.flow_weight) = (0.0, None, 2.0)),
            "policy.flow_weight is only for",
        ),
        (bench.error(&smolvla(), settings.clone()), "policy.token_weight: of the policies"),
        (bench.error(&of_tokens("pi0_fast").0, settings.clone()), "Pi0-FAST is trained only by the loss of its tokens"),
        (bench.error(&narrow, settings.clone()), "would have the ids 72 to 271"),
    ] {
        assert!(error.contains(part), "{error}");
    }
}

/// Texts of the data are learned before the tokens.
#[test]
fn texts_come_before_action_tokens() {
    use crate::data::lerobot::{Dtype, Feature, SetWriter, Value};
    let (bench, at) = (Bench::new(), tempfile::tempdir().unwrap());
    let text = Feature { key: "subtask".into(), dtype: Dtype::String, shape: vec![1], names: Vec::new() };
    let numbers = [("observation.state", &["x", "y"][..]), ("action", &["a", "b"][..])];
    let features = numbers.map(|(key, names)| Feature::vector(key, names)).into_iter().chain([text]).collect();
    let folder = at.path().join("set");
    let mut set = SetWriter::create(&folder, 10, "arm", features).unwrap();
    for step in 0..6 {
        let values = [0.1 * step as f32, 0.05 * (step * step) as f32];
        let frame = [("observation.state", Value::Numbers(&values[..])), ("action", Value::Numbers(&values[..]))];
        set.add_frame(&[frame[0], frame[1], ("subtask", Value::Text(if step < 3 { "reach" } else { "grasp" }))])
            .unwrap();
    }
    set.end_episode("pick up").unwrap();
    set.finish().unwrap();
    let (mut config, settings) = of_tokens("pi05");
    config["input_features"] = json!({ "observation.state": { "type": "STATE", "shape": [6] } });
    let settings = Policy {
        text_target: Some("subtask".into()),
        action_normalization: Some(Normalization::MinMax),
        state_normalization: Some(Normalization::MinMax),
        ..settings
    };
    let maker = bench.open(&config, &Bench::options(&[&folder], settings)).unwrap();
    let set = Arc::new(Set::open(&folder).unwrap());
    let sample = |frame| maker.learn(crate::message::SampleId(0), &set.step(0, frame).unwrap()).unwrap();
    let [first, last] = [sample(0), sample(4)];
    for (sample, text) in [(first, "reach"), (last, "grasp")] {
        let written: Vec<i64> = sample.targets.iter().copied().filter(|id| *id >= 0).collect();
        let expected = maker.prompt_ids_of(&format!("{text};\nAction: "));
        assert_eq!(written[..expected.len()], expected);
    }
}
