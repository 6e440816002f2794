//! Evaluations while a run goes on: training is the same to the bit, and what is found is what any layout finds.

use crate::experts::qwen3_moe;
use crate::fixture::{Fixture, Pictures, bits};
use crate::processes::program;
use crate::soak::{self, Cell};
use loongforge::core::schedule::EvaluationSummary;
use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::path::Path;

/// Every three steps the held-out file, and samples set aside; answers where they can be generated.
const EVAL: [&str; 4] = ["eval.every_steps=3", "eval.max_new_tokens=4", "eval.max_samples=6", "eval.save_best=false"];

fn overrides<'a>(own: &[&'a str], path: &'a str) -> Vec<&'a str> {
    [&["train.steps=7", path][..], &EVAL, own].concat()
}

/// Hashes of weights and optimizer state at the end.
fn weights(run: &Path) -> BTreeMap<String, String> {
    let manifest = std::fs::read_to_string(run.join("checkpoints/step-00000007/MANIFEST.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let files = manifest["files"].as_object().unwrap().iter();
    let files = files.filter(|(name, _)| name.ends_with(".safetensors"));
    files.map(|(name, file)| (name.clone(), file["sha256"].as_str().unwrap().to_owned())).collect()
}

/// Checks that the run is the same with and without evaluations, and returns these.
fn evaluated(fixture: &Fixture, own: &[&str]) -> Vec<EvaluationSummary> {
    let run = fixture.path().join("run");
    let plain = fixture.run(&[&["train.steps=7"], own].concat(), None);
    let plain = (bits(&plain), weights(&run));
    std::fs::remove_dir_all(&run).unwrap();
    let path = format!("+eval.path={}", fixture.path().join("data/held_out.jsonl").display());
    let (steps, evaluations) = fixture.run_evaluated(&overrides(own, &path), None);
    assert_eq!((bits(&steps), weights(&run)), plain, "{own:?}");
    assert!(!plain.1.is_empty());
    std::fs::remove_dir_all(&run).unwrap();
    let steps: Vec<u64> = evaluations.iter().map(|summary| summary.step.0).collect();
    assert_eq!(steps, [3, 6, 7], "{own:?}");
    evaluations
}

/// Losses of two layouts but for the rounding of sums.
fn assert_close(own: &[&str], found: &[EvaluationSummary], expected: &[EvaluationSummary]) {
    for (found, expected) in found.iter().zip(expected) {
        let ([found], [expected]) = (&found.sets[..], &expected.sets[..]) else { panic!("one set") };
        let (left, right) = (found.loss(), expected.loss());
        assert!((left - right).abs() < 1e-4 * right, "{own:?}: {left} and {right}");
        assert_eq!((found.num_samples, found.found.num_targets), (6, expected.found.num_targets), "{own:?}");
        let (left, right) = (found.found.num_correct.unwrap(), expected.found.num_correct.unwrap());
        // Of scores that are almost equal rounding may prefer another.
        assert!(left.abs_diff(right) <= 1, "{own:?}: {left} and {right} predicted");
    }
}

const SMALL: &str = "train.micro_batch_size=2";

#[test]
fn evaluations_change_no_bit_in_any_layout_and_find_the_same() {
    let fixture = Fixture::new(Pictures::Some);
    let one = evaluated(&fixture, &[]);
    assert!(one[2].sets[0].loss() < one[0].sets[0].loss(), "{one:?}");
    assert_eq!(one[0].sets[0].found.outputs.len(), 8, "every question is answered");
    assert!(one[0].sets[0].found.outputs.iter().all(|(_, tokens)| tokens.len() <= 4));
    let layouts: &[&[&str]] = &[
        &["pools.placement=colocated"],
        &["run.deterministic=true", "pools.encoder.replicas=3", "pools.data.replicas=2"],
        &["model.image_encoder.freeze=true", "model.image_projector.freeze=true"],
        &[SMALL, "pools.foundation.replicas=2", "pools.foundation.zero=3"],
        &[SMALL, "pools.foundation.tensor_parallel=2"],
        &[SMALL, "pools.foundation.pipeline_parallel=2", "pools.encoder.tensor_parallel=2"],
        &[SMALL, "pools.foundation.context_parallel=2"],
    ];
    for own in layouts {
        let found = evaluated(&fixture, own);
        // A frozen encoder is another run.
        if !own.iter().any(|key| key.contains("freeze")) {
            assert_close(own, &found, &one);
            assert_same_answers(own, &found, &one);
        }
    }
}

/// Ranks that encode a share each and then answer together have credit for one pack's features, and no more.
#[test]
fn colocated_ranks_of_a_replica_answer_with_little_credit() {
    let fixture = Fixture::new(Pictures::All);
    let small = "train.micro_batch_size=1";
    let one = evaluated(&fixture, &[small]);
    let narrow = ["edges.features.credit=10KiB", "edges.pixels.credit=256KiB", "edges.tokens.credit=8KiB"];
    let layout = ["pools.placement=colocated", "pools.encoder.replicas=2", "pools.foundation.tensor_parallel=2"];
    let own = [&[small][..], &layout, &narrow].concat();
    let found = evaluated(&fixture, &own);
    assert_close(&own, &found, &one);
    assert_same_answers(&own, &found, &one);
}

/// Averages of the weights are evaluated, and the weights that go on are saved meanwhile.
#[test]
fn averages_are_evaluated_and_change_no_bit_of_training() {
    let fixture = Fixture::new(Pictures::Some);
    let averages = ["train.ema=0.9", SMALL, "checkpoint.every_steps=1"];
    let one = evaluated(&fixture, &averages);
    let replicas = ["pools.encoder.replicas=2", "pools.foundation.replicas=2"];
    let shared = ["pools.placement=colocated", "pools.foundation.zero=2", replicas[0], replicas[1]];
    let shared = [&averages[..], &shared].concat();
    assert_close(&shared, &evaluated(&fixture, &shared), &one);
    let weights = evaluated(&fixture, &averages[1..]);
    // Averages lag behind weights that get better.
    let [average, last] = [&one, &weights].map(|found| found[2].sets[0].loss());
    assert!(average > last + 1e-3, "{average} of averages, {last} of weights");
}

/// Checks that the continuations are the same, whoever computed them, before rounding has grown in the weights.
fn assert_same_answers(own: &[&str], found: &[EvaluationSummary], expected: &[EvaluationSummary]) {
    let [found, expected] = [found, expected].map(|all| {
        let mut outputs = all[0].sets[0].found.outputs.clone();
        outputs.sort();
        outputs
    });
    assert_eq!((found.len(), &found), (expected.len(), &expected), "{own:?}");
}

/// A kill after the last checkpoint and before the evaluation leaves a run without that evaluation's line.
#[test]
fn a_run_that_was_killed_before_its_last_evaluation_makes_it_when_it_is_started_again() {
    let fixture = Fixture::new(Pictures::Some);
    let path = format!("+eval.path={}", fixture.path().join("data/held_out.jsonl").display());
    let run = |more: &[&str]| {
        let output = program(&fixture, "run", &overrides(&[], &path)).args(more).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        text
    };
    run(&[]);
    let (dir, file) = (fixture.path().join("run"), fixture.path().join("run/eval.jsonl"));
    let saved = weights(&dir);
    let records = || {
        let text = std::fs::read_to_string(&file).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<serde_json::Value>>()
    };
    let whole = records();
    let before = whole.iter().filter(|record| record["step"] != 7).map(|record| format!("{record}\n"));
    std::fs::write(&file, before.collect::<String>()).unwrap();
    assert!(records().len() < whole.len());
    let text = run(&["--resume"]);
    assert!(!text.contains("nothing to do"), "{text}");
    let steps = |records: &[serde_json::Value]| records.iter().map(|record| record["step"].clone()).collect::<Vec<_>>();
    assert_eq!(steps(&records()), steps(&whole));
    assert_eq!(weights(&dir), saved);
    assert!(run(&["--resume"]).contains("nothing to do"));
}

/// If nothing is evaluated during the run, or no file tells what was, a kill leaves the run without the note that it is evaluated.
#[test]
fn a_run_that_was_killed_before_it_was_evaluated_is_evaluated_when_it_is_started_again() {
    let fixture = Fixture::new(Pictures::Some);
    let path = format!("+eval.path={}", fixture.path().join("data/held_out.jsonl").display());
    let run = |name: &str, more: &[&str]| {
        let own = ["train.steps=2", "train.warmup_steps=1", path.as_str(), "eval.max_new_tokens=2"];
        let output = program(&fixture, name, &[&own[..], more].concat()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        text
    };
    let cases: [(&str, &[&str], &str); 2] = [
        ("after", &["eval.every_steps=0"], "held out: loss"),
        ("untold", &["eval.every_steps=2", "log.jsonl=false"], "eval after 2 steps"),
    ];
    for (name, more, said) in cases {
        let again = [more, &["--resume"]].concat();
        assert!(run(name, more).contains(said), "{name}");
        std::fs::remove_file(fixture.path().join(name).join(".evaluated")).unwrap();
        let text = run(name, &again);
        assert!(text.contains(said) && !text.contains("nothing to do"), "{name}: {text}");
        let text = run(name, &again);
        assert!(!text.contains(said) && text.contains("nothing to do"), "{name}: {text}");
    }
    // What the first start had told is replaced.
    let told = std::fs::read_to_string(fixture.path().join("after/eval.jsonl")).unwrap();
    assert_eq!(told.matches(r#""set":"held_out""#).count(), 1, "{told}");
}

#[test]
fn experts_that_are_spread_are_evaluated_and_answer() {
    let fixture = Fixture::new(Pictures::None);
    fixture.replace_model(qwen3_moe());
    // The held-out questions have pictures, which this model does not see.
    let held_out = fixture.path().join("data/held_out.jsonl");
    let train = std::fs::read_to_string(fixture.path().join("data/train.jsonl")).unwrap();
    std::fs::write(held_out, train.lines().take(8).collect::<Vec<_>>().join("\n")).unwrap();
    let whole = [SMALL, "pools.foundation.replicas=2"];
    let one = evaluated(&fixture, &whole);
    let spread = [&whole[..], &["pools.foundation.expert_parallel=2"]].concat();
    let found = evaluated(&fixture, &spread);
    assert_close(&spread, &found, &one);
    assert_same_answers(&spread, &found, &one);
    assert_eq!(found[0].sets[0].found.outputs.len(), 8);
}

/// Virtual stages take more layers than the fixture's three.
const DEEP: &str = "model.overrides.text_config.num_hidden_layers=8";

const MORE_LAYOUTS: [(&str, &[&str]); 12] = [
    ("tp2-sequence", &["pools.foundation.tensor_parallel=2", "pools.foundation.sequence_parallel=true"]),
    ("tp2-pp3", &["pools.foundation.tensor_parallel=2", "pools.foundation.pipeline_parallel=3"]),
    ("pp2-chunks", &["pools.foundation.chunk_tokens=16", "pools.foundation.pipeline_parallel=2"]),
    ("cp2-pp3", &["pools.foundation.context_parallel=2", "pools.foundation.pipeline_parallel=3"]),
    (
        "dp2-tp2-zero3",
        &["pools.foundation.tensor_parallel=2", "pools.foundation.replicas=2", "pools.foundation.zero=3"],
    ),
    ("dp2, encoder-tp2", &["pools.encoder.tensor_parallel=2", "pools.foundation.replicas=2"]),
    ("colocated-tp2", &["pools.placement=colocated", "pools.foundation.tensor_parallel=2", "pools.encoder.replicas=2"]),
    ("stream", &["data.pack.mode=stream", "data.pack.look_ahead=16", "train.global_batch_size=2"]),
    (
        "dp2-zero2-recompute",
        &["model.foundation.recompute=all", "pools.foundation.replicas=2", "pools.foundation.zero=2"],
    ),
    ("pp2-virtual2", &[DEEP, "pools.foundation.pipeline_parallel=2", "pools.foundation.virtual_stages=2"]),
    ("pp2-virtual4", &[DEEP, "pools.foundation.pipeline_parallel=2", "pools.foundation.virtual_stages=4"]),
    (
        "tp2-pp2-virtual2",
        &[
            DEEP,
            "pools.foundation.tensor_parallel=2",
            "pools.foundation.pipeline_parallel=2",
            "pools.foundation.virtual_stages=2",
        ],
    ),
];

#[test]
#[ignore = "soak"]
fn soak_evaluations_in_more_layouts() {
    let one_rank = |own: &[&str]| evaluated(&Fixture::new(Pictures::Some), &[&[SMALL], own].concat());
    let one = LazyCell::new(|| one_rank(&[]));
    let deep = LazyCell::new(|| one_rank(&[DEEP]));
    let cells = MORE_LAYOUTS.map(|(name, own)| (name.to_owned(), own));
    soak::run("evaluations_in_more_layouts", &cells, |own| {
        let found = evaluated(&Fixture::new(Pictures::Some), &[&[SMALL], *own].concat());
        // Batches of a stream are others.
        if own[0].contains("stream") {
            return Ok(Cell::Passed("training is the same with and without".to_owned()));
        }
        let one: &[EvaluationSummary] = if own[0] == DEEP { &deep } else { &one };
        assert_close(own, &found, one);
        assert_same_answers(own, &found, one);
        let losses = found.iter().zip(one).map(|(found, one)| found.sets[0].loss() / one.sets[0].loss() - 1.0);
        let most = losses.fold(0.0, |most: f64, off| most.max(off.abs()));
        Ok(Cell::Passed(format!(
            "training is the same with and without; losses are at most {most:.1e} from one rank's"
        )))
    });
}
