//! Runs of adapters beside weights that are held as float8 or in the host's memory.

use crate::diffusion::{Captioned, QWEN_IMAGE, WAN};
use crate::fixture::{Fixture, Pictures, bits};
use crate::resume::{hashes, resume};
use loongforge::compose::Composition;
use loongforge::core::config;
use loongforge::torch::engine::check_engines;
use std::fs;
use std::path::Path;
use tch::{Device, Kind, Tensor};

const ADAPTERS: [&str; 4] = [
    "train.steps=6",
    "model.foundation.lora={r: 4}",
    "model.image_encoder.freeze=true",
    "model.image_projector.freeze=true",
];
const FLOAT8: [&str; 2] =
    ["model.foundation.frozen_precision=fp8_e4m3fn", "model.image_encoder.frozen_precision=fp8_e4m3fn"];

/// Returns the error of `run.yaml` of a folder with these overrides; empty where all is well.
fn refusal(root: &Path, own: &[&str]) -> String {
    let overrides: Vec<String> = own.iter().map(|own| own.to_string()).collect();
    let loaded = match config::load(&root.join("run.yaml"), &overrides, std::iter::empty()) {
        Ok(loaded) => loaded,
        Err(report) => return report.to_string(),
    };
    let checked = Composition::new(loaded.config.clone()).map_err(|error| error.to_string());
    let checked = checked
        .and_then(|found| check_engines(&loaded.config, &found.folder().config).map_err(|error| error.to_string()));
    checked.err().unwrap_or_default()
}

/// Returns the least budgets for weights: every layer that may lies on the host.
fn least_budgets(root: &Path, own: &[&str]) -> Vec<String> {
    let mut least = [("foundation", 1), ("encoder", 1)];
    loop {
        let keys = least.map(|(pool, bytes)| format!("memory.weight_budget.{pool}={bytes}B"));
        let refused = refusal(root, &[own, &keys.each_ref().map(String::as_str)].concat());
        let Some((before, bytes)) = refused.split_once("weights need at least ") else {
            assert_eq!(refused, "");
            return keys.to_vec();
        };
        let pool = least.iter_mut().find(|(pool, _)| before.contains(&format!("weight_budget.{pool}"))).unwrap();
        pool.1 = bytes.split(' ').next().unwrap().parse().unwrap();
    }
}

/// Returns these overrides with the least budgets.
fn with_budgets<'a>(own: &[&'a str], budgets: &'a [String]) -> Vec<&'a str> {
    own.iter().copied().chain(budgets.iter().map(String::as_str)).collect()
}

/// Returns a model with weights: what a short run has left.
fn with_weights() -> Fixture {
    let fixture = Fixture::new(Pictures::Some);
    let to = format!("checkpoint.dir={}", fixture.path().join("base").display());
    fixture.run(&["train.steps=4", "checkpoint.every_steps=4", &to], None);
    fixture
}

fn load(folder: &Path) -> String {
    format!("model.load={}", folder.display())
}

/// Copies a model's files with the weights of the maps of its blocks rounded to 4 bits of mantissa, and to multiples of the
/// smallest number of float8 beside the largest of their row: written apart from what a run does.
fn round(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for file in fs::read_dir(from).unwrap().map(|file| file.unwrap().path()) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let out = to.join(&name);
        if file.is_dir() {
            round(&file, &out);
        } else if name.starts_with("MANIFEST") || name.starts_with("optimizer") {
            continue;
        } else if name.ends_with(".safetensors") {
            let rounded = Tensor::read_safetensors(&file).unwrap().into_iter().map(|(name, tensor)| {
                let rounded = if is_map(&name) && tensor.dim() == 2 { float8(&tensor) } else { tensor };
                (name, rounded)
            });
            Tensor::write_safetensors(&rounded.collect::<Vec<_>>(), &out).unwrap();
        } else {
            fs::copy(&file, &out).unwrap();
        }
    }
}

fn is_map(name: &str) -> bool {
    let in_block = ["layers.", "blocks.", "block."].iter().any(|part| name.contains(part));
    in_block && name.ends_with(".weight") && !name.contains("relative_attention_bias")
}

