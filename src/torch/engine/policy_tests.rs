use std::path::{Path, PathBuf};

use loongforge_core::config::Precision;
use loongforge_core::data::{ColumnValues, IGNORE_INDEX, Media, Sample, SampleColumn};
use loongforge_core::message::{Grid, SampleId, Tower};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::{PolicyError, PolicyModel};
use crate::model::ModelConfig;
use crate::params::LinearModule;
use crate::train::hf::write_tensor_file;

pub(super) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies").join(name)
}

pub(super) fn tensor(folder: &Path, file: &str, name: &str) -> Tensor {
    let all = Tensor::read_safetensors(folder.join(file)).unwrap();
    all.into_iter().find(|(found, _)| found == name).unwrap().1
}

/// Returns a sample of the fixture as data actors make it.
pub(super) fn sample(folder: &Path, model: &PolicyModel, number: i64) -> Sample {
    let summary: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("fixture.json")).unwrap()).unwrap();
    let own = &summary["samples"][number as usize];
    let images = tensor(folder, "inputs.safetensors", "images");
    // Patches of 4 pixels a side; SmolVLA's pictures are of 16 patches, of which four become one feature.
    let side = images.size()[3] / 4;
    let picture = |camera: &Value| {
        let image = images.get(camera.as_i64().unwrap()).get(number).view([3, side, 4, side, 4]);
        let pixels = image.permute([1, 3, 0, 2, 4]).contiguous().flatten(0, -1);
        let pixels = Vec::try_from(pixels).unwrap();
        let grid = Grid { t: 1, h: side as u32, w: side as u32 };
        Media { tower: Tower::Vision, grid, num_features: 4, pixels }
    };
    let media: Vec<Media> = own["cameras"].as_array().unwrap().iter().map(picture).collect();
    let tokens = tensor(folder, "inputs.safetensors", "tokens").get(number);
    let prompt = Vec::<i64>::try_from(tokens.narrow(0, 0, own["prompt"].as_i64().unwrap())).unwrap();
    let places = std::iter::repeat_n(model.chunk().image_token, 4 * media.len());
    let ids: Vec<i64> = places.chain(prompt).collect();
    let state = Vec::try_from(tensor(folder, "inputs.safetensors", "state").get(number)).unwrap();
    let len = ids.len();
    let state = SampleColumn {
        name: "state".into(),
        before: Vec::new(),
        rows: 1,
        after: vec![4],
        values: ColumnValues::F32(state),
    };
    let mut sample = Sample::of_target(SampleId(0), Grid { t: 1, h: 1, w: 1 }, [len as u32, 1], media);
    sample.meta.target = None;
    sample.position_ids = vec![0.0; 3 * len];
    sample.targets = vec![IGNORE_INDEX; len];
    sample.input_ids = ids;
    sample.with_columns(vec![state])
}

/// lerobot's actions of the same noise, and others of other noise.
#[test]
fn a_folder_acts_as_in_lerobot() {
    for name in ["pi0-seed1", "pi05-seed1", "smolvla-seed1"] {
        let folder = fixture(name);
        let model = PolicyModel::open(&folder, Device::Cpu, Precision::Float32).unwrap();
        let (start, expected) =
            (tensor(&folder, "inputs.safetensors", "start"), tensor(&folder, "expected.safetensors", "sampled"));
        for number in 0..3 {
            let sample = sample(&folder, &model, number);
            let noise: Vec<f32> = Vec::try_from(start.get(number).flatten(0, 1)).unwrap();
            let found = model.act_from(&sample, &noise, 10).unwrap();
            let wanted = expected.get(number).flatten(0, 1);
            let off = (Tensor::from_slice(&found) - &wanted).abs().max() / wanted.abs().max();
            assert!(off.double_value(&[]) < 5e-6, "{name} sample {number}: {off:?}");
            let own = model.act(&sample, 7).unwrap();
            assert_eq!(own, model.act(&sample, 7).unwrap());
            assert_ne!(own, model.act(&sample, 8).unwrap());
        }
    }
}

/// Adapters that add nothing, and others.
#[test]
fn adapters_are_added_to_the_weights_of_a_policy() {
    let folder = fixture("pi0-seed1");
    let config: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let specs = ModelConfig::from_hf(&config).unwrap().specs();
    let mut modules: Vec<LinearModule> = specs.iter().filter_map(LinearModule::of).collect();
    modules.retain(|module| module.path.ends_with("self_attn.v_proj"));
    assert!(!modules.is_empty());
    let plain = PolicyModel::open(&folder, Device::Cpu, Precision::Float32).unwrap();
    let sample = sample(&folder, &plain, 0);
    let acted = |value: f64| {
        let dir = tempfile::tempdir().unwrap();
        let full = |size: [i64; 2], value: f64| Tensor::full(size, value, (Kind::Float, Device::Cpu));
        let parts = |module: &LinearModule| {
            let name = |part: &str| format!("base_model.model.{}.lora_{part}.weight", module.path);
            let (a, b) = (full([2, module.whole_inputs()], 0.1), full([module.whole_outputs(), 2], value));
            [(name("A"), a), (name("B"), b)]
        };
        let tensors: Vec<(String, Tensor)> = modules.iter().flat_map(parts).collect();
        write_tensor_file(&tensors, &[], dir.path(), "adapter_model.safetensors").unwrap();
        let settings = r#"{"peft_type": "LORA", "r": 2, "lora_alpha": 4}"#;
        std::fs::write(dir.path().join("adapter_config.json"), settings).unwrap();
        let adapted = (folder.as_path(), Some(dir.path()));
        let model = PolicyModel::open_adapted(&folder, adapted, Device::Cpu, Precision::Float32).unwrap();
        model.act(&sample, 7).unwrap()
    };
    let own = plain.act(&sample, 7).unwrap();
    assert_eq!(acted(0.0), own);
    assert_ne!(acted(0.5), own);
}

#[test]
fn samples_of_another_policy_are_refused() {
    let folder = fixture("pi0-seed1");
    let model = PolicyModel::open(&folder, Device::Cpu, Precision::Bf16).unwrap();
    let good = sample(&folder, &model, 0);
    assert!(model.act(&good, 1).unwrap().iter().all(|value| value.is_finite()));
    let error = |change: &dyn Fn(&mut Sample)| {
        let mut sample = good.clone();
        change(&mut sample);
        model.act(&sample, 1).unwrap_err().to_string()
    };
    assert!(error(&|sample| sample.columns.clear()).contains("no column state"));
    assert!(error(&|sample| sample.input_ids.push(99)).contains("token 99 is not below"));
    assert!(error(&|sample| sample.input_ids.clear()).contains("has no tokens"));
    assert!(
        error(&|sample| drop(sample.media.pop()))
            .contains("8 placeholder tokens for 4 features of 1 items of the vision tower")
    );
    assert!(error(&|sample| sample.media[0].pixels.truncate(9)).contains("features of 2 items"));
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3-seed1");
    let found = PolicyModel::open(&other, Device::Cpu, Precision::Float32).err().unwrap();
    assert!(matches!(found, PolicyError::Other { .. }), "{found}");
}
