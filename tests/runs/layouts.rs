//! Whole runs in many layouts equal the run of one foundation actor, with pictures and encoders, to the rounding of
//! sums in another order; and a checkpoint goes on in any other layout.

use crate::fixture::{Fixture, Pictures};
use crate::resume::resume;
use loongforge::core::schedule::StepSummary;
use loongforge::torch::train::hf::{Checkpoint, TensorFile};
use tch::Kind;

/// The relative tolerance of losses and norms over six steps; rounding grows from step to step as training does.
const TOLERANCE: f64 = 1e-4;

fn assert_close(layout: &[&str], found: &[StepSummary], expected: &[StepSummary]) {
    assert_eq!(found.len(), expected.len(), "{layout:?}");
    for (found, expected) in found.iter().zip(expected) {
        let far = |left: f64, right: f64| (left - right).abs() > TOLERANCE * right.abs();
        let values = [(found.loss, expected.loss), (found.grad_norm, expected.grad_norm)];
        assert!(!values.into_iter().any(|(left, right)| far(left, right)), "{layout:?}: {values:?} at {}", found.step);
    }
}

/// Compares each of these layouts with one actor.
pub fn compare(fixture: &Fixture, common: &[&str], layouts: &[&[&str]]) {
    let one = fixture.run(&[&["train.steps=6"], common].concat(), None);
    assert!(one[5].loss < one[0].loss, "{one:?}");
    for layout in layouts {
        let key = |key: &&str| match key.contains('.') {
            true => key.to_string(),
            false => format!("pools.foundation.{key}"),
        };
        let keys: Vec<String> = layout.iter().map(key).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        assert_close(layout, &fixture.run(&[&["train.steps=6"], common, &keys].concat(), None), &one);
    }
}

#[test]
fn layers_replicas_and_rows_are_split_without_a_difference() {
    let layouts: &[&[&str]] = &[
        &["tensor_parallel=2"],
        &["tensor_parallel=2", "sequence_parallel=true"],
        &["pipeline_parallel=2"],
        &["pipeline_parallel=3"],
        &["context_parallel=2"],
        &["context_parallel=2", "context_attention=ulysses"],
        &["replicas=2", "zero=1"],
        &["replicas=2", "zero=2"],
        &["replicas=2", "zero=3"],
    ];
    compare(&Fixture::new(Pictures::Some), &["train.micro_batch_size=2"], layouts);
}

#[test]
fn layouts_combine() {
    let layouts: &[&[&str]] = &[
        &["replicas=2", "pipeline_parallel=2", "tensor_parallel=2", "scheduler.balance=fitted"],
        &["context_parallel=2", "tensor_parallel=2", "sequence_parallel=true"],
        &["replicas=2", "pipeline_parallel=2", "zero=1"],
    ];
    compare(&Fixture::new(Pictures::Some), &["train.micro_batch_size=2", "pools.encoder.replicas=2"], layouts);
}

#[test]
fn layers_are_split_and_shared_out() {
    let layouts: &[&[&str]] = &[
        &["replicas=2", "tensor_parallel=2", "zero=3"],
        &["replicas=2", "tensor_parallel=2", "pipeline_parallel=2", "zero=2"],
    ];
    compare(&Fixture::new(Pictures::Some), &["train.micro_batch_size=2"], layouts);
}

#[test]
fn encoders_are_split_without_a_difference() {
    let layouts: &[&[&str]] = &[
        &["pools.encoder.tensor_parallel=2"],
        &[
            "pools.encoder.tensor_parallel=2",
            "pools.encoder.replicas=2",
            "pools.encoder.zero=1",
            "scheduler.balance=fitted",
        ],
        &["pools.encoder.tensor_parallel=2", "pools.encoder.replicas=2", "run.deterministic=true"],
        &["pools.encoder.tensor_parallel=2", "replicas=2", "tensor_parallel=2", "pools.data.replicas=2"],
    ];
    compare(&Fixture::new(Pictures::Some), &["train.micro_batch_size=2"], layouts);
    let frozen = [
        "train.micro_batch_size=2",
        "model.image_encoder.freeze=true",
        "model.image_projector.freeze=true",
        "scheduler.prefetch_steps=3",
    ];
    compare(&Fixture::new(Pictures::Some), &frozen, &[layouts[0], layouts[3]]);
    let cached = [&frozen[..], &["pools.encoder.cache=1MiB"]].concat();
    compare(&Fixture::new(Pictures::Some), &cached, &layouts[..1]);
}

