//! `loongforge evaluate` and the held-out loss of `eval`: the same number as in training, however samples are packed and
//! stored; and what is said where it cannot be had.

use crate::fixture::{CHECKPOINT, Fixture};
use serde_json::Value;

/// A run of one step on the first 16 samples that leaves the weights as they are.
const ONE_STEP: [&str; 5] =
    ["train.steps=1", "train.global_batch_size=16", "train.lr=1e-30", "log.tensorboard=false", "--overwrite"];

/// Sums of float32 in another order.
const ROUNDING: f64 = 1e-5;

fn evaluate(fixture: &Fixture, args: &[&str]) -> Value {
    let said = fixture.succeeds(&[&["evaluate"], args, &["--json", "--no-sandbox"]].concat());
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {}", said.out))
}

#[track_caller]
fn assert_close(found: &Value, expected: f64, tolerance: f64) {
    let loss = found["loss"].as_f64().unwrap();
    assert!((loss / expected - 1.0).abs() < tolerance, "{loss} and {expected}");
}

/// Returns the loss of the run's only step.
fn loss_of_run(fixture: &Fixture, overrides: &[&str]) -> f64 {
    fixture.succeeds(&[&["run", "run.yaml"], &ONE_STEP[..], overrides].concat());
    let line: Value = serde_json::from_str(fixture.read("run/metrics.jsonl").lines().next().unwrap()).unwrap();
    line["loss"].as_f64().unwrap()
}

/// Conversations without pictures, of several lengths.
fn write_conversations(fixture: &Fixture, name: &str) {
    let line = |index: usize| {
        let answer = "abcdefgh".repeat(index % 3 + 1);
        format!(
            r#"{{"messages":[{{"role":"user","content":"Say {index}."}},{{"role":"assistant","content":"{answer}"}}]}}"#
        )
    };
    fixture.write(name, (0..40).map(|index| line(index) + "\n").collect::<String>());
}

#[test]
fn the_loss_is_that_of_training_with_and_without_pictures() {
    let fixture = Fixture::new();
    write_conversations(&fixture, "text.jsonl");
    for file in ["data/train.jsonl", "text.jsonl"] {
        let expected = loss_of_run(&fixture, &[&format!("data.train.0.path={file}")]);
        // The run's folder: its newest checkpoint, and its `data.pack.max_tokens`.
        let found = evaluate(&fixture, &["run", file, "--limit", "16"]);
        assert_close(&found, expected, ROUNDING);
        assert_eq!((&found["samples"], &found["dtype"]), (&16.into(), &"f32".into()));
        // All in one row, and a row for each sample or two.
        let rows: Vec<u64> = ["4096", "80"]
            .map(|tokens| {
                let found = evaluate(&fixture, &["run", file, "--limit", "16", "--max-tokens", tokens]);
                assert_close(&found, expected, ROUNDING);
                found["packs"].as_u64().unwrap()
            })
            .into();
        assert!(rows[0] == 1 && rows[1] > 7, "{rows:?}");
        let half = evaluate(&fixture, &["run", file, "--limit", "8"]);
        assert_ne!(half["loss"], found["loss"]);
    }
    let pretrain = loss_of_run(&fixture, &["data.train.0.path=text.jsonl", "train.phase=pretrain"]);
    assert_close(&evaluate(&fixture, &["run", "text.jsonl", "--limit", "16"]), pretrain, ROUNDING);
    let sft = evaluate(&fixture, &["run", "text.jsonl", "--limit", "16", "--phase", "sft"]);
    assert!(sft["targets"].as_u64() < evaluate(&fixture, &["run", "text.jsonl", "--limit", "16"])["targets"].as_u64());
}

