//! Runs of diffusion transformers: pictures and clips of any size with captions, pixels as latents, a text tower.

use crate::cache::encode;
use crate::fixture::loss_bits;
use crate::resume::{hashes, run_and_evaluate_in, run_in};
use crate::text::words;
use image::{GrayImage, Luma, Rgb, RgbImage};
use loongforge::core::config;
use loongforge::core::data::tools::Share;
use loongforge::core::schedule::StepSummary;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
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

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Gives four of five pictures and clips a mask, bright on the left and dark on the right.
    pub fn add_masks(&self) {
        let path = self.folder("train.jsonl");
        let masked = |(number, line): (usize, &str)| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            let (columns, rows) = SIZES[number % SIZES.len()];
            if !number.is_multiple_of(5) {
                let name = format!("mask-{number}.png");
                let value = |x| if x < columns / 2 { Luma([255u8]) } else { Luma([number as u8]) };
                GrayImage::from_fn(columns, rows, |x, _| value(x)).save(self.folder(&name)).unwrap();
                line["mask"] = json!(name);
            }
            line.to_string()
        };
        let lines: Vec<String> = fs::read_to_string(&path).unwrap().lines().enumerate().map(masked).collect();
        fs::write(&path, lines.join("\n")).unwrap();
    }

    /// Writes how the tower of text or pictures is shown pictures.
    fn add_processor(&self) {
        let processor = json!({"patch_size": 32, "merge_size": 2, "temporal_patch_size": 1, "min_pixels": 4096,
            "max_pixels": 65536});
        fs::write(self.folder("words/preprocessor_config.json"), processor.to_string()).unwrap();
    }

    /// Has every picture made of another one, which the text tower is shown twice; the tokenizer's last word stands for pictures.
    pub fn add_edits(&self) {
        self.add_processor();
        let mut tokenizer = words();
        let mut token = tokenizer["added_tokens"][0].clone();
        (token["id"], token["content"]) = (json!(400), json!("w398"));
        tokenizer["added_tokens"].as_array_mut().unwrap().push(token);
        fs::write(self.folder("words/tokenizer.json"), tokenizer.to_string()).unwrap();
        let path = self.folder("train.jsonl");
        let lines = fs::read_to_string(&path).unwrap();
        fs::write(&path, lines.replace("\"prompt\"", "\"edit_image\": [\"1.png\", \"1.png\"], \"prompt\"")).unwrap();
    }

    /// Returns these keys of a run with the tokenizer's folder in them.
    pub fn keys(&self, own: &[&str]) -> Vec<String> {
        let words = self.folder("words").display().to_string();
        own.iter().map(|key| key.replace("TOKENIZER", &words)).collect()
    }

    /// Runs with checkpoints in the folder `to`, from the fourth step of `from`.
    pub fn run(&self, to: &str, own: &[&str], from: Option<&str>) -> Vec<StepSummary> {
        run_in(self.dir.path(), to, own, from)
    }

    /// Returns every file of the last checkpoint with its hash; a file of the optimizer's state has the name of its pool.
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

/// Sums of another order: rounding alone differs, which eight steps of AdamW spread.
pub fn are_near(name: &str, found: &[StepSummary], expected: &[StepSummary]) {
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
            ("four", &["pools.encoder.replicas=4"][..]),
            ("apart", &["pools.text={threads: 1}", "pools.vae={replicas: 2, threads: 1}", "pools.data.replicas=2"]),
        ] {
            assert_eq!(loss_bits(&captioned.run(to, own, None)), loss_bits(&one), "{name}, {to}");
            assert_eq!(captioned.weights(to), files, "{name}, {to}");
        }
        let rest = captioned.run("rest", &["pools.encoder.replicas=3"], Some("one"));
        assert_eq!(loss_bits(&rest), loss_bits(&one[4..]), "{name}, resumed");
        assert_eq!(captioned.weights("rest"), files, "{name}, resumed");
        for own in [
            &["train.micro_batch_size=1"][..],
            &["pools.foundation.replicas=2", "pools.foundation.zero=1"],
            &["pools.foundation.replicas=2", "pools.foundation.zero=2"],
            &["pools.foundation.replicas=2", "pools.foundation.zero=3"],
            &["pools.foundation.tensor_parallel=2"],
            &["pools.foundation.pipeline_parallel=2"],
            &["pools.foundation.context_parallel=2", "pools.foundation.context_attention=ulysses"],
            &["model.foundation.recompute=all"],
            &["memory.activation_budget.foundation=1MiB", "memory.offload=true"],
            &["pools.text={tensor_parallel: 2, threads: 1}"],
        ] {
            are_near(&format!("{name}, {own:?}"), &captioned.run("layout", own, None), &one);
        }
    }
}

