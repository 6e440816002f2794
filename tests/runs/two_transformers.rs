//! Runs of two diffusion transformers, one for levels of high noise and one for the others, each in a pool of its own.

use crate::diffusion::{Captioned, WAN, are_near};
use crate::fixture::loss_bits;
use crate::resume::{hashes, run_and_evaluate_in};
use loongforge::checkpoint::{Format, export_diffusion};
use loongforge::compose::Composition;
use loongforge::core::config;
use loongforge::core::message::PoolName;
use loongforge::core::schedule::{EvaluationSummary, ExpertStep, StepSummary};
use loongforge::torch::engine::check_engines;
use loongforge::torch::train::hf::TensorFile;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns two transformers, of high noise from level 0.6 on.
fn two_transformers() -> String {
    format!("{WAN}\n    transformer_2: {WAN}\n    boundary_ratio: 0.6")
}

/// Frozen towers: a gradient norm is that of a transformer alone.
const FROZEN: &str = "model.text_encoder.freeze=true";
const HIGH: &str = "foundation_high";
const LOW: &str = "foundation_low";

impl Captioned {
    /// Works like `run`, with what was evaluated.
    fn evaluated(&self, to: &str, own: &[&str]) -> (Vec<StepSummary>, Vec<EvaluationSummary>) {
        run_and_evaluate_in(&self.folder(""), to, own, None)
    }

    /// Returns the files of a checkpoint whose names begin so, with their hashes.
    fn files(&self, run: &str, step: u64, stem: &str) -> Vec<(String, String)> {
        let mut files = hashes(&self.folder(run).join(format!("step-{step:08}")));
        files.retain(|(name, _)| name.starts_with(stem));
        files.sort();
        assert!(!files.is_empty(), "{run} has no {stem}");
        files
    }
}

impl Captioned {
    /// Returns the pictures of both prompts before the first step, after four steps and after eight.
    fn made(&self, run: &str) -> Vec<Vec<u8>> {
        let steps = ["step-00000000", "step-00000004", "step-00000008"];
        let folders = steps.map(|step| self.folder(run).join("samples").join(step));
        let names = |folder: &PathBuf| fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let left = folders.iter().flat_map(names).find(|name| name.extension().unwrap() == "safetensors");
        assert_eq!(left, None, "what one pool leaves to the other is removed");
        let files = folders.iter().flat_map(|folder| ["0000.png", "0001.png"].map(|name| folder.join(name)));
        files.map(|file| fs::read(file).unwrap()).collect()
    }

    /// Returns the keys of a run that makes samples of two prompts.
    fn sampled(&self) -> String {
        let prompts = self.folder("prompts.jsonl");
        fs::write(&prompts, "{\"prompt\": \"w3 w5\"}\n{\"prompt\": \"w9\"}\n").unwrap();
        format!("+sample={{prompts: {}, every_steps: 4, size: 8x8, steps: 5, sampler: unipc}}", prompts.display())
    }
}

/// Rounding alone differs.
fn look_the_same(name: &str, found: &[Vec<u8>], expected: &[Vec<u8>]) {
    let pixels = |png: &Vec<u8>| image::load_from_memory(png).unwrap().into_rgb8().into_raw();
    for (found, expected) in found.iter().zip(expected) {
        let off = pixels(found).iter().zip(pixels(expected)).map(|(one, other)| one.abs_diff(other)).max();
        assert!(off <= Some(1), "{name}: {off:?} of 255");
    }
}

fn expert<'a>(step: &'a StepSummary, pool: &str) -> &'a ExpertStep {
    let pool: PoolName = pool.parse().unwrap();
    step.experts.iter().find(|expert| expert.pool == pool).unwrap()
}