#[test]
fn bf16_is_the_type_of_a_model_that_says_so() {
    let fixture = Fixture::new();
    let expected = loss_of_run(&fixture, &["train.precision=bf16"]);
    let own = evaluate(&fixture, &["run", "data/train.jsonl", "--limit", "16"]);
    assert_eq!(own["dtype"], "bf16");
    // Eight bits of mantissa.
    assert_close(&own, expected, 5e-3);
    let wide = evaluate(&fixture, &["run", "data/train.jsonl", "--limit", "16", "--dtype", "f32"]);
    assert_eq!(wide["dtype"], "f32");
    assert_close(&wide, expected, 5e-3);
    assert_ne!(own["loss"], wide["loss"]);
}

#[test]
fn adapters_are_evaluated_on_their_base_and_shards_as_lines_are() {
    let fixture = Fixture::trained();
    fixture.copy(CHECKPOINT, "base");
    let lora = ["model.load=base", "model.weights=load", "model.foundation.lora={r: 4}", "train.lr=1e-2"];
    let frozen = ["model.image_encoder.freeze=true", "model.image_projector.freeze=true", "run.dir=lora"];
    fixture.succeeds(&[&["run", "run.yaml"], &lora[..], &frozen].concat());
    fixture.succeeds(&["checkpoint", "export-hf", "lora/checkpoints/step-00000002", "merged"]);
    let adapted = evaluate(&fixture, &["lora", "data/train.jsonl"]);
    // A folder that no run says anything of.
    let merged = evaluate(&fixture, &["merged", "data/train.jsonl"]);
    assert_close(&adapted, merged["loss"].as_f64().unwrap(), ROUNDING);
    assert_eq!((&adapted["samples"], &adapted["correct"]), (&40.into(), &merged["correct"]));
    assert_ne!(adapted["loss"], evaluate(&fixture, &["base", "data/train.jsonl"])["loss"]);

    fixture.succeeds(&["data", "convert", "--to", "webdataset", "data/train.jsonl", "--out", "shards"]);
    let shards = evaluate(&fixture, &["merged", "shards/*.tar"]);
    assert_close(&shards, merged["loss"].as_f64().unwrap(), ROUNDING);
    assert_eq!(shards["targets"], merged["targets"]);
}

#[test]
fn bad_samples_are_named_and_too_many_are_no_result() {
    let fixture = Fixture::trained();
    let good = fixture.read("data/held_out.jsonl");
    fixture.write("data/some.jsonl", format!("no json\n{good}"));
    let said = fixture.succeeds(&["evaluate", "run", "data/some.jsonl"]);
    assert!(said.err.contains("bad sample: data/some.jsonl:1: "), "{}", said.err);
    assert!(said.out.contains("loss ") && said.out.contains("4 samples of"), "{}", said.out);
    assert!(said.out.contains(", 1 bad sample;"), "{}", said.out);
    assert_eq!(evaluate(&fixture, &["run", "data/some.jsonl"])["bad_samples"][0]["at"], "1");
    // A limit that is given also holds for few samples.
    let words = ["1 of 5 samples are bad, more than --max-bad = 0.1 allows; the first: data/some.jsonl:1: "];
    fixture.fails(&["evaluate", "run", "data/some.jsonl", "--max-bad", "0.1"], 1, &words);
    fixture.succeeds(&["evaluate", "run", "data/some.jsonl", "--max-bad", "0.2"]);

    let first = good.lines().next().unwrap();
    fixture.write("lists/elsewhere.jsonl", first);
    let words = ["no sample can be used", "No such file", "or in --media-dir (of a config's data set: media_dir)"];
    fixture.fails(&["evaluate", "run", "lists/elsewhere.jsonl"], 1, &words);
    fixture.write("data/many.jsonl", format!("{first}\n").repeat(98) + "no json\nno json\n");
    let words = ["2 of 100 samples are bad, more than `data.on_bad_sample.max_fraction` = 0.01", "data/many.jsonl:100"];
    fixture.fails(&["evaluate", "run", "data/many.jsonl"], 1, &words);
    fixture.succeeds(&["evaluate", "run", "data/many.jsonl", "--max-bad", "0.5"]);
    fixture.fails(
        &["evaluate", "run", "data/some.jsonl", "--max-tokens", "8"],
        1,
        &["no sample can be used", "some.jsonl:1"],
    );
}

