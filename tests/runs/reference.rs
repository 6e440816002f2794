//! The committed configs compute what they computed: losses of the first steps and hashes of the weights after them are in
//! `reference.json`, by processor, since products of other processors are rounded otherwise.
//!
//! `UPDATE_REFERENCE=1 cargo nextest run -E 'test(reference)'` writes this processor's; a change that is not meant to change
//! results leaves the file as it is.

use super::fixture::run;
use super::must::skip;
use loongforge::core::checkpoint::Manifest;
use loongforge::core::config;
use loongforge::core::data::digits::{self, Digits};
use loongforge::core::data::emoji;
use loongforge::core::data::spoken_digits;
use loongforge::core::text::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

const FILE: &str = "tests/runs/reference.json";
const STEPS: usize = 6;

/// The results of a run.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Outcome {
    /// Losses of the steps, with as many digits as tell a float64 from all others.
    losses: Vec<String>,
    /// SHA-256 over the hashes of all files of weights.
    weights: String,
}

/// Returns the maker of the processor and the vector instructions that libraries choose their products by.
fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        let id = std::arch::x86_64::__cpuid(0);
        let vendor: Vec<u8> = [id.ebx, id.edx, id.ecx].into_iter().flat_map(u32::to_le_bytes).collect();
        let has = [
            ("avx2", is_x86_feature_detected!("avx2")),
            ("avx512", is_x86_feature_detected!("avx512f")),
            ("avx512_bf16", is_x86_feature_detected!("avx512bf16")),
        ];
        let has = has.into_iter().filter_map(|(name, is)| is.then_some(name)).collect::<Vec<_>>().join(" ");
        format!("{} {has}", String::from_utf8_lossy(&vendor))
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::env::consts::ARCH.to_owned()
}

/// Returns an npm package as `loongforge data emoji` reads it, of squares of one color each.
fn emoji_package(dir: &Path) -> std::path::PathBuf {
    let pictures = dir.join("package/img/x/64");
    fs::create_dir_all(&pictures).unwrap();
    let rows: Vec<serde_json::Value> = (0..40)
        .map(|row: u32| {
            let color = image::Rgba([(row * 6) as u8, (row * 37 % 256) as u8, (row * 91 % 256) as u8, 255]);
            image::RgbaImage::from_pixel(64, 64, color).save(pictures.join(format!("{row}.png"))).unwrap();
            let (name, image) = (format!("SQUARE {row}"), format!("{row}.png"));
            serde_json::json!({"name": name, "short_name": format!("s{row}"), "image": image, "category": "Squares"})
        })
        .collect();
    fs::write(dir.join("package/emoji.json"), serde_json::Value::from(rows).to_string()).unwrap();
    let file = dir.join("emoji.tgz");
    let packed = Command::new("tar").arg("-czf").arg(&file).arg("-C").arg(dir).arg("package").status().unwrap();
    assert!(packed.success());
    file
}

/// Runs a config of `configs/` with the data of `dir`.
fn outcome(dir: &Path, name: &str, file: &str, own: &[&str]) -> Outcome {
    let to = dir.join(name);
    let mut overrides = vec![
        format!("run.dir={}", to.display()),
        format!("train.steps={STEPS}"),
        "train.warmup_steps=2".to_owned(),
        "train.global_batch_size=8".to_owned(),
        "checkpoint.every_steps=0".to_owned(),
        "eval=null".to_owned(),
        "log.tensorboard=false".to_owned(),
        "pools.encoder.threads=1".to_owned(),
        "pools.foundation.threads=1".to_owned(),
    ];
    overrides.extend(own.iter().map(|own| own.replace("DIR", &dir.display().to_string())));
    let loaded = config::load(Path::new(file), &overrides, std::iter::empty());
    let (steps, _) = run(loaded.unwrap_or_else(|report| panic!("{report}")), None);
    let manifest = Manifest::read(&to.join(format!("checkpoints/step-{STEPS:08}"))).unwrap();
    let weights = manifest.files.iter().filter(|(name, _)| name.ends_with(".safetensors"));
    let weights: String = weights.map(|(name, file)| format!("{name} {}\n", file.sha256)).collect();
    Outcome {
        losses: steps.iter().map(|step| format!("{:?}", step.loss)).collect(),
        weights: hex(Sha256::digest(weights.as_bytes())),
    }
}

#[test]
fn committed_configs_compute_what_the_reference_says() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    digits::compose(&dir.join("digits"), &Digits { seed: 1, num_train: 128, num_held_out: 8 }).unwrap();
    digits::write_model(&dir.join("digits/model"), &digits::MODEL).unwrap();
    emoji::compose(&dir.join("emoji"), &[emoji_package(dir)], 1).unwrap();
    let digits = "data.train=[{path: DIR/digits/train.jsonl}]";
    let emoji = ["model.load=DIR/emoji/model", "data.train=[{path: DIR/emoji/train.json, format: sharegpt}]"];
    let quickstart = ["model.load=DIR/digits/model", digits];
    let decoupled = [&quickstart[..], &["run.deterministic=true", "pools.encoder.replicas=2"]].concat();
    spoken_digits::compose(&dir.join("spoken")).unwrap();
    let spoken = ["model.load=DIR/spoken/model", "data.train=[{path: DIR/spoken/train.jsonl}]"];
    let runs: [(&str, &str, &[&str]); 7] = [
        ("quickstart", "configs/quickstart.yaml", &quickstart),
        ("decoupled", "configs/quickstart.yaml", &decoupled),
        ("custom_vlm", "configs/custom_vlm.yaml", &["model.tokenizer=DIR/digits/model", digits]),
        ("emoji", "configs/emoji.yaml", &emoji),
        ("sft_text", "configs/sft_text.yaml", &[]),
        ("lora_text", "configs/lora_text.yaml", &[]),
        ("spoken_digits", "configs/spoken_digits.yaml", &spoken),
    ];
    let found: BTreeMap<String, Outcome> =
        runs.iter().map(|(name, file, own)| (name.to_string(), outcome(dir, name, file, own))).collect();
    let mut known: BTreeMap<String, BTreeMap<String, Outcome>> =
        serde_json::from_str(&fs::read_to_string(FILE).unwrap_or_else(|_| "{}".into())).unwrap();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        known.insert(processor(), found);
        fs::write(FILE, serde_json::to_string_pretty(&known).unwrap() + "\n").unwrap();
        return;
    }
    let Some(expected) = known.get(&processor()) else {
        return skip("reference", format!("{FILE} has no entry for {}", processor()));
    };
    assert!(expected.keys().all(|name| found.contains_key(name)), "{FILE} has a name that no config has");
    for (name, found) in &found {
        match expected.get(name) {
            Some(expected) => assert_eq!(found, expected, "{name}"),
            None => skip("reference", format!("{FILE} has no {name} for {}", processor())),
        }
    }
}