fn float8(weight: &Tensor) -> Tensor {
    let rows = weight.flatten(0, -2);
    let values = Vec::<f32>::try_from(rows.flatten(0, -1)).unwrap();
    let width = rows.size()[1] as usize;
    let round = |row: &[f32]| -> Vec<f32> {
        let largest = row.iter().fold(0f64, |most, value| most.max(f64::from(*value).abs()));
        let mut scale = 2f64.powi(-60);
        while largest > 448.0 * scale {
            scale *= 2.0;
        }
        let one = |value: &f32| {
            let value = f64::from(*value) / scale;
            let step = 2f64.powi((value.abs().log2().floor() as i32).max(-6) - 3);
            ((value / step).round_ties_even() * step * scale) as f32
        };
        row.iter().map(one).collect()
    };
    let rounded: Vec<f32> = values.chunks(width).flat_map(round).collect();
    Tensor::from_slice(&rounded).view(weight.size().as_slice()).to_kind(Kind::Float).to_device(Device::Cpu)
}

#[test]
fn a_base_in_float8_is_a_base_that_was_rounded() {
    let fixture = with_weights();
    let (base, rounded) = (fixture.path().join("base/step-00000004"), fixture.path().join("rounded"));
    round(&base, &rounded);
    for precision in ["float32", "bf16"] {
        let precision = format!("train.precision={precision}");
        let run = |folder: &Path, own: &[&str]| {
            let load = load(folder);
            bits(&fixture.run(&[&ADAPTERS[..], &[&precision, &load, "model.weights=load"], own].concat(), None))
        };
        let expected = run(&rounded, &[]);
        assert_eq!(run(&base, &FLOAT8), expected, "{precision}");
        assert_eq!(run(&rounded, &FLOAT8), expected, "{precision}, rounded twice");
        assert_ne!(run(&base, &[]), expected, "{precision}: rounding tells");
    }
}

#[test]
fn questions_are_answered_beside_a_base_in_float8_as_beside_one_that_was_rounded() {
    let fixture = with_weights();
    let (base, rounded) = (fixture.path().join("base/step-00000004"), fixture.path().join("rounded"));
    round(&base, &rounded);
    let held_out = format!("+eval.path={}", fixture.path().join("data/held_out.jsonl").display());
    let eval = [held_out.as_str(), "eval.every_steps=3", "eval.max_new_tokens=4", "eval.save_best=false"];
    let answers = |folder: &Path, own: &[&str]| {
        let load = load(folder);
        let own = [&ADAPTERS[..], &eval, &["model.weights=load", &load], own].concat();
        let (_, evaluations) = fixture.run_evaluated(&own, None);
        let mut outputs = evaluations[0].sets[0].found.outputs.clone();
        outputs.sort();
        outputs
    };
    let expected = answers(&rounded, &[]);
    assert_eq!(expected.len(), 8);
    assert_eq!(answers(&base, &FLOAT8), expected);
    let loaded = load(&base);
    let own = [&ADAPTERS[..], &FLOAT8, &["model.weights=load", &loaded]].concat();
    let budgets = least_budgets(fixture.path(), &own);
    assert_eq!(answers(&base, &with_budgets(&FLOAT8, &budgets)), expected, "on the host");
}

#[test]
fn diffusion_transformers_have_it_too() {
    let own = [
        "train.ema=null",
        "model.weights=load",
        "model.text_encoder.freeze=true",
        "model.foundation.lora={r: 4, alpha: 8}",
    ];
    let float8 = ["model.foundation.frozen_precision=fp8_e4m3fn", "model.text_encoder.frozen_precision=fp8_e4m3fn"];
    for (transformer, name, clips) in [(QWEN_IMAGE, "qwen-image", false), (WAN, "wan", true)] {
        let captioned = Captioned::new(transformer, clips);
        captioned.run("base", &["train.steps=4", "train.ema=null"], None);
        let (base, rounded) = (captioned.folder("base/step-00000004"), captioned.folder("rounded"));
        round(&base, &rounded);
        let run = |to: &str, base: &Path, more: &[&str], from| {
            bits(&captioned.run(to, &[&own[..], &[&load(base)], more].concat(), from))
        };
        let expected = run("expected", &rounded, &[], None);
        assert_eq!(run("float8", &base, &float8, None), expected, "{name}");
        assert_ne!(run("plain", &base, &[], None), expected, "{name}: rounding tells");
        let root = base.parent().unwrap().parent().unwrap();
        let budgets = least_budgets(root, &[&own[..], &float8, &[&load(&base)]].concat());
        let both = with_budgets(&float8, &budgets);
        assert_eq!(run("away", &base, &both, None), expected, "{name}, on the host");
        assert_eq!(run("rest", &base, &both, Some("away")), expected[4..], "{name}, resumed");
        assert_eq!(captioned.weights("rest"), captioned.weights("expected"), "{name}");
    }
}