/// Ranks that encode a share each and then wait for each other have credit for one pack's features, and no more.
#[test]
fn colocated_ranks_of_a_replica_need_little_credit() {
    let fixture = Fixture::new(Pictures::All);
    let wide = ["train.micro_batch_size=1", "pools.placement=colocated", "pools.encoder.replicas=2", "train.steps=4"];
    let narrow = ["edges.features.credit=7KiB", "edges.pixels.credit=256KiB", "edges.tokens.credit=8KiB"];
    let one = fixture.run(&["train.micro_batch_size=1", "train.steps=4"], None);
    for layout in ["tensor_parallel=2", "pipeline_parallel=2"] {
        let layout = format!("pools.foundation.{layout}");
        let found = fixture.run(&[&wide[..], &narrow, &[&layout]].concat(), None);
        assert_close(&[&layout], &found, &one);
    }
}

/// A first stage begins its second pack before its first is back: it needs no credit for both.
#[test]
fn stages_of_their_own_pool_need_little_credit() {
    let fixture = Fixture::new(Pictures::All);
    let common = ["train.micro_batch_size=1", "train.steps=3"];
    let narrow = ["edges.features.credit=7KiB", "edges.pixels.credit=256KiB", "edges.tokens.credit=8KiB"];
    let layout = "pools.foundation.pipeline_parallel=2";
    let found = fixture.run(&[&common[..], &narrow, &[layout]].concat(), None);
    assert_close(&[layout], &found, &fixture.run(&common, None));
}

/// A stage without anything to train, beside one that counts the norm with others.
#[test]
fn a_frozen_stage_takes_part_in_the_norm() {
    let frozen = "model.foundation.freeze_patterns=[\"*layers.1.*\"]";
    let layouts: &[&[&str]] = &[&["pipeline_parallel=3", "tensor_parallel=2"], &["pipeline_parallel=3"]];
    compare(&Fixture::new(Pictures::Some), &["train.micro_batch_size=2", frozen], layouts);
}

#[test]
fn experts_are_spread() {
    let fixture = Fixture::new(Pictures::None);
    fixture.replace_model(crate::experts::qwen3_moe());
    let layouts: &[&[&str]] = &[
        &["replicas=2", "expert_parallel=2"],
        &["tensor_parallel=2"],
        &["replicas=2", "expert_parallel=2", "tensor_parallel=2"],
        &["replicas=4", "expert_parallel=2", "zero=3"],
        &["pipeline_parallel=2"],
    ];
    compare(&fixture, &["train.micro_batch_size=2"], layouts);
}

/// Saves in each of these layouts, as `savedN`, and goes on in the next one; `whole` is of one actor.
fn go_on(fixture: &Fixture, common: &[&str], layouts: &[&[&str]]) {
    let common = [&["train.micro_batch_size=2", "train.steps=6", "checkpoint.every_steps=3"], common].concat();
    let dir = |name: &str| format!("checkpoint.dir={}", fixture.path().join(name).display());
    let whole = fixture.run(&[&common[..], &[&dir("whole")]].concat(), None);
    for (number, &layout) in layouts.iter().enumerate() {
        let (saved, other) = (dir(&format!("saved{number}")), layouts[(number + 1) % layouts.len()]);
        fixture.run(&[&common[..], layout, &[&saved]].concat(), None);
        let checkpoint = fixture.path().join(format!("saved{number}/step-00000003"));
        let resume = resume(checkpoint);
        let rest = fixture.run(&[&common[..], other, &[&dir(&format!("rest{number}"))]].concat(), Some(resume));
        assert_close(other, &rest, &whole[3..]);
    }
}

#[test]
fn a_checkpoint_goes_on_in_another_layout() {
    let layouts: [&[&str]; 6] = [
        &["pools.encoder.tensor_parallel=2"],
        &["pools.foundation.replicas=2", "pools.foundation.tensor_parallel=2", "pools.foundation.zero=3"],
        &["pools.foundation.tensor_parallel=2"],
        &["pools.foundation.pipeline_parallel=2"],
        &["pools.foundation.replicas=2", "pools.foundation.zero=3"],
        &["pools.foundation.context_parallel=2"],
    ];
    go_on(&Fixture::new(Pictures::Some), &[], &layouts);
}

