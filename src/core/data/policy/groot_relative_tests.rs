//! Relative actions of GR00T, against what lerobot's processor makes of the same frames (`tests/oracle/make_groot_relative.py`).

use std::path::Path;
use std::sync::Arc;

use image::RgbImage;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value as Json, json};

use super::{PolicyMaker, groot_files, groot_groups};
use crate::config::{Policy, TrainFile};
use crate::data::column::ColumnValues;
use crate::data::digits::{MODEL, write_model};
use crate::data::in_process::InProcess;
use crate::data::lerobot::{Feature, Set, SetWriter, Value};
use crate::data::processor::{PolicyOptions, ProcessorFolders, ProcessorOptions};
use crate::message::SampleId;

const CAMERA: &str = "observation.images.front";

pub(super) fn golden() -> Json {
    serde_json::from_str(include_str!("../goldens/groot_relative.json")).unwrap()
}

fn numbers(json: &Json) -> Vec<f32> {
    match json.as_array() {
        Some(values) => values.iter().flat_map(numbers).collect(),
        None => vec![json.as_f64().unwrap() as f32],
    }
}

/// Checks that values are those of the same operations in float32, in another order by a rounding or two.
fn close(ours: &[f32], theirs: &[f32], what: &str) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert!((ours - theirs).abs() <= 2e-6 * theirs.abs().max(1.0), "{what}: {ours} {theirs}");
    }
}

/// Writes the frames of a case as a set with the statistics that lerobot was given.
pub(super) fn write_set(folder: &Path, case: &Json) {
    let names = golden()["names"].clone();
    let names: Vec<&str> = names.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let features = vec![
        Feature::images(CAMERA, 16, 16),
        Feature::vector("observation.state", &names),
        Feature::vector("action", &names),
    ];
    let mut writer = SetWriter::create(folder, 10, "arm", features).unwrap();
    for (state, action) in case["states"].as_array().unwrap().iter().zip(case["actions"].as_array().unwrap()) {
        let (state, action, picture) = (numbers(state), numbers(action), RgbImage::new(16, 16));
        let frame = [
            (CAMERA, Value::Picture(&picture)),
            ("observation.state", Value::Numbers(&state)),
            ("action", Value::Numbers(&action)),
        ];
        writer.add_frame(&frame).unwrap();
    }
    writer.end_episode("go").unwrap();
    writer.finish().unwrap();
    std::fs::write(folder.join("meta/stats.json"), case["stats"].to_string()).unwrap();
}

pub(super) fn config(folder: &Path) -> Json {
    let backbone: Json = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let golden = golden();
    json!({
        "type": "groot", "use_relative_actions": true, "relative_exclude_joints": golden["exclude"],
        "sizes": {
            "backbone_config": backbone, "action_horizon": golden["horizon"], "max_state_dim": golden["max_state_dim"],
            "max_action_dim": golden["max_action_dim"],
        },
        "input_features": { CAMERA: { "type": "VISUAL", "shape": [3, 16, 16] } },
    })
}

pub(super) fn open(folder: &Path, config: &Json, sets: Vec<TrainFile>) -> Result<PolicyMaker, String> {
    open_with(folder, config, sets, Policy::default())
}

pub(super) fn open_with(
    folder: &Path,
    config: &Json,
    sets: Vec<TrainFile>,
    settings: Policy,
) -> Result<PolicyMaker, String> {
    let folders = ProcessorFolders::of(folder);
    let policy = PolicyOptions { settings, sets, seed: 1, ..PolicyOptions::default() };
    let options = ProcessorOptions { policy, ..ProcessorOptions::default() };
    PolicyMaker::open(folders, config, &options, Arc::new(InProcess)).map_err(|error| error.to_string())
}

pub(super) fn floats(maker: &PolicyMaker, set: &Arc<Set>, frame: usize) -> [Vec<f32>; 2] {
    let sample = maker.learn(SampleId(0), &set.step(0, frame).unwrap()).unwrap();
    ["actions", "state"].map(|name| match &sample.columns.iter().find(|column| column.name == name).unwrap().values {
        ColumnValues::F32(values) => values.clone(),
        ColumnValues::I64(_) => panic!("{name} is of whole numbers"),
    })
}

