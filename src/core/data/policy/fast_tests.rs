//! Tests on a tiny tokenizer that `tests/oracle/make_fast.py` trains, against the tokens that its definition gives for chunks.
//! `LOONGFORGE_FAST` names another such folder.

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::{CONFIG, FastTokenizer, OTHERS, TOKENIZER};

fn folder() -> PathBuf {
    let own = || Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens/fast");
    std::env::var_os("LOONGFORGE_FAST").map_or_else(own, PathBuf::from)
}

fn read(name: &str) -> Json {
    serde_json::from_slice(&std::fs::read(folder().join(name)).unwrap()).unwrap()
}

fn numbers(json: &Json) -> Vec<f32> {
    json.as_array().unwrap().iter().map(|it| it.as_f64().unwrap() as f32).collect()
}

fn ids(json: &Json) -> Vec<i64> {
    json.as_array().unwrap().iter().map(|it| it.as_i64().unwrap()).collect()
}

fn size(of: &Json) -> [usize; 2] {
    ["horizon", "width"].map(|key| of[key].as_u64().unwrap() as usize)
}

fn opened() -> (FastTokenizer, Json) {
    let golden = read("expected.json");
    let [steps, width] = size(&golden);
    (FastTokenizer::open(&folder(), steps, width).unwrap(), golden)
}

/// Cosines in float64 and numpy's of float32 chunks: no coefficient of the goldens lies within 1e-4 of a half.
#[test]
fn tokens_and_actions_are_those_of_the_definition() {
    let (tokenizer, golden) = opened();
    for case in golden["cases"].as_array().unwrap() {
        let encoded = tokenizer.encode(&numbers(&case["actions"])).unwrap();
        assert_eq!(
            (encoded.ids.clone(), encoded.num_clipped as u64),
            (ids(&case["ids"]), case["clipped"].as_u64().unwrap())
        );
        let decoded = tokenizer.decode(&encoded.ids).unwrap();
        for (own, other) in decoded.iter().zip(numbers(&case["decoded"])) {
            assert!((own - other).abs() < 1e-6, "{own} {other}");
        }
        assert_eq!(tokenizer.encode(&decoded).unwrap(), encoded);
    }
}

#[test]
fn tokens_that_are_no_chunk_are_named_and_filled_up_or_cut_off() {
    let (tokenizer, golden) = opened();
    let whole = ids(&golden["cases"][0]["ids"]);
    let numbers = size(&golden).into_iter().product::<usize>();
    let flaw = |ids: &[i64]| tokenizer.decode(ids).unwrap_err();
    let short = &whole[..whole.len() - 1];
    assert!(flaw(short).contains(&format!("of the {numbers} coefficients")), "{}", flaw(short));
    assert!(flaw(&[&whole[..], &whole[..1]].concat()).contains("more than the"));
    assert!(flaw(&[5, 100_000]).contains("has no token 100000"));
    assert!(flaw(&[-1]).contains("has no token -1"));
    assert_eq!(tokenizer.decode_any(&[]).values, vec![0.0; numbers]);
    // What is too much changes nothing, and what is missing is coefficients of 0: the last are those of the highest frequency.
    let twice = tokenizer.decode_any(&[&whole[..], &whole[..]].concat());
    assert_eq!(twice.values, tokenizer.decode(&whole).unwrap());
    let filled = tokenizer.decode_any(short);
    assert!(filled.flaw.is_some() && filled.values != twice.values);
    let own = tokenizer.encode(&filled.values).unwrap();
    assert_eq!(own.ids[..short.len() - 1], short[..short.len() - 1]);
}

#[test]
fn chunks_without_tokens_are_named() {
    let (tokenizer, golden) = opened();
    let len = size(&golden).into_iter().product::<usize>();
    let error = |values: &[f32]| tokenizer.encode(values).unwrap_err();
    assert!(error(&[0.0]).contains("found 1 numbers"));
    assert!(error(&vec![f32::NAN; len]).contains("too large"));
    assert!(error(&vec![1e30; len]).contains("too large"));
    let unknown = error(&vec![90.0; len]);
    assert!(unknown.contains("has no token for the coefficient"), "{unknown}");
    // Below the smallest coefficient there is no character: it becomes that.
    let low = tokenizer.encode(&vec![-9.0; len]).unwrap();
    assert_eq!(low.num_clipped, size(&golden)[1]);
    let (found, least) = (tokenizer.decode(&low.ids).unwrap(), read(CONFIG)["min_token"].as_f64().unwrap());
    let expected = least / read(CONFIG)["scale"].as_f64().unwrap() / (size(&golden)[0] as f64).sqrt();
    assert!(found.iter().all(|it| (f64::from(*it) - expected).abs() < 1e-6), "{found:?}");
}

#[test]
fn folders_are_checked() {
    let at = tempfile::tempdir().unwrap();
    let write = |config: &Json| std::fs::write(at.path().join(CONFIG), config.to_string()).unwrap();
    let open =
        |chunk: [usize; 2]| FastTokenizer::open(at.path(), chunk[0], chunk[1]).map_err(|error| error.to_string());
    let error = |chunk| open(chunk).err().unwrap();
    assert!(error([8, 3]).contains(CONFIG));
    std::fs::copy(folder().join(TOKENIZER), at.path().join(TOKENIZER)).unwrap();
    for (key, value, expected) in [
        ("scale", json!(0), "`scale` is 0, not a number above 0"),
        ("min_token", json!(1.5), "`min_token` is 1.5, not a whole number"),
        ("time_horizon", json!(9), "`time_horizon` is 9, but the policy's is 8"),
        ("action_dim", json!(2), "`action_dim` is 2, but the policy's is 3"),
        ("processor_class", json!("Other"), "`processor_class` is \"Other\""),
        ("high_scale", json!(3), "`high_scale` is not implemented"),
    ] {
        let mut config = read(CONFIG);
        config[key] = value;
        write(&config);
        assert!(error([8, 3]).contains(expected), "{}", error([8, 3]));
    }
    write(&read(CONFIG));
    for chunk in [[0, 3], [8, 0], [2000, 1], [1024, 65]] {
        assert!(error(chunk).contains("at most 1024 actions"), "{}", error(chunk));
    }
    // Code that lies there is carried along, and not run.
    std::fs::write(at.path().join(OTHERS[2]), "raise SystemExit").unwrap();
    let names: Vec<String> = open([8, 3]).unwrap().files().iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(names, [CONFIG, TOKENIZER, OTHERS[2]].map(|name| format!("action_tokenizer/{name}")));
}