#[test]
fn two_transformers_in_one_run_are_the_two_runs() {
    let captioned = Captioned::new(&two_transformers(), true);
    let both = captioned.run("both", &[FROZEN], None);
    for step in &both {
        let [high, low] = [expert(step, HIGH), expert(step, LOW)];
        assert_eq!(high.num_samples + low.num_samples, 8);
        let mean = (high.loss * high.num_targets as f64 + low.loss * low.num_targets as f64) / step.num_targets as f64;
        assert!((mean - step.loss).abs() < 1e-6 * step.loss, "{mean} and {}", step.loss);
    }
    let trains = |pool| both.iter().filter(|step| expert(step, pool).num_samples > 0).count();
    assert!(trains(HIGH) > 4 && trains(LOW) > 4, "{both:?}");
    assert_ne!(captioned.files("both", 4, "transformer_2/")[0].1, captioned.files("both", 8, "transformer_2/")[0].1);

    // Stopped and resumed, averages included; with other encoders.
    let rest = captioned.run("rest", &[FROZEN, "pools.encoder.replicas=2"], Some("both"));
    assert_eq!(loss_bits(&rest), loss_bits(&both[4..]));
    assert_eq!(captioned.files("rest", 8, ""), captioned.files("both", 8, ""));

    // Each in a layout of its own, which is nothing to the other.
    let split = [FROZEN, "pools.foundation_high={replicas: 2, zero: 2, threads: 1}"];
    are_near("replicas", &captioned.run("replicas", &split, None), &both);
    assert_eq!(captioned.files("replicas", 8, "transformer_2/"), captioned.files("both", 8, "transformer_2/"));
    let split = [FROZEN, "pools.foundation_low={tensor_parallel: 2, threads: 1}"];
    are_near("ranks", &captioned.run("ranks", &split, None), &both);
    assert_eq!(captioned.files("ranks", 8, "transformer/"), captioned.files("both", 8, "transformer/"));
    are_near(
        "trained text",
        &captioned.run("text", &["pools.foundation_low={pipeline_parallel: 2}"], None)[..1],
        &both[..1],
    );

    // Where all samples are of one, it is the run of that one, and the other stays as it is, its optimizer included.
    let ranges = [
        ("high", "train.sigma.min=0.6", "transformer/", [HIGH, LOW], "transformer_2/"),
        ("low", "train.sigma.max=0.59999996", "transformer_2/", [LOW, HIGH], "transformer/"),
    ];
    for (one, range, own, [pool, idle], other) in ranges {
        let (all, alone) = (format!("all-{one}"), format!("{one}-alone"));
        let experts = format!("model.experts={one}");
        let shared = format!("pools.{idle}={{replicas: 2, zero: 2, threads: 1}}");
        let found = captioned.run(&all, &[FROZEN, range, &shared], None);
        let wanted = captioned.run(&alone, &[FROZEN, range, &experts], None);
        assert!(found.iter().all(|step| expert(step, pool).num_samples == 8 && expert(step, idle).num_samples == 0));
        assert_eq!(loss_bits(&found), loss_bits(&wanted), "{one}");
        assert_eq!(captioned.files(&all, 8, own), captioned.files(&alone, 8, own), "{one}");
        let state = |run: &str, step, stem: &str| captioned.files(run, step, stem).remove(0).1;
        let optimizer = format!("optimizer-{pool}.");
        assert_eq!(state(&all, 8, &optimizer), state(&alone, 8, "optimizer-foundation."), "{one}");
        for part in [other.to_owned(), format!("optimizer-{idle}.")] {
            assert_eq!(state(&all, 4, &part), state(&all, 8, &part), "{part} has no sample");
        }
    }
}

#[test]
fn held_out_levels_go_to_their_transformer() {
    let captioned = Captioned::new(&two_transformers(), true);
    captioned.run("trained", &[FROZEN, "train.steps=4"], None);
    let load = format!("+model.load={}", captioned.folder("trained/step-00000004").display());
    let levels = |experts: &str| {
        let path = format!("+eval.path={}", captioned.folder("train.jsonl").display());
        let sigmas = "+eval.sigmas=[0.2, 0.59999996, 0.6, 0.9]";
        let own = [
            "train.steps=1",
            "train.lr=1e-30",
            "train.warmup_steps=0",
            "+eval.every_steps=1",
            "+eval.max_samples=5",
            "model.weights=load",
            &load,
            &path,
            sigmas,
        ];
        let experts = format!("model.experts={experts}");
        let (_, found) = captioned.evaluated(&experts, &[&own[..], &[&experts]].concat());
        let levels = found[0].sets[0].levels.iter();
        levels.map(|(_, found)| (found.loss_sum.to_bits(), found.num_targets)).collect::<Vec<_>>()
    };
    let [both, high, low] = ["both", "high", "low"].map(levels);
    assert_eq!((&both[..2], &both[2..]), (&low[..2], &high[2..]));
    assert!(both[..2].iter().zip(&high).all(|(low, high)| low != high), "the two have weights of their own");
}