#[test]
fn relative_actions_of_groups_are_those_of_lerobot_and_are_undone() {
    for (number, case) in golden()["cases"].as_array().unwrap().iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let (model, place) = (folder.path().join("model"), folder.path().join("set"));
        write_model(&model, &MODEL).unwrap();
        write_set(&place, case);
        let mut saved = config(&model);
        let trained = open(&model, &saved, vec![TrainFile::new(place.as_path())]).unwrap();
        let set = Arc::new(Set::open(&place).unwrap());
        let predicted = numbers(&case["predicted"]);
        let check = |maker: &PolicyMaker, what: &str| {
            for (at, theirs) in case["frames"].as_array().unwrap().iter().enumerate() {
                let what = format!("case {number}, {what}, frame {at}");
                let [actions, state] = floats(maker, &set, at);
                close(&actions, &numbers(&theirs["normalized"]), &what);
                close(&state, &numbers(&theirs["state"]), &what);
                let own = set.step(0, at).unwrap().numbers("observation.state").unwrap();
                close(&maker.actions(&predicted, &own).unwrap(), &numbers(&theirs["restored"]), &what);
            }
        };
        check(&trained, "trained");

        // A checkpoint has it all, in files that lerobot has, too.
        trained.put_features(&mut saved);
        assert_eq!(
            (&saved["use_relative_actions"], &saved["relative_exclude_joints"]),
            (&json!(true), &json!(["gripper"]))
        );
        let mut names = Vec::new();
        for (name, bytes) in trained.files() {
            std::fs::write(model.join(&name), bytes).unwrap();
            names.push(name);
        }
        check(&open(&model, &saved, Vec::new()).unwrap(), "served");
        let step = |name: &str, at: usize| -> Json {
            let json: Json = serde_json::from_slice(&std::fs::read(model.join(name)).unwrap()).unwrap();
            json["steps"][at].clone()
        };
        let (pack, decode) = (step("policy_preprocessor.json", 2), step("policy_postprocessor.json", 0));
        assert_eq!(
            (&pack["registry_name"], &decode["registry_name"]),
            (&json!(groot_files::PACK), &json!("groot_n1_7_action_decode_v1"))
        );
        for (ours, theirs) in [&pack["config"], &decode["config"]].map(|own| (own, &case["pack"])) {
            assert_eq!(ours["modality_config"], theirs["modality_config"], "{number}");
            for (key, bounds) in theirs["raw_stats"]["relative_action"].as_object().unwrap() {
                close(&numbers(&ours["raw_stats"]["relative_action"][key]["min"]), &numbers(&bounds["min"]), key);
            }
        }

        // lerobot's own files, whose flat statistics of actions have as many numbers as they please.
        let tensors: Vec<(String, Vec<u8>, usize)> = case["tensors"]
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, values)| {
                let values = numbers(values);
                (name.clone(), values.iter().flat_map(|value| value.to_le_bytes()).collect(), values.len())
            })
            .collect();
        let views = tensors
            .iter()
            .map(|(name, bytes, len)| (name.clone(), TensorView::new(Dtype::F32, vec![*len], bytes).unwrap()));
        std::fs::write(model.join("stats.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
        let mut theirs = case["pack"].clone();
        theirs["embodiment_tag"] = "new_embodiment".into();
        let write = |config: &Json| {
            let pack =
                json!({ "registry_name": groot_files::PACK, "state_file": "stats.safetensors", "config": config });
            std::fs::write(model.join("policy_preprocessor.json"), json!({ "steps": [pack] }).to_string()).unwrap();
        };
        write(&theirs);
        check(&open(&model, &saved, Vec::new()).unwrap(), "lerobot's files");
        let error = |place: &str, value: Json| {
            let mut config = theirs.clone();
            *config.pointer_mut(place).unwrap() = value;
            write(&config);
            open(&model, &saved, Vec::new()).err().expect("an error")
        };
        let kind = error("/modality_config/action/action_configs/0/type", "EEF".into());
        assert!(kind.contains("must be of the type NON_EEF"), "{kind}");
        let place =
            error("/modality_config/state/modality_keys", json!(["left_gripper", "single_arm", "single_arm_2"]));
        assert!(place.contains("another place in the state"), "{place}");
        let rows = error("/raw_stats/relative_action/single_arm/min", json!([[1.0], [1.0, 2.0]]));
        assert!(rows.contains("raw_stats.relative_action.single_arm.min"), "{rows}");
    }
    assert!(groot_groups::read(&json!({})).unwrap().is_none());
}

/// Actions are not silently absolute where a config says that they are relative and the processor files have no groups of such.
#[test]
fn a_config_that_contradicts_its_processor_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (model, place) = (folder.path().join("model"), folder.path().join("set"));
    write_model(&model, &MODEL).unwrap();
    write_set(&place, &golden()["cases"][0]);
    let (relative, mut absolute) = (config(&model), config(&model));
    absolute["use_relative_actions"] = false.into();
    let sets = || vec![TrainFile::new(place.as_path())];
    for (name, bytes) in open(&model, &absolute, sets()).unwrap().files() {
        std::fs::write(model.join(&name), bytes).unwrap();
    }
    assert!(open(&model, &absolute, Vec::new()).is_ok());
    for sets in [Vec::new(), sets()] {
        let error = open(&model, &relative, sets).err().expect("an error");
        assert!(error.contains("use_relative_actions") && error.contains("no groups of relative actions"), "{error}");
    }
}
