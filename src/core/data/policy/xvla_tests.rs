//! Tests against the samples that lerobot's processors of X-VLA make of a frame, as `tests/oracle/make_xvla_samples.py` writes them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use image::RgbImage;
use serde_json::{Value as Json, json};

use super::tests::{CAMERA, column as floats, numbers};
use super::{Observation, PolicyMaker};
use crate::config::{Data, Policy, TrainFile};
use crate::data::column::ColumnValues;
use crate::data::dataset::Dataset;
use crate::data::in_process::InProcess;
use crate::data::lerobot::{Feature, Set, SetWriter, Value};
use crate::data::maker::SampleMaker;
use crate::data::processor::{PolicyOptions, ProcessorFolders, ProcessorOptions};
use crate::data::sample::Sample;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens/xvla")
}

fn set() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens/lerobot/image")
}

fn json_of(name: &str) -> Json {
    serde_json::from_slice(&std::fs::read(goldens().join(name)).unwrap()).unwrap()
}

fn open_in(folder: &Path, config: &Json, options: &ProcessorOptions) -> Result<PolicyMaker, String> {
    let folders = ProcessorFolders::of(folder);
    PolicyMaker::open(folders, config, options, Arc::new(InProcess)).map_err(|error| error.to_string())
}

fn open(config: &Json, settings: Policy) -> Result<PolicyMaker, String> {
    let sets = vec![TrainFile::new(&*set())];
    let policy = PolicyOptions { settings, sets, seed: 1, ..PolicyOptions::default() };
    open_in(&goldens(), config, &ProcessorOptions { policy, ..ProcessorOptions::default() })
}

fn sample(config: &Json, settings: Policy) -> Sample {
    let data = Data { shuffle: false, ..Data::of_files(vec![TrainFile::new(&*set())]) };
    let maker = Box::new(open(config, settings).unwrap()) as Box<dyn SampleMaker>;
    Dataset::open(&data, maker, 1).unwrap().sample(9).unwrap()
}

fn column<'a>(sample: &'a Sample, name: &str) -> &'a ColumnValues {
    &sample.columns.iter().find(|column| column.name == name).unwrap_or_else(|| panic!("no {name}")).values
}

#[test]
fn samples_are_what_lerobots_model_sees() {
    let (config, golden) = (json_of("config.json"), json_of("expected.json"));
    let sample = sample(&config, Policy::default());
    // Two by three places of the last stage, and their mean.
    let num_features = 7;
    assert_eq!(sample.input_ids[..num_features], vec![300; num_features]);
    let prompt: Vec<i64> =
        golden["prompts"]["open the drawer"].as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
    assert_eq!(sample.input_ids[num_features..], prompt);
    assert_eq!(floats(&sample, "state"), numbers(&golden["state"]));
    assert_eq!(floats(&sample, "actions"), numbers(&golden["actions"]));
    // All numbers of the action space count, those that the data lacks included.
    assert_eq!(floats(&sample, "action_weights"), [1.0; 80]);
    assert_eq!(sample.meta.num_targets, 80);
    assert_eq!(column(&sample, "domain"), &ColumnValues::I64(vec![golden["domain"].as_i64().unwrap()]));
    let item = &sample.media[0];
    assert_eq!((item.num_features, item.grid.h, item.grid.w, item.pixels.len()), (num_features, 6, 10, 3 * 24 * 40));
    assert_eq!((sample.media.len(), sample.meta.num_tokens), (1, 16));
}

#[test]
fn pictures_are_normalized_and_fitted_as_lerobot_does() {
    let golden = json_of("expected.json");
    let step = Arc::new(Set::open(&set()).unwrap()).step(1, 2).unwrap();
    let picture = step.pictures(CAMERA, &[0], &InProcess, &crate::data::limits::Limits::NONE).unwrap().remove(0);
    for (size, theirs) in golden["pictures"].as_object().unwrap() {
        let (rows, columns) = size.split_once('x').unwrap();
        let [rows, columns]: [usize; 2] = [rows, columns].map(|side| side.parse().unwrap());
        let mut config = json_of("config.json");
        config["resize_imgs_with_padding"] = json!([rows, columns]);
        let spec = super::spec::SampleSpec::of(&config).unwrap();
        let item = spec.xvla.as_ref().unwrap().item(&picture).unwrap();
        let at = |channel: usize, y: usize, x: usize| {
            item.pixels[((y / 4) * (columns / 4) + x / 4) * 48 + channel * 16 + (y % 4) * 4 + x % 4]
        };
        let all = (0..3).flat_map(|channel| (0..rows).flat_map(move |y| (0..columns).map(move |x| (channel, y, x))));
        let ours: Vec<f32> = all.step_by(37).map(|(channel, y, x)| at(channel, y, x)).collect();
        for (ours, theirs) in ours.iter().zip(numbers(theirs)) {
            assert!((ours - theirs).abs() < 5e-6, "{size}: {ours} {theirs}");
        }
    }
    // Without a size to resize to, pictures must be as the config says.
    let mut plain = json_of("config.json");
    plain["resize_imgs_with_padding"] = Json::Null;
    assert_eq!(sample(&plain, Policy::default()).media[0].num_features, 3 * 4 + 1);
    let maker = open(&plain, Policy::default()).unwrap();
    let images = vec![(CAMERA.to_owned(), RgbImage::new(32, 32))];
    let seen = Observation { images, state: vec![0.0; 3], prompt: "go".into(), begun: Vec::new() };
    let error = maker.observe(&seen).unwrap_err().to_string();
    assert!(
        error.contains("has a picture of 32×32, but the policy takes 48×64: set resize_imgs_with_padding"),
        "{error}"
    );
}