#[test]
fn adapters_of_two_transformers_are_saved_resumed_and_exported() {
    let captioned = Captioned::new(&two_transformers(), false);
    let lora = [FROZEN, "+model.foundation.lora={r: 2}", "train.lr=0.05"];
    let whole = captioned.run("lora", &lora, None);
    let rest = captioned.run("lora-rest", &lora, Some("lora"));
    assert_eq!(loss_bits(&rest), loss_bits(&whole[4..]));
    assert_eq!(captioned.files("lora-rest", 8, ""), captioned.files("lora", 8, ""));
    let checkpoint = captioned.folder("lora").join("step-00000008");
    let export = |format, name: &str| {
        let out = captioned.folder(name);
        export_diffusion(&checkpoint, &out, format, None, false).unwrap();
        let mut files: Vec<_> = fs::read_dir(&out).unwrap().map(|file| file.unwrap().path()).collect();
        files.sort();
        files
    };
    let names = |file: &PathBuf| TensorFile::open(file).unwrap().tensors().keys().cloned().collect::<Vec<_>>();
    let diffusers = names(&export(Format::Diffusers, "diffusers")[0]);
    for network in ["transformer", "transformer_2"] {
        let name = format!("{network}.blocks.1.attn1.to_q.lora_B.weight");
        assert!(diffusers.contains(&name), "{diffusers:?}");
    }
    let comfy = export(Format::ComfyUi, "comfyui");
    let ends = |file: &PathBuf, end: &str| file.display().to_string().ends_with(end);
    assert!(
        comfy.len() == 2 && ends(&comfy[0], "_high_noise.safetensors") && ends(&comfy[1], "_low_noise.safetensors")
    );
    assert_eq!(names(&comfy[0]), names(&comfy[1]));

    // A run of one of them goes on from its file, and from no other.
    let verdict = |experts: &str, adapter: &Path| {
        let adapter = format!("+model.foundation.lora={{adapter: {}}}", adapter.display());
        let own = [FROZEN.to_owned(), format!("model.experts={experts}"), adapter];
        let loaded = config::load(&captioned.folder("run.yaml"), &own, std::iter::empty());
        let run = Composition::unsettled(loaded.unwrap_or_else(|report| panic!("{report}")).config).unwrap();
        check_engines(run.config(), &run.folder().config).map_err(|error| error.to_string())
    };
    assert_eq!(verdict("high", &comfy[0]), Ok(()));
    assert_eq!(verdict("low", &comfy[1]), Ok(()));
    assert!(verdict("low", &comfy[0]).is_err() && verdict("high", &comfy[1]).is_err());
    let error = verdict("high", comfy[0].parent().unwrap()).unwrap_err();
    assert!(error.contains("takes the file of that one alone"), "{error}");
}

