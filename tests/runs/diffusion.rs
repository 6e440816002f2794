//! Runs of diffusion transformers: pictures and clips of any size with captions, pixels as latents, a text tower.

use crate::cache::encode;
use crate::resume::{hashes, run_and_evaluate_in, run_in};
use crate::text::words;
use image::{Rgb, RgbImage};
use loongforge::checkpoint::{Format, export_diffusion};
use loongforge::core::config;
use loongforge::core::data::tools::Share;
use loongforge::core::message::PoolName;
use loongforge::core::schedule::{EvaluationSummary, ExpertStep, StepSummary};
use loongforge::torch::train::hf::TensorFile;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Columns and rows of the pictures; tokens have two by two pixels.
const SIZES: [(u32, u32); 4] = [(8, 6), (6, 12), (12, 4), (4, 4)];

/// Pictures of several sizes, clips of them, and a tokenizer of words.
pub struct Captioned {
    dir: TempDir,
}

impl Captioned {
    pub fn new(transformer: &str, clips: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("words")).unwrap();
        fs::write(at("words/tokenizer.json"), words().to_string()).unwrap();
        let frame = |name: &str, number: u32, shift: u32| {
            let (columns, rows) = SIZES[number as usize % SIZES.len()];
            let pixel = |x, y| Rgb([x * 20, y * 20 + shift * 30, number * 9].map(|value: u32| (value % 256) as u8));
            RgbImage::from_fn(columns, rows, pixel).save(at(name)).unwrap();
            name.to_owned()
        };
        let line = |number: u32| {
            let prompt = (0..number % 4 + 1).map(|word| format!("w{} ", number * 7 + word)).collect::<String>();
            match clips && number.is_multiple_of(3) {
                true => {
                    let frames: Vec<String> =
                        (0..3).map(|at| frame(&format!("{number}-{at}.png"), number, at)).collect();
                    json!({"video": frames, "prompt": prompt}).to_string()
                }
                false => json!({"image": frame(&format!("{number}.png"), number, 0), "prompt": prompt}).to_string(),
            }
        };
        fs::write(at("train.jsonl"), (0..40).map(line).collect::<Vec<_>>().join("\n")).unwrap();
        let run = RUN.replace("ROOT", &dir.path().display().to_string()).replace("TRANSFORMER", transformer);
        fs::write(at("run.yaml"), run).unwrap();
        Self { dir }
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs with checkpoints in the folder `to`, from the fourth step of `from`.
    pub fn run(&self, to: &str, own: &[&str], from: Option<&str>) -> Vec<StepSummary> {
        run_in(self.dir.path(), to, own, from)
    }

    /// Works like `run`, with what was evaluated.
    fn evaluated(&self, to: &str, own: &[&str]) -> (Vec<StepSummary>, Vec<EvaluationSummary>) {
        run_and_evaluate_in(self.dir.path(), to, own, None)
    }

    /// Every file of the last checkpoint with its hash; a file of the optimizer's state has the name of its pool.
    pub fn weights(&self, run: &str) -> Vec<(String, String)> {
        let file = |(name, hash): (String, String)| match name.starts_with("optimizer-") {
            true => ("optimizer".to_owned(), hash),
            false => (name, hash),
        };
        let mut files: Vec<_> = hashes(&self.folder(run).join("step-00000008")).into_iter().map(file).collect();
        files.sort();
        files
    }
}

pub const QWEN_IMAGE: &str = "{ _class_name: QwenImageTransformer2DModel, num_attention_heads: 2, attention_head_dim: 12, \
    axes_dims_rope: [4, 4, 4], in_channels: 12, out_channels: 3, joint_attention_dim: 32, num_layers: 2 }";
pub const WAN: &str = "{ _class_name: WanTransformer3DModel, num_attention_heads: 2, attention_head_dim: 12, in_channels: 3, \
    out_channels: 3, text_dim: 32, ffn_dim: 48, num_layers: 2 }";

