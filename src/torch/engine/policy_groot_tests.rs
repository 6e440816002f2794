//! GR00T's folders act as the references do: NVIDIA's, of N1.7 and N1.6, and lerobot's, whose table of tokens is stored as a head.

use std::path::{Path, PathBuf};

use loongforge_core::config::Precision;
use loongforge_core::data::{ColumnValues, IGNORE_INDEX, Media, Sample, SampleColumn};
use loongforge_core::message::{Grid, SampleId, Tower};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::{PolicyError, PolicyModel};

fn policies() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies")
}

fn fixture() -> PathBuf {
    policies().join("groot-seed1")
}

fn n1_6() -> PathBuf {
    policies().join("groot-n1_6-seed1")
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn tensor(fixture: &Path, file: &str, name: &str) -> Tensor {
    let all = Tensor::read_safetensors(fixture.join(file)).unwrap();
    all.into_iter().find(|(found, _)| found == name).unwrap().1
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.to_kind(Kind::Float).contiguous().flatten(0, -1)).unwrap()
}

/// Returns a sample of the fixture as data actors make it.
pub(super) fn sample(fixture: &Path, number: usize) -> Sample {
    let summary = read(&fixture.join("fixture.json"));
    let picture = |camera: &Value| {
        let camera = camera.as_u64().unwrap() as usize;
        let side = |at: usize| summary["grids"][camera][at].as_u64().unwrap() as u32;
        let grid = Grid { t: 1, h: side(0), w: side(1) };
        let pixels = floats(&tensor(fixture, "inputs.safetensors", &format!("pixels_{camera}")).get(number as i64));
        Media { tower: Tower::Vision, grid, num_features: grid.num_cells() / 4, pixels }
    };
    let media = summary["samples"][number]["cameras"].as_array().unwrap().iter().map(picture).collect();
    let lens: Vec<i64> = summary["lens"].as_array().unwrap().iter().map(|len| len.as_i64().unwrap()).collect();
    let (begin, len) = (lens[..number].iter().sum::<i64>(), lens[number]);
    let of_tokens = |name: &str, axis: i64| tensor(fixture, "inputs.safetensors", name).narrow(axis, begin, len);
    let own = |name: &str| tensor(fixture, "inputs.safetensors", name).get(number as i64);
    let state = floats(&own("state"));
    let column = |name: &str, after: Vec<usize>, values: ColumnValues| SampleColumn {
        name: name.into(),
        before: Vec::new(),
        rows: 1,
        after,
        values,
    };
    let columns = vec![
        column("state", vec![state.len()], ColumnValues::F32(state)),
        column("embodiment", Vec::new(), ColumnValues::I64(vec![own("embodiment").int64_value(&[])])),
    ];
    let mut sample = Sample::of_target(SampleId(0), Grid { t: 1, h: 1, w: 1 }, [len as u32, 1], media);
    sample.meta.target = None;
    sample.position_ids = floats(&of_tokens("position_ids", 1));
    sample.targets = vec![IGNORE_INDEX; len as usize];
    sample.input_ids = Vec::try_from(of_tokens("input_ids", 0)).unwrap();
    sample.with_columns(columns)
}

/// Returns the fixture as lerobot saves it.
fn of_lerobot() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut sizes = read(&fixture().join("config.json"));
    sizes.as_object_mut().unwrap().remove("model_type");
    let config = json!({"type": "groot", "chunk_size": 5, "max_state_dim": 5, "max_action_dim": 6, "sizes": sizes});
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let weights = Tensor::read_safetensors(fixture().join("model.safetensors")).unwrap();
    let named = |(name, value): (String, Tensor)| {
        let name = name.replace("backbone.model.model.language_model.embed_tokens", "backbone.model.lm_head");
        (format!("_groot_model.{name}"), value)
    };
    let weights: Vec<(String, Tensor)> = weights.into_iter().map(named).collect();
    Tensor::write_safetensors(&weights, folder.path().join("model.safetensors")).unwrap();
    folder
}

#[test]
fn all_folders_act_as_the_references_do() {
    let lerobot = of_lerobot();
    for (fixture, folder) in [(fixture(), fixture()), (fixture(), lerobot.path().to_owned()), (n1_6(), n1_6())] {
        let model = PolicyModel::open(&folder, Device::Cpu, Precision::Float32).unwrap();
        let [start, expected] = [("inputs", "start"), ("expected", "sampled")]
            .map(|(file, name)| tensor(&fixture, &format!("{file}.safetensors"), name));
        for number in 0..3 {
            let sample = sample(&fixture, number);
            let found = model.act_from(&sample, &floats(&start.get(number as i64)), 4).unwrap();
            let wanted = expected.get(number as i64).flatten(0, 1);
            let off = (Tensor::from_slice(&found) - &wanted).abs().max() / wanted.abs().max();
            assert!(off.double_value(&[]) < 5e-6, "{} sample {number}: {off:?}", folder.display());
            let own = model.act(&sample, 7).unwrap();
            assert_eq!(own, model.act(&sample, 7).unwrap());
            assert_ne!(own, model.act(&sample, 8).unwrap());
        }
    }
}

#[test]
fn samples_of_another_robot_are_refused() {
    let model = PolicyModel::open(&fixture(), Device::Cpu, Precision::Bf16).unwrap();
    let good = sample(&fixture(), 1);
    assert!(model.act(&good, 1).unwrap().iter().all(|value| value.is_finite()));
    let error = |change: &dyn Fn(&mut Sample)| {
        let mut sample = good.clone();
        change(&mut sample);
        let Err(PolicyError::Sample(reason)) = model.act(&sample, 1) else { panic!("an error") };
        reason
    };
    assert!(error(&|sample| drop(sample.columns.pop())).contains("no column embodiment"));
    assert!(error(&|sample| sample.position_ids.truncate(4)).contains("no column position_ids"));
}