#[test]
fn samples_of_two_transformers_change_at_the_boundary() {
    let captioned = Captioned::new(&two_transformers(), false);
    captioned.run("both", &[FROZEN, "train.steps=4"], None);
    let checkpoint = captioned.folder("both").join("step-00000004");
    // What is exported is the model; pixels as latents are no network of Diffusers, so the config is that of the run.
    let exported = captioned.folder("exported");
    export_diffusion(&checkpoint, &exported, Format::Diffusers, None, false).unwrap();
    let read = |file: PathBuf| serde_json::from_slice::<serde_json::Value>(&fs::read(file).unwrap()).unwrap();
    let index = read(exported.join("model_index.json"));
    assert_eq!((&index["transformer_2"][1], &index["boundary_ratio"]), (&json!("WanTransformer3DModel"), &json!(0.6)));
    let mut config = read(checkpoint.join("config.json"));
    fs::write(exported.join("config.json"), config.to_string()).unwrap();
    fs::copy(checkpoint.join("tokenizer.json"), exported.join("tokenizer.json")).unwrap();
    let png = |folder: &Path, name: &str| {
        let out = captioned.folder(name);
        let args = ["sample", "--prompt", "w3 w5", "--size", "8x8", "--steps", "5", "--device", "cpu", "--out"];
        let done = Command::new(env!("CARGO_BIN_EXE_loongforge")).args(args).arg(&out).arg(folder).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        fs::read(out.with_extension("png")).unwrap()
    };
    let both = png(&checkpoint, "of-checkpoint");
    assert_eq!(png(&exported, "of-export"), both);
    let mut with = |name: &str, change: &dyn Fn(&mut serde_json::Value)| {
        change(&mut config);
        fs::write(exported.join("config.json"), config.to_string()).unwrap();
        png(&exported, name)
    };
    let low = with("low", &|config| config["boundary_ratio"] = json!(1.5));
    let high = with("high", &|config| config["boundary_ratio"] = json!(0.0));
    let one = with("one", &|config| drop(config.as_object_mut().unwrap().remove("transformer_2")));
    assert_eq!(high, one, "the transformer of high noise alone");
    assert!(both != high && both != low && high != low);
}