/// Norms of rows that ranks have parts of, or slices: the losses of one process, whatever the layout is.
#[test]
fn norms_of_rows_are_trained_in_any_layout() {
    let fixture = Fixture::new(Pictures::Some);
    let common = [
        "model.foundation.lora={r: 4, alpha: 8, use_dora: true}",
        "model.image_encoder.lora={r: 2, alpha: 3, use_dora: true}",
        "train.lr=1e-2",
    ];
    let layouts: [&[&str]; 3] = [
        &["pools.foundation.tensor_parallel=2", "pools.encoder.tensor_parallel=2"],
        &["pools.foundation.replicas=2", "pools.foundation.zero=3"],
        &["pools.foundation.replicas=2", "pools.foundation.zero=3", "pools.foundation.tensor_parallel=2"],
    ];
    go_on(&fixture, &common, &layouts);
    let path = fixture.path().join("whole/step-00000003/adapter_model.safetensors");
    let file = TensorFile::open(&path).unwrap();
    let is_magnitude = |name: &&String| name.ends_with("o_proj.lora_magnitude_vector");
    assert_eq!(file.tensors().keys().filter(is_magnitude).count(), 3);
}

/// The norms of rows that ranks have parts of are those of the whole rows.
#[test]
fn adapters_with_norms_are_merged_alike_in_any_layout() {
    let fixture = Fixture::new(Pictures::Some);
    let common = [
        "model.foundation.lora={r: 4, alpha: 8, use_dora: true}",
        "checkpoint.merge_lora=true",
        "train.lr=1e-2",
        "train.steps=3",
        "train.micro_batch_size=2",
    ];
    let merged = |name: &str, layout: &[&str]| {
        let dir = format!("checkpoint.dir={}", fixture.path().join(name).display());
        fixture.run(&[&common[..], layout, &[&dir]].concat(), None);
        let checkpoint = Checkpoint::open(&fixture.path().join(name).join("step-00000003")).unwrap();
        let of_rows = ["o_proj.weight", "down_proj.weight"];
        let names = checkpoint.tensors().map(|(name, _)| name.to_owned());
        let names: Vec<String> = names.filter(|name| of_rows.iter().any(|end| name.ends_with(end))).collect();
        assert!(names.len() >= 4, "{names:?}");
        let read = |name: &String| checkpoint.read(checkpoint.get(name).unwrap(), Kind::Float).unwrap();
        names.iter().map(read).collect::<Vec<_>>()
    };
    let whole = merged("whole", &[]);
    for (name, zero) in [("split", "pools.foundation.zero=0"), ("split-and-shared", "pools.foundation.zero=3")] {
        let layout = ["pools.foundation.tensor_parallel=2", "pools.foundation.replicas=2", zero];
        for (found, expected) in merged(name, &layout).iter().zip(&whole) {
            // Without the other ranks' parts the norms of rows are smaller by a quarter or more.
            let [far, all] = [found - expected, expected.shallow_clone()].map(|it| it.norm().double_value(&[]));
            assert!(far < 0.02 * all, "{zero}: {far} of {all}");
        }
    }
}

/// Ranks, stages and the encoder write one folder of adapters, with the trained projector, whatever the layout is.
#[test]
fn adapters_go_on_in_another_layout() {
    let fixture = Fixture::new(Pictures::Some);
    let common = ["model.foundation.lora={r: 4, alpha: 8}", "model.image_encoder.lora={r: 2, alpha: 3}"];
    let layouts: [&[&str]; 3] = [
        &["pools.foundation.pipeline_parallel=2"],
        &["pools.foundation.tensor_parallel=2", "pools.encoder.tensor_parallel=2"],
        &["pools.foundation.replicas=2", "pools.foundation.zero=3"],
    ];
    go_on(&fixture, &common, &layouts);
    let path = |run: &str, name: &str| fixture.path().join(format!("{run}/step-00000003/{name}"));
    let config = |run: &str| std::fs::read_to_string(path(run, "adapter_config.json")).unwrap();
    let shapes = |run: &str| -> Vec<(String, Vec<i64>)> {
        let file = TensorFile::open(&path(run, "adapter_model.safetensors")).unwrap();
        file.tensors().iter().map(|(name, info)| (name.clone(), info.shape.clone())).collect()
    };
    assert!(config("whole").contains("modules_to_save") && config("whole").contains("^model\\\\.visual"));
    for run in ["saved0", "saved1", "saved2"] {
        assert_eq!((config(run), shapes(run)), (config("whole"), shapes("whole")), "{run}");
    }
}