#[test]
fn answers_are_scored_and_kept() {
    let fixture = Fixture::trained();
    let asked = ["run", "data/held_out.jsonl", "--limit", "3", "--scores", "wer,cer", "--max-new-tokens", "4"];
    let found = evaluate(&fixture, &[&asked[..], &["--hypotheses", "heard.jsonl"]].concat());
    let kept = fixture.read("heard.jsonl");
    let kept: Vec<Value> = kept.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((kept.len(), &found["answers"]["count"]), (3, &3.into()));
    // Every number is a word.
    assert_eq!(found["answers"]["wer"]["edits"]["reference"], 3, "{found}");
    assert_eq!(found["answers"]["wer"]["normalize"], "basic");
    let letters: usize = kept.iter().map(|line| line["expected"].as_str().unwrap().len()).sum();
    assert_eq!(found["answers"]["cer"]["edits"]["reference"], letters, "{found}");
    let correct = kept.iter().filter(|line| line["expected"] == line["answer"]).count();
    assert_eq!(found["answers"]["exact"], correct as f64 / 3.0);
    let said = fixture.succeeds(&[&["evaluate"], &asked[..]].concat());
    assert!(said.out.contains("WER ") && said.out.contains("normalized: basic"), "{}", said.out);
}

#[test]
fn what_cannot_be_evaluated_is_named() {
    let fixture = Fixture::trained();
    let evaluate = |args: &[&str], words: &[&str]| fixture.fails(&[&["evaluate"], args].concat(), 2, words);
    evaluate(&["run", "data/gone.jsonl"], &["data/gone.jsonl"]);
    evaluate(&["data", "data/train.jsonl"], &["data has no model: neither config.json"]);
    evaluate(&["run", "data/train.jsonl", "--phase", "cook"], &["--phase", "cook", "pretrain"]);
    evaluate(&["run", "data/train.jsonl", "--template", "cook"], &["--template", "cook", "chatml"]);
    evaluate(&["run", "data/train.jsonl", "--format", "cook"], &["cook", "sharegpt"]);
    evaluate(&["run", "data/train.jsonl", "--columns", "cook"], &["--columns", "field=name"]);
    evaluate(&["run", "data/train.jsonl", "--scores", "meteor"], &["--scores", "meteor", "wer"]);
    let scores = ["run", "data/train.jsonl", "--scores"];
    evaluate(&[&scores[..], &["cer", "--normalize", "all"]].concat(), &["--normalize", "basic"]);
    let without = ["--normalize applies only", "wer, cer and words"];
    evaluate(&[&scores[..], &["bleu,rouge", "--normalize", "none"]].concat(), &without);
    evaluate(&["run", "data/train.jsonl", "--answers", "--normalize", "basic"], &without);
    let kept = fixture.read("data/held_out.jsonl");
    for (path, word) in [("./data/held_out.jsonl", "is read as data"), ("gone/heard.jsonl", "--hypotheses: gone")] {
        evaluate(&["run", "data/held_out.jsonl", "--hypotheses", path], &[word]);
    }
    assert_eq!(fixture.read("data/held_out.jsonl"), kept);
    let pipeline = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pipelines/wan2.1_i2v/model");
    evaluate(&[pipeline, "data/train.jsonl"], &["is a diffusion model", "eval.path", "loongforge sample"]);
    // Of two answers in a row, or of one that may be bad, no loss is that of a model's answers.
    fixture.write("pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n");
    fixture.write("labeled.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": true}\n");
    for file in ["pairs.jsonl", "labeled.jsonl"] {
        evaluate(&["run", file], &[file, "pairs and labeled answers can only be evaluated", "train.preference"]);
    }
    fixture.succeeds(&["evaluate", "run", "labeled.jsonl", "--format", "alpaca"]);
    fixture.write("a.txt", "hello\nworld\n");
    evaluate(&["run", "a.txt", "--phase", "pretrain", "--answers"], &["--answers", "the data are plain texts"]);
    evaluate(&["run", "a.txt"], &["--phase pretrain", "a.txt"]);
    fixture.succeeds(&["evaluate", "run", "a.txt", "--phase", "pretrain"]);
}