#[test]
fn samples_of_two_transformers_are_made_while_they_are_trained() {
    let captioned = Captioned::new(&two_transformers(), false);
    let sample = captioned.sampled();
    let dir = |name: &str| format!("run.dir={}", captioned.folder(name).display());
    let made = |name: &str| captioned.made(name);
    captioned.run("checkpoints", &[FROZEN, &sample, &dir("threads")], None);
    let threads = made("threads");
    assert!(threads[4] != threads[0] && threads[4] != threads[5], "trained, and of their prompts");

    let checkpoints = format!("checkpoint.dir={}", captioned.folder("of-processes").display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_loongforge"));
    command.arg("run").arg(captioned.folder("run.yaml")).args([FROZEN, &sample, &dir("processes"), &checkpoints]);
    let done = command.arg("--processes").output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(made("processes"), threads);
    assert_eq!(captioned.files("of-processes", 8, ""), captioned.files("checkpoints", 8, ""));
    let metrics = fs::read_to_string(captioned.folder("processes/metrics.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
    let samples = [HIGH, LOW].map(|pool| last["experts"][pool]["samples"].as_u64().unwrap());
    assert_eq!(samples.iter().sum::<u64>(), 8, "{last}");

    // Ranks that share a transformer take the samples over together; before the first step they are those of one rank.
    let ranks = [
        "~pools.foundation",
        "pools.foundation_high={tensor_parallel: 2, threads: 1}",
        "pools.foundation_low={pipeline_parallel: 2, threads: 1}",
    ];
    // A replica that has no prompt takes part in what the other computes.
    let replicas = [
        "~pools.foundation",
        "pools.foundation_high={replicas: 2, zero: 3, threads: 1}",
        "pools.foundation_low={replicas: 2, zero: 3, threads: 1}",
    ];
    for (name, shared) in [("ranks", ranks), ("replicas", replicas)] {
        captioned.run(&format!("of-{name}"), &[&[FROZEN, &sample, &dir(name)][..], &shared].concat(), None);
        look_the_same(name, &made(name)[..2], &threads);
    }
}

/// The transformer that is not trained is that of `model.load`; where all samples are of one, the run of both does not change the other.
#[test]
fn a_run_of_one_of_two_transformers_makes_samples_with_the_other() {
    let captioned = Captioned::new(&two_transformers(), false);
    captioned.run("trained", &[FROZEN, "train.steps=4"], None);
    let sample = captioned.sampled();
    let folder = captioned.folder("trained/step-00000004");
    let load = format!("+model.load={}", folder.display());
    let run = |name: &str, own: &[&str]| {
        let dir = format!("run.dir={}", captioned.folder(&format!("of-{name}")).display());
        captioned.run(name, &[&[FROZEN, "model.weights=load", &load, &sample, &dir][..], own].concat(), None);
        captioned.made(&format!("of-{name}"))
    };
    for (one, range) in [("high", "train.sigma.min=0.6"), ("low", "train.sigma.max=0.59999996")] {
        let both = run(&format!("both-{one}"), &[range]);
        let experts = format!("model.experts={one}");
        let alone = [range, experts.as_str()];
        let found = run(&format!("{one}-alone"), &alone);
        assert_eq!(found, both, "{one}");
        assert!(found[4] != found[0] && found[4] != found[5], "trained, and of their prompts");
        for (layout, own) in [
            ("ranks", &["pools.foundation.tensor_parallel=2"][..]),
            ("stages", &["pools.foundation.pipeline_parallel=2"]),
            ("replicas", &["pools.foundation.replicas=2", "pools.foundation.zero=3"]),
        ] {
            let name = format!("{one}-{layout}");
            look_the_same(&name, &run(&name, &[&alone[..], own].concat())[..2], &both);
        }
    }

    // Without the other transformer the run is refused before it begins.
    let check = |experts: &str| {
        let mut check = Command::new(env!("CARGO_BIN_EXE_loongforge"));
        check.arg("check").arg(captioned.folder("run.yaml"));
        let own = [FROZEN, "model.weights=load", &load, &sample, experts];
        let output = check.args(own).env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    };
    for experts in ["model.experts=high", "model.experts=low"] {
        let (passes, said) = check(experts);
        assert!(passes, "{said}");
    }
    fs::remove_dir_all(folder.join("transformer_2")).unwrap();
    let (passes, said) = check("model.experts=high");
    assert!(!passes, "{said}");
    assert!(said.contains("`sample` reads the transformer that is not trained from model.load"), "{said}");
}

#[test]
fn a_pattern_may_name_one_of_two_transformers() {
    let captioned = Captioned::new(&two_transformers(), false);
    let verdict = |own: String| {
        let loaded = config::load(&captioned.folder("run.yaml"), &[FROZEN.to_owned(), own], std::iter::empty());
        let run = Composition::unsettled(loaded.unwrap_or_else(|report| panic!("{report}")).config).unwrap();
        check_engines(run.config(), &run.folder().config).map_err(|error| error.to_string())
    };
    let verdict_of_rates = |network: &str| verdict(format!("+model.foundation.lr_ratios={{\"{network}.*\": 0.5}}"));
    assert_eq!(verdict_of_rates("transformer_2"), Ok(()));
    let unknown = verdict_of_rates("transformer_3").unwrap_err();
    assert!(unknown.contains("no trained parameter of this part matches `transformer_3.*`"), "{unknown}");

    let of_adapters = |targets: &str| verdict(format!("+model.foundation.lora={{r: 2, target_modules: [{targets}]}}"));
    assert_eq!(of_adapters("to_q, transformer_2.blocks.1.attn1.to_q"), Ok(()));
    let unknown = of_adapters("to_q, transformer_3.blocks.1.attn1.to_q").unwrap_err();
    assert!(unknown.contains("no linear layer matches `transformer_3.blocks.1.attn1.to_q`"), "{unknown}");
    let one = of_adapters("transformer_2.blocks.1.attn1.to_q").unwrap_err();
    assert!(one.contains("nothing of the transformer of pools.foundation_high"), "{one}");
}

/// The levels are refused also where nothing else is asked about the run: `plan --simulate` may be of another machine.
#[test]
fn noise_levels_of_the_other_transformer_alone_are_refused_before_a_step_is_planned() {
    let captioned = Captioned::new(&two_transformers(), false);
    let file = captioned.folder("run.yaml");
    let own = ["model.experts=high", "train.sigma.max=0.5"].map(str::to_owned);
    let loaded = config::load(&file, &own, std::iter::empty()).unwrap_or_else(|report| panic!("{report}"));
    let error = Composition::new(loaded.config).err().unwrap().to_string();
    assert!(error.contains("`train.sigma.max` is 0.5: raise it"), "{error}");
    let mut simulate = Command::new(env!("CARGO_BIN_EXE_loongforge"));
    simulate.args(["plan", "--simulate", "--device", "H200"]).arg(file).args(own).env("CUDA_VISIBLE_DEVICES", "");
    let output = simulate.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("raise it"), "{said}");
}