const RUN: &str = "
run: { name: diffusion, dir: ROOT/run, seed: 5, deterministic: true }
model:
  tokenizer: ROOT/words
  weights: random
  text: { tokenizer: ROOT/words, max_tokens: 9 }
  text_encoder: { freeze: false }
  config:
    model_type: loongforge_diffusion
    transformer: TRANSFORMER
    vae: { _class_name: PixelLatents, channels: 3 }
    text_encoder: { model_type: umt5, vocab_size: 408, d_model: 32, d_kv: 8, d_ff: 48, num_layers: 1, num_heads: 4 }
pools: { encoder: { threads: 1 }, foundation: { threads: 1 } }
data: { train: [{ path: ROOT/train.jsonl }], caption_dropout: 0.2, pack: { max_tokens: 64 } }
train: { steps: 8, global_batch_size: 8, lr: 4e-3, warmup_steps: 2, ema: 0.9, sigma: { density: logit_normal, shift: 2 } }
checkpoint: { every_steps: 4 }
log: { tensorboard: false }
";

fn losses(steps: &[StepSummary]) -> Vec<u64> {
    steps.iter().map(|step| step.loss.to_bits()).collect()
}

/// Sums of another order: rounding alone differs, which eight steps of AdamW spread.
fn are_near(name: &str, found: &[StepSummary], expected: &[StepSummary]) {
    for (found, expected) in found.iter().zip(expected) {
        let off = (found.loss - expected.loss).abs() / expected.loss;
        assert!(off < 2e-4, "{name}, step {}: {} and {}", found.step, found.loss, expected.loss);
    }
    assert_eq!(found.len(), expected.len(), "{name}");
}

#[test]
fn diffusion_transformers_learn_the_same_in_any_layout_and_resumed() {
    for (transformer, name, clips) in [(QWEN_IMAGE, "qwen-image", false), (WAN, "wan", true)] {
        let captioned = Captioned::new(transformer, clips);
        let one = captioned.run("one", &["pools.placement=colocated"], None);
        assert!(one.iter().skip(4).map(|step| step.loss).sum::<f64>() < 4.0 * one[0].loss, "{name}: {one:?}");
        let files = captioned.weights("one");
        let has = |part: &str| files.iter().any(|(file, _)| file.contains(part));
        assert!(has("transformer/") && has("text_encoder/") && has("optimizer"), "{files:?}");
        for (to, own) in [
            ("two", &["pools.encoder.replicas=2"][..]),
            ("four", &["pools.encoder.replicas=4"]),
            ("apart", &["pools.text={threads: 1}", "pools.vae={replicas: 2, threads: 1}", "pools.data.replicas=2"]),
        ] {
            assert_eq!(losses(&captioned.run(to, own, None)), losses(&one), "{name}, {to}");
            assert_eq!(captioned.weights(to), files, "{name}, {to}");
        }
        let rest = captioned.run("rest", &["pools.encoder.replicas=3"], Some("one"));
        assert_eq!(losses(&rest), losses(&one[4..]), "{name}, resumed");
        assert_eq!(captioned.weights("rest"), files, "{name}, resumed");
        for own in [
            &["train.micro_batch_size=1"][..],
            &["pools.foundation.replicas=2", "pools.foundation.zero=2"],
            &["pools.foundation.tensor_parallel=2"],
            &["pools.foundation.pipeline_parallel=2"],
            &["pools.foundation.context_parallel=2", "pools.foundation.context_attention=ulysses"],
            &["model.foundation.recompute=all"],
        ] {
            are_near(&format!("{name}, {own:?}"), &captioned.run("layout", own, None), &one);
        }
    }
}

