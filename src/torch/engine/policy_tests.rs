use std::path::{Path, PathBuf};

use loongforge_core::config::Precision;
use loongforge_core::data::{ColumnValues, IGNORE_INDEX, Media, Sample, SampleColumn};
use loongforge_core::message::{Grid, SampleId, Tower};
use serde_json::Value;
use tch::{Device, Tensor};

use super::{PolicyError, PolicyModel};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies").join(name)
}

fn tensor(folder: &Path, file: &str, name: &str) -> Tensor {
    let all = Tensor::read_safetensors(folder.join(file)).unwrap();
    all.into_iter().find(|(found, _)| found == name).unwrap().1
}

/// A sample of the fixture as data actors make it.
fn sample(folder: &Path, model: &PolicyModel, number: i64) -> Sample {
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
