//! Whole tiny pipelines against diffusers (`tests/oracle/make_pipelines.py`): arguments, pictures, towers, transformer and sampler.

use super::*;
use clap::Parser;
use loongforge_torch::model::{NoisePurpose, SampleRow};
use loongforge_torch::train::hf::write_tensor_file;
use std::fs;
use tch::Tensor;

/// The largest error of rows of text and of latents, relative to the largest value; and where pictures are resized, of which some
/// bytes differ by one.
const TOLERANCE: [f64; 2] = [5e-6, 1e-5];
const RESIZED: [f64; 2] = [2e-2, 2e-4];

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: SampleArgs,
}

fn error(found: &Tensor, want: &Tensor) -> f64 {
    assert_eq!(found.size(), want.size());
    f64::try_from((found - want).abs().max() / want.abs().max()).unwrap()
}

/// Returns the arguments of the pipeline in a folder.
fn arguments(folder: &Path) -> SampleArgs {
    let words: Vec<String> = serde_json::from_str(&fs::read_to_string(folder.join("args.json")).unwrap()).unwrap();
    let mut line = vec!["sample".to_owned(), folder.join("model").display().to_string()];
    for word in words {
        line.push(if word.ends_with(".png") { folder.join(word).display().to_string() } else { word });
    }
    Line::try_parse_from(line).unwrap_or_else(|error| panic!("{}: {error}", folder.display())).args
}

fn check(folder: &Path) {
    let name = folder.file_name().unwrap().to_string_lossy().into_owned();
    let args = arguments(folder);
    let folders = ModelFolders::find(&folder.join("model"), None).unwrap();
    let painter = Painter::load(&folders, false, tch::Device::Cpu).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    let settings = samples::settings(&painter.folder().json, &sampling(&args), "--guidance", args.seed).unwrap();
    let prompts = prompts(&args, &painter, false).unwrap_or_else(|error| panic!("{name}: {error:#}"));
    let expected: std::collections::HashMap<String, Tensor> =
        Tensor::read_safetensors(folder.join("expected.safetensors")).unwrap().into_iter().collect();
    let text = painter.towers().iter().find(|tower| tower.tower() == loongforge_core::message::Tower::Text).unwrap();
    let rows = text.features(&[&prompts[0]])[0].shallow_clone();
    let texts: Vec<&Tensor> = ["text/0", "text/1"].iter().filter_map(|name| expected.get(*name)).collect();
    let want = Tensor::cat(&texts, 0);
    let text_error = error(&rows.narrow(0, 0, want.size()[0]), &want);
    let row = SampleRow::new(&prompts[0].meta, NoisePurpose::Evaluation(0));
    let made = painter.latents(&prompts[0], &row, &settings, expected["noise"].shallow_clone()).unwrap();
    let latent_error = error(&made, &expected["latents"]);
    println!("{name:24} text {text_error:.1e}, latents {latent_error:.1e}");
    let [of_text, of_latents] = if name.ends_with("_resized") { RESIZED } else { TOLERANCE };
    assert!(text_error < of_text, "{name}: text {text_error:e}");
    assert!(latent_error < of_latents, "{name}: latents {latent_error:e}");
}

#[test]
fn pipelines_make_diffusers_latents() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pipelines");
    let root = std::env::var_os("LOONGFORGE_PIPELINES").map_or(own, PathBuf::from);
    let mut folders: Vec<PathBuf> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    assert!(folders.len() >= 2, "{}", root.display());
    folders.iter().for_each(|folder| check(folder));
}

#[test]
fn a_missing_first_frame_is_told_by_its_option() {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pipelines/wan2.1_i2v/model");
    let named = model.display().to_string();
    let line = ["sample", &named, "--prompt", "a", "--size", "16x16", "--frames", "5", "--steps", "2"];
    let args = Line::try_parse_from(line).unwrap_or_else(|error| panic!("{error}")).args;
    let folders = ModelFolders::find(&model, None).unwrap();
    let painter = Painter::load(&folders, false, tch::Device::Cpu).unwrap_or_else(|error| panic!("{error:#}"));
    let error = prompts(&args, &painter, false).unwrap_err().to_string();
    assert!(error.contains("--image is missing"), "{error}");
    // The checkpoint of a run that has dropped pictures goes without.
    let prompt = prompts(&args, &painter, true).unwrap().remove(0);
    let settings = samples::settings(&painter.folder().json, &sampling(&args), "--guidance", args.seed).unwrap();
    let row = SampleRow::new(&prompt.meta, NoisePurpose::Evaluation(0));
    assert!(row.items.iter().all(|item| item.tower == loongforge_core::message::Tower::Text));
    painter.make(&prompt, &settings, 0, 16.0).unwrap();
}

#[test]
fn a_lora_file_of_another_program_is_added_to_its_base() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pipelines/wan2.1_i2v");
    let base = folder.join("model").display().to_string();
    let args = arguments(&folder);
    let expected: std::collections::HashMap<String, Tensor> =
        Tensor::read_safetensors(folder.join("expected.safetensors")).unwrap().into_iter().collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("lora.safetensors");
    let made = |up: f64| {
        // make_pipelines.py has 2 heads of 12.
        let pair = [("A", [1i64, 24], 1.0), ("B", [24, 1], up)].map(|(part, shape, value)| {
            let values = Tensor::full(shape, value, (tch::Kind::Float, tch::Device::Cpu));
            (format!("diffusion_model.blocks.0.self_attn.q.lora_{part}.weight"), values)
        });
        write_tensor_file(&pair, &[], dir.path(), "lora.safetensors").unwrap();
        let folders = ModelFolders::find_any(&file, Some(&base)).unwrap();
        let painter = Painter::load(&folders, false, tch::Device::Cpu).unwrap_or_else(|error| panic!("{error:#}"));
        let settings = samples::settings(&painter.folder().json, &sampling(&args), "--guidance", args.seed).unwrap();
        let prompt = prompts(&args, &painter, false).unwrap().remove(0);
        let row = SampleRow::new(&prompt.meta, NoisePurpose::Evaluation(0));
        let latents = painter.latents(&prompt, &row, &settings, expected["noise"].shallow_clone()).unwrap();
        error(&latents, &expected["latents"])
    };
    assert!(made(0.0) < TOLERANCE[1], "without a change the latents are those of the base");
    assert!(made(1.0) > 1e-3);
    let missing = ModelFolders::find_any(&file, None).unwrap_err().to_string();
    assert!(missing.ends_with("does not name their base model: name it with --base"), "{missing}");
}