#[test]
fn masks_weigh_the_same_tokens_in_any_layout() {
    const MASKS: &str = "data.masks=true";
    for (transformer, name, clips) in [(QWEN_IMAGE, "qwen-image", false), (WAN, "wan", true)] {
        let captioned = Captioned::new(transformer, clips);
        captioned.add_masks();
        for per in ["train.loss={per: sample}", "train.loss={per: token}"] {
            let run = |to: &str, own: &[&str]| captioned.run(to, &[&[MASKS, per][..], own].concat(), None);
            let one = run("one", &[]);
            for own in [
                &["pools.foundation.context_parallel=2", "pools.foundation.context_attention=ulysses"][..],
                &["pools.foundation.tensor_parallel=2"],
            ] {
                are_near(&format!("{name}, {per}, {own:?}"), &run("layout", own), &one);
            }
        }
    }
}

/// Also of ranks that have a part of each clip.
#[test]
fn evaluations_count_a_sample_once_in_any_layout() {
    let captioned = Captioned::new(WAN, true);
    let held_out = format!("eval.path={}", captioned.folder("train.jsonl").display());
    let eval = ["train.steps=4", "eval.every_steps=4", "eval.max_samples=4", "eval.sigmas=[0.5]", &held_out];
    let found = |to: &str, own: &[&str]| {
        let (_, found) = run_and_evaluate_in(&captioned.folder(""), to, &[&eval[..], own].concat(), None);
        let set = &found[0].sets[0];
        (set.loss(), set.found.num_targets)
    };
    let (loss, num_targets) = found("one", &[]);
    for (to, own) in [
        ("context", &["pools.foundation.context_parallel=2", "pools.foundation.context_attention=ulysses"][..]),
        ("layers", &["pools.foundation.tensor_parallel=2"]),
    ] {
        let (other, num_others) = found(to, own);
        assert_eq!(num_others, num_targets, "{to}");
        assert!((other / loss - 1.0).abs() < 1e-3, "{to}: {other} and {loss}");
    }
}

/// Ranks that share a model, or its weights, make the samples of one that has it whole; a replica without a prompt takes part.
#[test]
fn samples_are_made_in_any_layout() {
    for (transformer, clips, own) in [(QWEN_IMAGE, false, &[][..]), (WAN, true, FIRST_FRAMES)] {
        let captioned = Captioned::new(transformer, clips);
        let prompts = captioned.folder("train.jsonl");
        let sample = format!("sample={{ prompts: {}, max_prompts: 3, steps: 3, guidance: 2 }}", prompts.display());
        let made = |layout: &[&str]| -> BTreeMap<PathBuf, RgbImage> {
            let layout = [&["train.steps=2", "train.warmup_steps=1", &sample], own, layout].concat();
            run_and_evaluate_in(&captioned.folder(""), "made", &layout, None);
            let folder = captioned.folder("run/samples/step-00000002");
            let paths = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
            let pictures = paths.filter(|path| path.extension().is_some_and(|extension| extension == "png"));
            let found = pictures.map(|path| (path.clone(), image::open(&path).unwrap().into_rgb8())).collect();
            fs::remove_dir_all(folder).unwrap();
            found
        };
        let one = made(&[]);
        assert!(one.len() >= 3, "{one:?}");
        for layout in [
            &["pools.foundation.tensor_parallel=2"][..],
            &["pools.foundation.pipeline_parallel=2"],
            &["pools.foundation.context_parallel=2", "pools.foundation.context_attention=ulysses"],
            &["pools.foundation.replicas=2", "pools.foundation.zero=3", "data.pack.max_tokens=200"],
        ] {
            let other = made(layout);
            assert_eq!(other.keys().collect::<Vec<_>>(), one.keys().collect::<Vec<_>>(), "{layout:?}");
            for (path, picture) in &other {
                // Two steps of training spread what rounding begins.
                let off = picture.as_raw().iter().zip(one[path].as_raw()).map(|(a, b)| a.abs_diff(*b)).max();
                assert!(off <= Some(2), "{layout:?}, {}: {off:?} of 255", path.display());
            }
        }
    }
}

