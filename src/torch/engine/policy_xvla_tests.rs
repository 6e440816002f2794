//! X-VLA's folders as lerobot writes them.

use std::path::Path;

use loongforge_core::config::Precision;
use loongforge_core::data::{ColumnValues, IGNORE_INDEX, Media, Sample, SampleColumn};
use loongforge_core::message::{Grid, SampleId, Tower};
use serde_json::Value;
use tch::{Device, Tensor};

use super::PolicyModel;
use super::tests::{fixture, tensor};

/// Returns a sample of the fixture as data actors make it.
pub(super) fn sample(folder: &Path, model: &PolicyModel, number: i64) -> Sample {
    let summary: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("fixture.json")).unwrap()).unwrap();
    let num_views = summary["samples"][number as usize]["views"].as_i64().unwrap();
    let input = |name: &str| tensor(folder, "inputs.safetensors", name).get(number);
    let images = input("images");
    let [rows, columns] = [2, 3].map(|axis: usize| images.size()[axis] / 4);
    let picture = |view: i64| {
        let image = images.get(view).view([3, rows, 4, columns, 4]);
        let pixels = Vec::try_from(image.permute([1, 3, 0, 2, 4]).contiguous().flatten(0, -1)).unwrap();
        let grid = Grid { t: 1, h: rows as u32, w: columns as u32 };
        Media { tower: Tower::Vision, grid, num_features: 7, pixels }
    };
    let media: Vec<Media> = (0..num_views).map(picture).collect();
    let places = std::iter::repeat_n(model.chunk().image_token, 7 * media.len());
    let ids: Vec<i64> = places.chain(Vec::<i64>::try_from(input("tokens")).unwrap()).collect();
    let column = |name: &str, after: Vec<usize>, values| SampleColumn {
        name: name.into(),
        before: Vec::new(),
        rows: 1,
        after,
        values,
    };
    let state = Vec::<f32>::try_from(input("state")).unwrap();
    let columns = vec![
        column("state", vec![state.len()], ColumnValues::F32(state)),
        column("domain", Vec::new(), ColumnValues::I64(vec![input("domain").int64_value(&[])])),
    ];
    let len = ids.len();
    let mut sample = Sample::of_target(SampleId(0), Grid { t: 1, h: 1, w: 1 }, [len as u32, 1], media);
    sample.meta.target = None;
    sample.position_ids = vec![0.0; 3 * len];
    sample.targets = vec![IGNORE_INDEX; len];
    sample.input_ids = ids;
    sample.with_columns(columns)
}

/// lerobot's actions of the same noise, and others of other noise.
#[test]
fn a_folder_of_xvla_acts_as_in_lerobot() {
    for name in ["xvla-ee6d-seed1", "xvla-joint-seed1", "xvla-auto-seed1"] {
        let folder = fixture(name);
        let model = PolicyModel::open(&folder, Device::Cpu, Precision::Float32).unwrap();
        let [start, expected] = [("inputs", "start"), ("expected", "sampled")]
            .map(|(file, of)| tensor(&folder, &format!("{file}.safetensors"), of));
        let (horizon, dim) = (model.chunk().horizon, model.chunk().action_dim);
        for number in 0..3 {
            let sample = sample(&folder, &model, number);
            let noise: Vec<f32> = Vec::try_from(start.get(number).flatten(0, 1)).unwrap();
            let found = model.act_from(&sample, &noise, model.chunk().num_steps as usize).unwrap();
            let wanted = expected.get(number);
            let found = Tensor::from_slice(&found).view([horizon, dim]).narrow(1, 0, wanted.size()[1]);
            let off = (found - &wanted).abs().max() / wanted.abs().max();
            assert!(off.double_value(&[]) < 5e-6, "{name} sample {number}: {off:?}");
            let own = model.act(&sample, 7).unwrap();
            assert_eq!(own, model.act(&sample, 7).unwrap());
            assert_ne!(own, model.act(&sample, 8).unwrap());
        }
        let mut lacking = sample(&folder, &model, 0);
        lacking.columns.retain(|column| column.name != "domain");
        let error = model.act(&lacking, 1).unwrap_err().to_string();
        assert!(error.contains("no column domain"), "{error}");
    }
}

/// Files with the names of Florence-2's first release, in which the map of features is the other way round.
#[test]
fn files_of_the_first_release_act_as_others() {
    let folder = fixture("xvla-ee6d-seed1");
    let older = tempfile::tempdir().unwrap();
    std::fs::copy(folder.join("config.json"), older.path().join("config.json")).unwrap();
    let list = include_str!("../tests/names/xvla.txt");
    let first_name = |name: &str| {
        // The table is there under its other name alone.
        let name = name.replace("encoder.embed_tokens", "shared");
        let line = list.lines().find(|line| line.ends_with(&format!(" {name}"))).unwrap_or_else(|| panic!("no {name}"));
        line.split(' ').next().unwrap().to_owned()
    };
    let mut tensors: Vec<(String, Tensor)> = Tensor::read_safetensors(folder.join("model.safetensors")).unwrap();
    for (name, tensor) in &mut tensors {
        if name.ends_with("image_projection.weight") {
            *tensor = tensor.tr().contiguous();
        }
        *name = first_name(name);
    }
    tensors.push(("model.vlm.language_model.final_logits_bias".into(), Tensor::from_slice(&[0f32])));
    Tensor::write_safetensors(&tensors, older.path().join("model.safetensors")).unwrap();
    let [now, then] =
        [&*folder, older.path()].map(|at| PolicyModel::open(at, Device::Cpu, Precision::Float32).unwrap());
    let sample = sample(&folder, &now, 0);
    assert_eq!(now.act(&sample, 7).unwrap(), then.act(&sample, 7).unwrap());
}