#[test]
fn frozen_towers_are_asked_once() {
    let captioned = Captioned::new(WAN, true);
    let frozen = ["model.text_encoder.freeze=true", "data.caption_dropout=0", "train.steps=10"];
    let run = |to: &str, own: &[&str]| captioned.run(to, &[&frozen[..], own].concat(), None);
    let cached = |steps: &[StepSummary]| {
        let timings = steps.iter().flat_map(|step| &step.timings);
        timings.map(|(_, timings)| timings.cached_items).sum::<u32>()
    };
    let items = |steps: &[StepSummary]| steps.iter().map(|step| step.num_items as u32).sum::<u32>();
    let kept = run("kept", &["pools.encoder.cache=1MiB"]);
    assert_eq!(cached(&kept), items(&kept[5..]), "the second epoch");
    let dir = format!("pools.encoder.cache_dir={}", captioned.folder("features").display());
    assert_eq!(losses(&run("first", &[&dir])), losses(&kept));
    let second = run("second", &[&dir, "pools.encoder.replicas=2"]);
    assert_eq!((losses(&second), cached(&second)), (losses(&kept), items(&kept)));
    are_near("without a cache", &run("none", &[]), &kept);
}

/// Keys of a run whose transformer reads more than latents and text.
const CLIP: &[&str] = &[
    "model.config.transformer.in_channels=7",
    "model.config.transformer.image_dim=8",
    "model.config.transformer.added_kv_proj_dim=24",
    "model.config.image_encoder={model_type: clip_vision_model, hidden_size: 8, num_attention_heads: 2, intermediate_size: 12, \
     num_hidden_layers: 2, image_size: 8, patch_size: 4, hidden_act: gelu}",
];
const FIRST_FRAMES: &[&str] = &["model.config.expand_timesteps=true", "data.video.first_frame=0.5"];
/// The tokenizer's last word stands for pictures.
const EDIT: &[&str] = &[
    "model.config.pipeline=QwenImageEditPlusPipeline",
    "model.config.text_encoder={model_type: qwen2_5_vl, image_token_id: 400, text_config: {model_type: qwen2_5_vl_text, \
     vocab_size: 408, hidden_size: 32, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 4, \
     num_key_value_heads: 1, rope_scaling: {mrope_section: [2, 1, 1]}}, vision_config: {model_type: qwen2_5_vl_vision, \
     depth: 1, hidden_size: 16, intermediate_size: 24, num_heads: 2, patch_size: 32, spatial_merge_size: 2, \
     temporal_patch_size: 1, out_hidden_size: 32, window_size: 128, fullatt_block_indexes: [0]}}",
    "model.text={tokenizer: TOKENIZER, template: \"{}\", drop_tokens: 0, max_tokens: 64}",
    "data.image.area=32x32",
    "data.pack.max_tokens=600",
];

#[test]
fn given_frames_and_pictures_to_edit_reach_the_transformer() {
    let processor =
        json!({"patch_size": 32, "merge_size": 2, "temporal_patch_size": 1, "min_pixels": 4096, "max_pixels": 65536});
    for (transformer, name, own, tower) in [
        (WAN, "clip", CLIP, "image_encoder/"),
        (WAN, "first frames", FIRST_FRAMES, "transformer/"),
        (QWEN_IMAGE, "edit", EDIT, "text_encoder/"),
    ] {
        let captioned = Captioned::new(transformer, transformer == WAN);
        fs::write(captioned.folder("words/preprocessor_config.json"), processor.to_string()).unwrap();
        if name == "clip" {
            fs::remove_file(captioned.folder("words/preprocessor_config.json")).unwrap();
        }
        if name == "edit" {
            let mut tokenizer = words();
            let mut token = tokenizer["added_tokens"][0].clone();
            (token["id"], token["content"]) = (json!(400), json!("w398"));
            tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
            fs::write(captioned.folder("words/tokenizer.json"), tokenizer.to_string()).unwrap();
            let path = captioned.folder("train.jsonl");
            let lines = fs::read_to_string(&path).unwrap();
            fs::write(&path, lines.replace("\"prompt\"", "\"edit_image\": [\"1.png\", \"1.png\"], \"prompt\""))
                .unwrap();
        }
        let words = captioned.folder("words").display().to_string();
        let own: Vec<String> = own.iter().map(|key| key.replace("TOKENIZER", &words)).collect();
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let run = |to: &str, more: &[&str]| captioned.run(to, &[&own[..], &["train.steps=4"], more].concat(), None);
        let one = run("one", &["pools.placement=colocated"]);
        assert_eq!(one.len(), 4, "{name}");
        assert!(one.iter().all(|step| step.loss.is_finite()), "{name}");
        let files = hashes(&captioned.folder("one").join("step-00000004"));
        assert!(files.iter().any(|(file, _)| file.contains(tower)), "{name}: {files:?}");
        assert_eq!(losses(&run("two", &["pools.encoder.replicas=2"])), losses(&one), "{name}");
    }
}