#[test]
fn weights_beyond_a_budget_change_no_bit() {
    let fixture = Fixture::new(Pictures::Some);
    let run = |own: &[&str]| bits(&fixture.run(own, None));
    for precision in [&[][..], &FLOAT8] {
        let expected = run(&[&ADAPTERS[..], precision].concat());
        for own in [
            &[][..],
            &["model.foundation.recompute=all"],
            &["memory.activation_budget.foundation=400KiB"],
            &["pools.placement=colocated", "run.deterministic=true"],
        ] {
            let own = [&ADAPTERS[..], precision, own].concat();
            let plain = run(&own);
            if !own.contains(&"run.deterministic=true") {
                assert_eq!(plain, expected, "{own:?}");
            }
            let budgets = least_budgets(fixture.path(), &own);
            assert_eq!(run(&with_budgets(&own, &budgets)), plain, "{own:?}, {budgets:?}");
        }
    }
}

#[test]
fn layouts_learn_the_same() {
    let fixture = Fixture::new(Pictures::Some);
    let common = [&ADAPTERS[..], &FLOAT8, &["train.micro_batch_size=2"]].concat();
    let one = fixture.run(&common, None);
    for own in [
        &["pools.foundation.tensor_parallel=2"][..],
        &["pools.foundation.replicas=2", "pools.foundation.zero=2"],
        &["pools.foundation.pipeline_parallel=2"],
        &["pools.foundation.context_parallel=2"],
    ] {
        let own = [&common[..], own].concat();
        let plain = fixture.run(&own, None);
        for (plain, one) in plain.iter().zip(&one) {
            assert!((plain.loss - one.loss).abs() < 1e-4 * one.loss, "{own:?}: {} and {}", plain.loss, one.loss);
        }
        let budgets = least_budgets(fixture.path(), &own);
        assert_eq!(bits(&fixture.run(&with_budgets(&own, &budgets), None)), bits(&plain), "{own:?}");
    }
}

#[test]
fn a_run_that_was_stopped_goes_on_with_the_same_bits() {
    let fixture = with_weights();
    let base = load(&fixture.path().join("base/step-00000004"));
    // Adapters alone, and all weights with a tower in float8.
    let adapters = [&ADAPTERS[..], &FLOAT8, &["model.weights=load", &base]].concat();
    let budgets = least_budgets(fixture.path(), &adapters);
    let adapters = with_budgets(&adapters, &budgets);
    let tower = ["train.steps=6", "model.image_encoder.freeze=true", FLOAT8[1], "train.precision=bf16"];
    for (name, own) in [("adapters", &adapters[..]), ("tower", &[&tower[..], &["model.weights=load", &base]].concat())]
    {
        let to = |run: &str| format!("checkpoint.dir={}", fixture.path().join(format!("{name}-{run}")).display());
        let whole = fixture.run(&[own, &["checkpoint.every_steps=3", &to("whole")]].concat(), None);
        let half = resume(fixture.path().join(format!("{name}-whole/step-00000003")));
        let rest = fixture.run(&[own, &["checkpoint.every_steps=3", &to("rest")]].concat(), Some(half));
        assert_eq!(bits(&rest), bits(&whole[3..]), "{name}");
        let last = |run: &str| hashes(&fixture.path().join(format!("{name}-{run}/step-00000006")));
        assert_eq!(last("rest"), last("whole"), "{name}");
    }
}

/// Returns both parts of a model in this precision.
fn held_in(precision: &str) -> [String; 2] {
    ["foundation", "image_encoder"].map(|part| format!("model.{part}.frozen_precision={precision}"))
}