#[test]
fn samples_are_made_with_averages_where_a_run_has_some() {
    let captioned = Captioned::new(QWEN_IMAGE, false);
    let prompts = captioned.folder("train.jsonl");
    let made = |averages: &str, ema: bool| {
        let sample = format!("sample={{ prompts: {}, max_prompts: 1, steps: 3, ema: {ema} }}", prompts.display());
        run_and_evaluate_in(&captioned.folder(""), "made", &[averages, &sample], None);
        let folder = captioned.folder("run/samples/step-00000008");
        let picture = image::open(folder.join("0000.png")).unwrap().into_rgb8();
        fs::remove_dir_all(folder).unwrap();
        picture
    };
    let own = made("train.ema=null", true);
    assert!(made("train.ema=0.99", false) == own, "averages change nothing where they are not asked for");
    assert!(made("train.ema=0.99", true) != own, "averages lag behind the weights");
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
    let fresh = run("fresh", &["pools.encoder.cache=1KiB"]);
    assert!(cached(&fresh) < cached(&kept));
    assert_eq!(loss_bits(&fresh), loss_bits(&kept), "whether features are kept or made again");
    let dir = format!("pools.encoder.cache_dir={}", captioned.folder("features").display());
    assert_eq!(loss_bits(&run("first", &[&dir])), loss_bits(&kept));
    let second = run("second", &[&dir, "pools.encoder.replicas=2"]);
    assert_eq!((loss_bits(&second), cached(&second)), (loss_bits(&kept), items(&kept)));
    assert_eq!(loss_bits(&run("none", &[])), loss_bits(&kept), "without a cache");
    // Where items are encoded together, sums differ in rounding.
    are_near("together", &run("together", &["run.deterministic=false"]), &kept);
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
pub const EDIT: &[&str] = &[
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
    for (transformer, name, own, tower) in [
        (WAN, "clip", CLIP, "image_encoder/"),
        (WAN, "first frames", FIRST_FRAMES, "transformer/"),
        (QWEN_IMAGE, "edit", EDIT, "text_encoder/"),
    ] {
        let captioned = Captioned::new(transformer, transformer == WAN);
        match name {
            "clip" => {}
            "edit" => captioned.add_edits(),
            _ => captioned.add_processor(),
        }
        let own = captioned.keys(own);
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let run = |to: &str, more: &[&str]| captioned.run(to, &[&own[..], &["train.steps=4"], more].concat(), None);
        let one = run("one", &["pools.placement=colocated"]);
        assert_eq!(one.len(), 4, "{name}");
        assert!(one.iter().all(|step| step.loss.is_finite()), "{name}");
        let files = hashes(&captioned.folder("one").join("step-00000004"));
        assert!(files.iter().any(|(file, _)| file.contains(tower)), "{name}: {files:?}");
        assert_eq!(loss_bits(&run("two", &["pools.encoder.replicas=2"])), loss_bits(&one), "{name}");
        if name == "edit" {
            // A text tower with pictures among its tokens, shared by ranks.
            are_near(name, &run("ranks", &["pools.text={tensor_parallel: 2, threads: 1}"]), &one);
        }
    }
}

/// Samples that have lost their first frames and samples with theirs are in the same packs.
#[test]
fn first_frames_are_dropped_alike_in_any_layout() {
    const SOME: &str = "data.condition_dropout=0.5";
    let captioned = Captioned::new(WAN, true);
    let run = |to: &str, dropout: &str, own: &[&str]| {
        captioned.run(to, &[CLIP, &[dropout, "train.steps=4"], own].concat(), None)
    };
    let one = run("one", SOME, &[]);
    assert!(one.iter().all(|step| step.loss.is_finite()), "{one:?}");
    assert_ne!(loss_bits(&run("kept", "data.condition_dropout=0", &[])), loss_bits(&one));
    assert_eq!(loss_bits(&run("two", SOME, &["pools.encoder.replicas=2"])), loss_bits(&one));
    for own in [
        &["train.micro_batch_size=1"][..],
        &["pools.foundation.replicas=2", "pools.foundation.zero=3"],
        &["pools.foundation.tensor_parallel=2"],
        &["pools.foundation.pipeline_parallel=2"],
        &["pools.foundation.context_parallel=2", "pools.foundation.context_attention=ulysses"],
    ] {
        are_near(&format!("{own:?}"), &run("layout", SOME, own), &one);
    }
}

/// An autoencoder whose latents have a distribution, as large as the pictures.
const VAE: &str = "model.config.vae={_class_name: AutoencoderKLWan, base_dim: 4, dim_mult: [1], num_res_blocks: 1, \
    temperal_downsample: [], z_dim: 3, latents_mean: [0, 0, 0], latents_std: [1, 1, 1]}";

#[test]
fn latents_are_drawn_alike_whoever_encodes_them() {
    const SAMPLE: &str = "train.latents=sample";
    let captioned = Captioned::new(WAN, true);
    let run = |to: &str, latents: &str, own: &[&str]| {
        let common = [VAE, latents, "train.steps=4", "checkpoint.every_steps=0", "checkpoint.at_end=false"];
        captioned.run(to, &[&common[..], own].concat(), None)
    };
    let one = run("one", SAMPLE, &[]);
    assert_ne!(loss_bits(&run("means", "train.latents=mean", &[])), loss_bits(&one));
    assert_eq!(loss_bits(&run("two", SAMPLE, &["pools.encoder.replicas=2"])), loss_bits(&one));
    // Means and deviations come from a folder as well.
    let kept = format!("pools.vae={{threads: 1, cache_dir: {}}}", captioned.folder("features").display());
    let first = run("first", SAMPLE, &[&kept]);
    assert_eq!(loss_bits(&run("second", SAMPLE, &[&kept])), loss_bits(&first));
    are_near("a folder", &first, &one);
    for own in [
        &["pools.foundation.pipeline_parallel=2"][..],
        &["pools.foundation.context_parallel=2", "pools.foundation.context_attention=ulysses"],
    ] {
        are_near(&format!("{own:?}"), &run("layout", SAMPLE, own), &one);
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
    assert_eq!(loss_bits(&without), loss_bits(&with));
    assert_eq!(captioned.weights("without"), captioned.weights("with"));
}