#[test]
fn a_diffusion_model_learns_without_its_towers() {
    let captioned = Captioned::new(WAN, true);
    let held_out = format!("eval.path={}", captioned.folder("train.jsonl").display());
    let sample = format!(
        "sample={{ prompts: {}, max_prompts: 2, every_steps: 4, steps: 2, guidance: 2 }}",
        captioned.folder("train.jsonl").display()
    );
    let dir = format!("pools.encoder.cache_dir={}", captioned.folder("features").display());
    // Captions are dropped, and what guidance leads away from is a prompt of its own.
    let eval = ["eval.every_steps=4", "eval.max_samples=4", "eval.sigmas=[0.5]", "eval.save_best=false"];
    let own = [&eval[..], &["model.text_encoder.freeze=true", &dir, &held_out, &sample]].concat();
    let overrides: Vec<String> = own.iter().map(|own| own.to_string()).collect();
    let loaded = config::load(&captioned.folder("run.yaml"), &overrides, std::iter::empty()).unwrap();
    let encoded = encode(loaded, Share::WHOLE);
    assert_eq!(encoded.visits, [64, 6], "{encoded:?}");
    assert!(encoded.towers.values().all(|totals| totals.items > 30 && totals.found == 0), "{encoded:?}");
    let with = captioned.run("with", &own, None);
    let without = captioned.run("without", &[&own[..], &["pools.encoder.replicas=0"]].concat(), None);
    assert_eq!(losses(&without), losses(&with));
    assert_eq!(captioned.weights("without"), captioned.weights("with"));
}

/// Two transformers, of high noise from level 0.6 on.
fn two_transformers() -> String {
    format!("{WAN}\n    transformer_2: {WAN}\n    boundary_ratio: 0.6")
}

/// Frozen towers: a gradient norm is that of a transformer alone.
const FROZEN: &str = "model.text_encoder.freeze=true";
const HIGH: &str = "foundation_high";
const LOW: &str = "foundation_low";

impl Captioned {
    /// The files of a checkpoint whose names begin so, with their hashes.
    fn files(&self, run: &str, step: u64, stem: &str) -> Vec<(String, String)> {
        let mut files = hashes(&self.folder(run).join(format!("step-{step:08}")));
        files.retain(|(name, _)| name.starts_with(stem));
        files.sort();
        assert!(!files.is_empty(), "{run} has no {stem}");
        files
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
    assert_eq!(losses(&rest), losses(&both[4..]));
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
        assert_eq!(losses(&found), losses(&wanted), "{one}");
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
    assert_eq!(losses(&rest), losses(&whole[4..]));
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
    let prompts = captioned.folder("prompts.jsonl");
    fs::write(&prompts, "{\"prompt\": \"w3 w5\"}\n{\"prompt\": \"w9\"}\n").unwrap();
    let sample =
        format!("+sample={{prompts: {}, every_steps: 4, size: 8x8, steps: 5, sampler: unipc}}", prompts.display());
    let dir = |name: &str| format!("run.dir={}", captioned.folder(name).display());
    let made = |name: &str| -> Vec<Vec<u8>> {
        let steps = ["step-00000000", "step-00000004", "step-00000008"];
        let folders = steps.map(|step| captioned.folder(name).join("samples").join(step));
        let names = |folder: &PathBuf| fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let left = folders.iter().flat_map(names).find(|name| name.extension().unwrap() == "safetensors");
        assert_eq!(left, None, "what one pool leaves to the other is removed");
        let files = folders.iter().flat_map(|folder| ["0000.png", "0001.png"].map(|name| folder.join(name)));
        files.map(|file| fs::read(file).unwrap()).collect()
    };
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
}