#[test]
fn four_and_eight_bits_learn_the_same_in_layouts() {
    let fixture = with_weights();
    let base = load(&fixture.path().join("base/step-00000004"));
    let common = |precision: &str| -> Vec<String> {
        let own = ["train.steps=3", "train.micro_batch_size=2", "model.weights=load", &base];
        let own = ADAPTERS[1..].iter().copied().chain(own).map(str::to_owned);
        own.chain(held_in(precision)).collect()
    };
    let run = |common: &[String], own: &[&str]| {
        fixture.run(&common.iter().map(String::as_str).chain(own.iter().copied()).collect::<Vec<_>>(), None)
    };
    let mut first = Vec::new();
    for (precision, layouts) in [
        ("nf4", &[&["pools.foundation.replicas=2", "pools.foundation.zero=2"][..]][..]),
        ("nf4_double", &[&["pools.foundation.pipeline_parallel=2"][..]]),
        // Rows that ranks cut are rounded as whole ones.
        ("int8", &[&["pools.foundation.tensor_parallel=2"][..]]),
    ] {
        let common = common(precision);
        let one = run(&common, &[]);
        for own in layouts {
            for (found, one) in run(&common, own).iter().zip(&one) {
                let (found, one) = (found.loss, one.loss);
                assert!((found - one).abs() < 1e-4 * one, "{precision}, {own:?}: {found} and {one}");
            }
        }
        first.push(one[0].loss);
    }
    assert!(first[0] != first[1] && first[1] != first[2], "they are rounded, and otherwise: {first:?}");
}

#[test]
fn beside_four_and_eight_bits_a_run_goes_on_with_the_same_bits() {
    let fixture = with_weights();
    let base = load(&fixture.path().join("base/step-00000004"));
    for (precision, kind) in [("nf4", "bf16"), ("nf4_double", "float32"), ("int8", "bf16")] {
        let kind = format!("train.precision={kind}");
        let held = held_in(precision);
        let held: Vec<&str> = held.iter().map(String::as_str).collect();
        let own = [&ADAPTERS[1..], &held, &["train.steps=4", "model.weights=load", &base, &kind]].concat();
        let budgets = least_budgets(fixture.path(), &own);
        let to = |run: &str| format!("checkpoint.dir={}", fixture.path().join(format!("{precision}-{run}")).display());
        let whole = fixture.run(&[&own[..], &["checkpoint.every_steps=2", &to("whole")]].concat(), None);
        let half = resume(fixture.path().join(format!("{precision}-whole/step-00000002")));
        let away = with_budgets(&own, &budgets);
        let rest = fixture.run(&[&away[..], &["checkpoint.every_steps=2", &to("rest")]].concat(), Some(half));
        assert_eq!(bits(&rest), bits(&whole[2..]), "{precision}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let fixture = Fixture::new(Pictures::Some);
    let zero = ["pools.foundation.replicas=2", "pools.foundation.zero=3"];
    for (own, says) in [
        (vec![FLOAT8[0]], "model.foundation.frozen_precision: no weight of a linear layer of this part is frozen"),
        (
            [&ADAPTERS[..], &["model.foundation.frozen_precision=nf4", "pools.foundation.tensor_parallel=2"]].concat(),
            "tensor_parallel would split its rows within blocks of 64 numbers",
        ),
        (
            [&ADAPTERS[..], &["model.foundation.frozen_precision=nf4_double", "pools.foundation.tensor_parallel=2"]]
                .concat(),
            "largest magnitudes of a whole matrix together",
        ),
        (vec!["model.foundation.frozen_precision=int4"], "model.foundation.frozen_precision"),
        ([&ADAPTERS[..], &FLOAT8, &zero].concat(), "not supported with `model.foundation.frozen_precision`"),
        (
            [&ADAPTERS[..], &["memory.weight_budget.foundation=1GiB"], &zero].concat(),
            "not supported with `memory.weight_budget.foundation`",
        ),
        ([&ADAPTERS[..], &["memory.weight_budget.foundation=1KiB"]].concat(), "weights need at least"),
        (vec!["memory.weight_budget.foundation=1KiB"], "weights need at least"),
        (
            vec!["memory.weight_budget.encoder=1KiB", "memory.offload=false"],
            "both `memory.offload: false` and `memory.weight_budget.encoder` are set",
        ),
        (vec!["memory.weight_budget.encoder=0B"], "must be above 0"),
    ] {
        let found = refusal(fixture.path(), &own);
        assert!(found.contains(says), "{own:?}: {found}");
    }
}