#[test]
fn prompts_have_one_length() {
    let (config, golden) = (json_of("config.json"), json_of("expected.json"));
    let ids = |config: &Json, prompt: &str| {
        let images = vec![(CAMERA.to_owned(), RgbImage::new(64, 48))];
        let seen = Observation { images, state: vec![0.0; 3], prompt: prompt.to_owned(), begun: Vec::new() };
        open(config, Policy::default()).unwrap().observe(&seen).unwrap().input_ids[7..].to_vec()
    };
    for (prompt, theirs) in golden["prompts"].as_object().unwrap() {
        let theirs: Vec<i64> = theirs.as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
        assert_eq!(ids(&config, prompt), theirs, "{prompt}");
    }
    let mut left = config;
    left["tokenizer_padding_side"] = "left".into();
    assert_eq!(ids(&left, "open"), [1, 1, 1, 1, 1, 1, 0, 269, 2]);
}

#[test]
fn domains_come_from_settings_files_and_steps() {
    let config = json_of("config.json");
    let of = |config: &Json, domain| match column(&sample(config, Policy { domain, ..Policy::default() }), "domain") {
        ColumnValues::I64(values) => values[0],
        ColumnValues::F32(_) => panic!("a number"),
    };
    assert_eq!((of(&config, None), of(&config, Some(7))), (4, 7));
    let error = open(&config, Policy { domain: Some(9), ..Policy::default() }).err().unwrap();
    assert!(error.contains("domain 9 does not exist: the policy has 9"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let (place, names) = (folder.path().join("set"), ["a", "b", "c"]);
    let features = vec![
        Feature::images(CAMERA, 48, 64),
        Feature::vector("observation.state", &names),
        Feature::vector("action", &names),
        Feature::vector("robot", &["number"]),
    ];
    let mut writer = SetWriter::create(&place, 10, "several", features).unwrap();
    for robot in [2.0, 9.0, 0.5] {
        let (picture, numbers) = (RgbImage::new(64, 48), [0.0; 3]);
        let of = |key| (key, Value::Numbers(&numbers));
        let frame = [
            (CAMERA, Value::Picture(&picture)),
            of("observation.state"),
            of("action"),
            ("robot", Value::Numbers(&[robot])),
        ];
        writer.add_frame(&frame).unwrap();
    }
    writer.end_episode("go").unwrap();
    writer.finish().unwrap();
    let mut by_step = config.clone();
    by_step["domain_feature_key"] = "robot".into();
    let maker = open(&by_step, Policy::default()).unwrap();
    let set = Arc::new(Set::open(&place).unwrap());
    let learned = |frame| maker.learn(crate::message::SampleId(0), &set.step(0, frame).unwrap());
    assert_eq!(column(&learned(0).unwrap(), "domain"), &ColumnValues::I64(vec![2]));
    for (frame, part) in [(1, "robot is [9.0], but a domain is a number from 0 to 8"), (2, "robot is [0.5]")] {
        let error = learned(frame).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    // A set without the feature has the domain of the files.
    assert_eq!(of(&by_step, None), 4);
}

/// A folder that was trained in is served as lerobot's, and lerobot's own files are read.
#[test]
fn processor_files_are_lerobots() {
    let config = json_of("config.json");
    let trained = open(&config, Policy { domain: Some(6), ..Policy::default() }).unwrap();
    let mut saved = config.clone();
    trained.put_features(&mut saved);
    let added: Vec<&String> =
        saved.as_object().unwrap().keys().filter(|key| config.get(key.as_str()).is_none()).collect();
    assert!(added.is_empty(), "{added:?}");
    let folder = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(goldens().join(name), folder.path().join(name)).unwrap();
    }
    for (name, contents) in trained.files() {
        std::fs::write(folder.path().join(name), contents).unwrap();
    }
    let steps = |folder: &Path, name: &str| -> Vec<Json> {
        let json: Json = serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap();
        let steps = json["steps"].as_array().unwrap().iter();
        steps
            .map(|step| json!([step["registry_name"], step["config"].as_object().unwrap().keys().collect::<Vec<_>>()]))
            .collect()
    };
    for name in ["policy_preprocessor.json", "policy_postprocessor.json"] {
        assert_eq!(steps(folder.path(), name), steps(&goldens(), name), "{name}");
    }
    let served = open_in(folder.path(), &saved, &ProcessorOptions::default()).unwrap();
    let images = vec![(CAMERA.to_owned(), RgbImage::new(64, 48))];
    let seen = Observation { images, state: vec![0.5; 3], prompt: "open".into(), begun: Vec::new() };
    let asked = served.observe(&seen).unwrap();
    assert_eq!(asked, trained.observe(&seen).unwrap());
    assert_eq!(column(&asked, "domain"), &ColumnValues::I64(vec![6]));
    let predicted: Vec<f32> = (0..80).map(|at| at as f32).collect();
    assert_eq!(served.actions(&predicted, &seen.state).unwrap()[..6], [0.0, 1.0, 2.0, 20.0, 21.0, 22.0]);
    assert!(
        trained.notes().iter().any(|note| note.contains("without the dropout") && note.contains("drop_path_rate 0.1"))
    );

    let with_step = |file: &str, step: Json, at: usize| {
        let path = folder.path().join(file);
        let before = std::fs::read(&path).unwrap();
        let mut json: Json = serde_json::from_slice(&before).unwrap();
        json["steps"][at] = step;
        std::fs::write(&path, json.to_string()).unwrap();
        let error = open_in(folder.path(), &saved, &ProcessorOptions::default()).err().unwrap();
        std::fs::write(&path, before).unwrap();
        error
    };
    let step = |name: &str, config: Json| json!({ "registry_name": name, "config": config });
    for (file, step, at, part) in [
        (
            "policy_preprocessor.json",
            step("xvla_image_scale", json!({})),
            3,
            "\"xvla_image_scale\", which is not implemented",
        ),
        ("policy_preprocessor.json", step("device_processor", json!({})), 4, "no step \"xvla_imagenet_normalize\""),
        (
            "policy_preprocessor.json",
            step("xvla_add_domain_id", json!({})),
            5,
            "domain_id must be a whole number, found null",
        ),
        ("policy_preprocessor.json", step("xvla_imagenet_normalize", json!({"image_keys": ["a"]})), 4, "image_keys is"),
        (
            "policy_postprocessor.json",
            step("xvla_rotation_6d_to_axis_angle", json!({})),
            1,
            "\"xvla_rotation_6d_to_axis_angle\"",
        ),
    ] {
        let error = with_step(file, step, at);
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn action_spaces_say_what_counts() {
    let mut config = json_of("config.json");
    (config["action_mode"], config["max_action_dim"]) = ("auto".into(), 5.into());
    let of_auto = sample(&config, Policy::default());
    assert_eq!(floats(&of_auto, "action_weights"), [[1.0, 1.0, 1.0, 0.0, 0.0]; 4].concat());
    assert_eq!(of_auto.meta.num_targets, 12);
    config["action_mode"] = "franka_joint7".into();
    let row: Vec<f32> = (0..20).map(|at| f32::from(at < 7)).collect();
    assert_eq!(floats(&sample(&config, Policy::default()), "action_weights"), row.repeat(4));
    for (key, value, part) in [
        ("action_mode", json!("wheel"), "`action_mode` is \"wheel\""),
        ("pad_language_to", json!("longest"), "`pad_language_to` is \"longest\""),
        ("tokenizer_padding_side", json!("both"), "`tokenizer_padding_side` is \"both\""),
        ("resize_imgs_with_padding", json!([24, 42]), "24×42 cannot be divided into blocks of 4×4 pixels"),
        ("resize_imgs_with_padding", json!([24]), "`resize_imgs_with_padding` has 24 and null"),
        ("max_state_dim", json!(2), "but at most 2 numbers fit"),
        ("use_relative_actions", json!(true), "X-VLA does not support actions relative"),
        ("input_features", json!({ "observation.state": { "type": "STATE", "shape": [3] } }), "which X-VLA needs"),
    ] {
        let mut config = json_of("config.json");
        config[key] = value;
        let error = open(&config, Policy::default()).err().unwrap();
        assert!(error.contains(part), "{error}");
    }
}
