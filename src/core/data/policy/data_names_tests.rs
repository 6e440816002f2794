//! Tests of the names of a policy's data, which the settings of its run and the policy's folder give.

use std::path::Path;
use std::sync::Arc;

use image::RgbImage;
use serde_json::{Value as Json, json};

use super::data_names::DataNames;
use super::tests::{Bench, CAMERA, config};
use crate::config::{Normalization, Policy};
use crate::data::lerobot::{Feature, Set, SetWriter, Value};
use crate::data::processor::ProcessorOptions;

const SIDE: &str = "observation.images.side";
const WRIST: &str = "observation.images.wrist";
const JOINTS: &str = "observation.joints";

/// A set of one short episode with features of these names.
fn set(folder: &Path, cameras: &[&str], [state, action]: [&str; 2]) {
    let mut features: Vec<Feature> = cameras.iter().map(|key| Feature::images(key, 28, 28)).collect();
    features.extend([state, action].map(|key| Feature::vector(key, &["x", "y", "gripper"])));
    let mut writer = SetWriter::create(folder, 10, "arm", features).unwrap();
    for step in 0..6u8 {
        let picture = RgbImage::from_pixel(28, 28, image::Rgb([step * 20; 3]));
        let numbers = [f32::from(step), 0.5 - f32::from(step), f32::from(step % 2)];
        let mut values: Vec<(&str, Value<'_>)> = cameras.iter().map(|&key| (key, Value::Picture(&picture))).collect();
        values.extend([state, action].map(|key| (key, Value::Numbers(&numbers))));
        writer.add_frame(&values).unwrap();
    }
    writer.end_episode("go").unwrap();
    writer.finish().unwrap();
}

fn settings() -> Policy {
    let mode = Some(Normalization::MeanStd);
    Policy { state_normalization: mode, action_normalization: mode, ..Policy::default() }
}

fn cameras(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|&(key, name)| (key.to_owned(), name.to_owned())).collect()
}

/// A bench whose folder is that of a checkpoint of a run on such a set, the checkpoint's config, and the set.
fn trained() -> (Bench, Json, tempfile::TempDir) {
    let (bench, data) = (Bench::new(), tempfile::tempdir().unwrap());
    set(data.path(), &[SIDE], [JOINTS, "control"]);
    let own = Policy {
        cameras: cameras(&[(SIDE, CAMERA)]).into_iter().collect(),
        state: JOINTS.to_owned(),
        action: "control".to_owned(),
        ..settings()
    };
    let maker = bench.open(&config(), &Bench::options(&[data.path()], own)).unwrap();
    let mut saved = config();
    maker.put_features(&mut saved);
    for (name, contents) in maker.files() {
        std::fs::write(bench.folder.path().join(name), contents).unwrap();
    }
    (bench, saved, data)
}

#[test]
fn a_checkpoint_keeps_what_its_data_is_called() {
    let (bench, saved, data) = trained();
    let before = std::fs::read(bench.folder.path().join("policy_preprocessor.json")).unwrap();
    let before: Json = serde_json::from_slice(&before).unwrap();
    let expected = json!({ SIDE: CAMERA, JOINTS: "observation.state", "control": "action" });
    assert_eq!(before["steps"][0]["config"]["rename_map"], expected);
    let names =
        DataNames { cameras: cameras(&[(SIDE, CAMERA)]), state: JOINTS.to_owned(), action: "control".to_owned() };
    let served = bench.open(&saved, &ProcessorOptions::default()).unwrap();
    assert_eq!(served.data_names(), names);
    let step = Arc::new(Set::open(data.path()).unwrap()).step(0, 2).unwrap();
    let seen = served.observation(&step).unwrap();
    assert_eq!((seen.images[0].0.as_str(), seen.state), (CAMERA, vec![2.0, -1.5, 0.0]));
    // A run that goes on from it on such data need not name it again.
    let again = bench.open(&saved, &Bench::options(&[data.path()], settings())).unwrap();
    assert_eq!(again.data_names(), names);
    assert_eq!(again.recorded(&step).unwrap().values[..3], [2.0, -1.5, 0.0]);
}

/// The folder has lerobot's own files, which name cameras and states; the settings of a run and the policy's own names override them.
#[test]
fn names_of_a_folder_fill_what_a_run_leaves_open() {
    let (bench, saved, _) = trained();
    let other = tempfile::tempdir().unwrap();
    set(other.path(), &[CAMERA, SIDE], ["observation.state", "action"]);
    let open = |own: Policy| bench.open(&saved, &Bench::options(&[other.path()], own)).map(|maker| maker.data_names());
    assert_eq!(open(settings()).unwrap(), DataNames::default());
    let given = Policy { cameras: cameras(&[(SIDE, WRIST)]).into_iter().collect(), ..settings() };
    assert_eq!(open(given).unwrap().cameras, cameras(&[(SIDE, WRIST)]));

    let path = bench.folder.path().join("policy_preprocessor.json");
    let mut before: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    before["steps"][0]["config"]["rename_map"] = json!({ SIDE: WRIST, "observation.images.no": CAMERA, "x": "y" });
    std::fs::write(&path, before.to_string()).unwrap();
    assert_eq!(open(settings()).unwrap(), DataNames { cameras: cameras(&[(SIDE, WRIST)]), ..DataNames::default() });
}

#[test]
fn a_folder_does_not_choose_between_two_features_of_one_name() {
    let (bench, saved, _) = trained();
    let other = tempfile::tempdir().unwrap();
    set(other.path(), &[CAMERA], [JOINTS, "action"]);
    let path = bench.folder.path().join("policy_preprocessor.json");
    let mut before: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    before["steps"][0]["config"]["rename_map"] = json!({ JOINTS: "observation.state", "action": "observation.state" });
    std::fs::write(&path, before.to_string()).unwrap();
    let open = |own: Policy| bench.open(&saved, &Bench::options(&[other.path()], own));
    let error = open(settings()).err().unwrap();
    assert!(error.contains("renames both") && error.contains("name one in policy.state"), "{error}");
    let chosen = open(Policy { state: JOINTS.to_owned(), ..settings() }).unwrap();
    assert_eq!(chosen.data_names().state, JOINTS);
}