#[test]
fn eval_of_a_run_reports_the_loss_that_evaluate_finds() {
    let fixture = Fixture::new();
    let said = fixture.succeeds(&["run", "run.yaml", "+eval.path=data/held_out.jsonl", "eval.max_new_tokens=2"]);
    let found = evaluate(&fixture, &["run", "data/held_out.jsonl"]);
    let line = said.err.lines().find(|line| line.starts_with("held out: ")).unwrap();
    let loss = format!("held out: loss {:.4} (perplexity ", found["loss"].as_f64().unwrap());
    assert!(line.starts_with(&loss) && line.contains(" tokens; "), "{line}, {loss}");
    assert!(line.contains(" of 4 answers correct ("), "{line}");

    // Texts have no answers.
    fixture.write("a.txt", "hello\nworld\n");
    let texts = ["data.train.0.path=a.txt", "+eval.path=a.txt", "train.phase=pretrain", "train.global_batch_size=2"];
    let said = fixture.succeeds(&[&["run", "run.yaml", "--overwrite"], &texts[..]].concat());
    assert!(said.err.contains("held out: loss ") && !said.err.contains("correct"), "{}", said.err);
    fixture.fails(&["check", "run.yaml", "+eval.path=a.txt"], 2, &["eval.path: a.txt", "train.phase"]);
}

#[test]
fn a_run_that_is_evaluated_writes_what_it_finds() {
    let fixture = Fixture::new();
    let keys = ["+eval.path=data/held_out.jsonl", "eval.max_new_tokens=2", "eval.every_steps=1", "data.val_size=5"];
    let said = fixture.succeeds(&[&["run", "run.yaml", "train.steps=2"], &keys[..]].concat());
    let lines: Vec<Value> =
        fixture.read("run/eval.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |line: &Value| (line["step"].as_u64().unwrap(), line["set"].as_str().unwrap().to_owned());
    let sets: Vec<(u64, String)> = lines.iter().map(of).collect();
    let expected = [(1, "held_out"), (1, "val"), (2, "held_out"), (2, "val")];
    assert_eq!(sets, expected.map(|(step, set)| (step, set.to_owned())));
    let last = &lines[2];
    let alone = evaluate(&fixture, &["run", "data/held_out.jsonl"]);
    assert_close(&alone, last["loss"].as_f64().unwrap(), ROUNDING);
    assert_eq!((&last["targets"], &last["samples"]), (&alone["targets"], &alone["samples"]));
    assert_eq!(last["accuracy"], alone["accuracy"]);
    assert_eq!(lines[3]["samples"], 5);
    let answer = &last["answers"][0];
    assert_eq!(answer["prompt"], "Read the number.");
    assert!(
        answer["expected"].as_str().unwrap().len() > 1 && answer["correct"] == (answer["answer"] == answer["expected"])
    );
    let metrics: Value = serde_json::from_str(fixture.read("run/metrics.jsonl").lines().nth(1).unwrap()).unwrap();
    assert_eq!(metrics["eval_loss"]["held_out"], lines[0]["loss"]);
    assert!(fixture.path("run/checkpoints/best/MANIFEST.json").exists());
    assert!(
        said.err.contains("eval after 2 steps, held_out: loss ") && !said.err.contains("held out: "),
        "{}",
        said.err
    );
    assert!(said.err.contains("Read the number. \u{2192} "), "{}", said.err);
}
