use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use image::RgbImage;
use serde_json::{Value as Json, json};

use super::PolicyMaker;
use super::fastwam::smoothed;
use super::fastwam_spec::{put_cameras, read};
use super::observation::CameraClip;
use crate::config::{AudioLimits, Policy, TrainFile};
use crate::data::audio::{Samples, Segment};
use crate::data::column::ColumnValues;
use crate::data::decoder::MediaDecoder;
use crate::data::digits::{MODEL, write_model};
use crate::data::in_process::InProcess;
use crate::data::lerobot::Set;
use crate::data::limits::Limits;
use crate::data::media::{Sampling, Stretch, Video};
use crate::data::processor::{PolicyOptions, ProcessorFolders, ProcessorOptions};
use crate::data::sample::Sample;
use crate::message::{Grid, SampleId, Tower};

fn picture() -> RgbImage {
    RgbImage::from_raw(7, 5, (0..5 * 7 * 3).map(|at| (at * 37 % 256) as u8).collect()).unwrap()
}

fn config() -> Json {
    let visual = json!({"type": "VISUAL", "shape": [3, 64, 64]});
    json!({
        "type": "fastwam", "action_dim": 5, "proprio_dim": 3, "action_horizon": 8, "num_video_frames": 17,
        "action_video_freq_ratio": 2, "image_size": [64, 128],
        "input_features": {"observation.images.wrist": visual, "observation.images.front": visual,
            "observation.state": {"type": "STATE", "shape": [3]}},
    })
}

/// Numbers of `torch.nn.functional.interpolate(…, mode="bilinear", antialias=True)`.
#[test]
fn pictures_are_resized_as_lerobot_does() {
    let cases = [
        ([2, 4], [-0.473_389, -0.278_805, -0.14447, 0.402_801, 0.209_337]),
        ([8, 3], [-0.253_782, -0.393_838, -0.28812, -0.072_759, -0.392_717]),
    ];
    for ([rows, columns], expected) in cases {
        let found = smoothed(&picture(), rows, columns);
        for (at, expected) in [0, 1, 5, 11, found.len() - 1].into_iter().zip(expected) {
            assert!((found[at] - expected).abs() < 2e-6, "{rows}x{columns}, {at}: {} {expected}", found[at]);
        }
    }
    let same = smoothed(&picture(), 5, 7);
    assert!((same[4] - (2.0 * 148.0 / 255.0 - 1.0)).abs() < 1e-6);
}

#[test]
fn cameras_lie_side_by_side_by_their_names() {
    let spec = read(&config()).unwrap();
    assert_eq!(spec.cameras, ["observation.images.front", "observation.images.wrist"]);
    let frames = spec.frames.unwrap();
    assert_eq!(
        (frames.steps.as_slice(), spec.pictures.resolution),
        ([0, 2, 4, 6, 8, 10, 12, 14, 16].as_slice(), [64, 64])
    );
    let [dark, light] = [0, 255].map(|value| CameraClip {
        camera: String::new(),
        pictures: vec![RgbImage::from_pixel(3, 2, image::Rgb([value; 3])); 9],
    });
    let item = frames.item(&[&dark, &light]);
    assert_eq!((item.grid, item.num_features), (Grid { t: 9, h: 64, w: 128 }, 3 * 2 * 4));
    let line = &item.pixels[..128 * 3];
    assert!(line[..64 * 3].iter().all(|value| (value + 1.0).abs() < 1e-6));
    assert!(line[64 * 3..].iter().all(|value| (value - 1.0).abs() < 1e-6));
    assert_eq!(item.pixels.len(), 9 * 64 * 128 * 3);
}

/// Counts the pictures that it decodes.
#[derive(Default)]
struct Counting(AtomicUsize);

impl MediaDecoder for Counting {
    fn picture(&self, bytes: &[u8], limits: &Limits) -> Result<RgbImage, String> {
        self.0.fetch_add(1, Ordering::Relaxed);
        InProcess.picture(bytes, limits)
    }

    fn clip(&self, bytes: &[u8], fps: Option<f64>, limits: &Limits, sampling: &Sampling) -> Result<Video, String> {
        InProcess.clip(bytes, fps, limits, sampling)
    }

    fn stretch(&self, bytes: &[u8], stretch: &Stretch, limits: &Limits) -> Result<Vec<RgbImage>, String> {
        InProcess.stretch(bytes, stretch, limits)
    }

    fn sound(&self, bytes: &[u8], rate: u32, limits: &AudioLimits, segment: Segment) -> Result<Samples, String> {
        InProcess.sound(bytes, rate, limits, segment)
    }
}

/// Returns the config for a set that lerobot wrote, which has the first of the cameras alone, and the place of the set.
fn small() -> (Json, PathBuf) {
    let mut config = config();
    for (key, value) in
        [("action_dim", 3), ("action_horizon", 4), ("num_video_frames", 5), ("action_video_freq_ratio", 1)]
    {
        config[key] = value.into();
    }
    config["sizes"] = json!({"text_encoder": {"model_type": "umt5", "vocab_size": 400}});
    (config, Path::new(env!("CARGO_MANIFEST_DIR")).join("data/goldens/lerobot/image"))
}

fn opened(config: &Json, set: &Path, settings: Policy, decoder: Arc<dyn MediaDecoder>) -> PolicyMaker {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    let policy = PolicyOptions { settings, sets: vec![TrainFile::new(set)], ..PolicyOptions::default() };
    let options = ProcessorOptions { policy, ..ProcessorOptions::default() };
    PolicyMaker::open(ProcessorFolders::of(folder.path()), config, &options, decoder).unwrap()
}

/// Pictures of all cameras lie side by side: there is no place for one that is missing.
#[test]
fn a_set_without_one_of_the_cameras_is_refused() {
    let (config, place) = small();
    let set = Set::open(&place).unwrap();
    let expect = |config: &Json, settings: Policy| opened(config, &place, settings, Arc::new(InProcess)).expect(&set);
    let error = expect(&config, Policy::default()).unwrap_err();
    assert!(error.contains("has no camera observation.images.wrist, which FastWAM needs"), "{error}");
    let cameras = [("observation.images.front".to_owned(), "observation.images.wrist".to_owned())];
    let error = expect(&config, Policy { cameras: cameras.into(), ..Policy::default() }).unwrap_err();
    assert!(error.contains("has no camera observation.images.front") && error.contains("its cameras are"), "{error}");
    let mut alone = config.clone();
    alone["input_features"].as_object_mut().unwrap().remove("observation.images.wrist");
    assert_eq!(expect(&alone, Policy::default()), Ok(()));
}

/// The step's own picture is the first of the frames, and is not decoded once more.
#[test]
fn frames_of_a_sample_are_decoded_once() {
    let (mut config, set) = small();
    config["image_size"] = json!([64, 64]);
    config["input_features"].as_object_mut().unwrap().remove("observation.images.wrist");
    let decoder = Arc::new(Counting::default());
    let maker = opened(&config, &set, Policy::default(), decoder.clone());
    let step = Arc::new(Set::open(&set).unwrap()).step(0, 0).unwrap();
    let sample = maker.learn(SampleId(0), &step).unwrap();
    assert_eq!(decoder.0.load(Ordering::Relaxed), 5);
    let seen = maker.observe(&maker.observation(&step).unwrap()).unwrap();
    let clip = |sample: &Sample| sample.media.iter().find(|item| item.tower == Tower::Vae).unwrap().clone();
    let (all, first) = (clip(&sample), clip(&seen));
    assert_eq!((all.grid.t, first.grid.t), (5, 1));
    assert_eq!(all.pixels[..first.pixels.len()], first.pixels);
}

#[test]
fn a_frame_of_the_latent_counts_where_one_of_its_pixels_frames_does() {
    let frames = read(&config()).unwrap().frames.unwrap();
    let of = |inside: usize, masks| {
        let is_pad: Vec<bool> = (0..9).map(|at| at >= inside).collect();
        frames.weights(&is_pad, masks).values
    };
    assert_eq!(of(9, true), ColumnValues::F32(vec![1.0, 1.0]));
    assert_eq!(of(6, true), ColumnValues::F32(vec![1.0, 1.0]));
    assert_eq!(of(5, true), ColumnValues::F32(vec![1.0, 0.0]));
    assert_eq!(of(1, true), ColumnValues::F32(vec![0.0, 0.0]));
    assert_eq!(of(1, false), ColumnValues::F32(vec![1.0, 1.0]));
}

/// The expected actions are those of lerobot's `FastWAMActionToggleProcessorStep`, and so is the step in the processor files.
#[test]
fn toggled_numbers_are_signs() {
    let mut config = config();
    config["toggle_action_dimensions"] = json!([-1, 0]);
    let spec = read(&config).unwrap();
    let mut actions = vec![0.0, 0.3, 7.0, -2.0, 0.9, 0.5, 0.3, 7.0, -2.0, 0.2];
    spec.frames.as_ref().unwrap().toggle(&mut actions, 5);
    assert_eq!(actions, [1.0, 0.3, 7.0, -2.0, -1.0, 0.0, 0.3, 7.0, -2.0, 1.0]);
    let files = super::files::write(&spec, &Default::default(), &[], &Default::default()).unwrap();
    let (_, after) = files.iter().find(|(name, _)| name == "policy_postprocessor.json").unwrap();
    let after: Json = serde_json::from_slice(after).unwrap();
    let step = json!({"registry_name": "fastwam_action_toggle_processor", "config": {"toggle_dimensions": [4, 0]}});
    assert_eq!(after["steps"][1], step);
}

/// lerobot refuses other heights than `image_size`'s, and widths whose sum is another.
#[test]
fn a_checkpoint_has_the_sizes_of_pictures_side_by_side() {
    let mut saved = config();
    saved["input_features"]["observation.images.wrist"]["shape"] = json!([3, 48, 32]);
    let spec = read(&saved).unwrap();
    put_cameras(&spec, &mut saved);
    for camera in &spec.cameras {
        let visual = json!({"type": "VISUAL", "shape": [3, 64, 64]});
        assert_eq!(saved["input_features"][camera.as_str()], visual, "{camera}");
    }
    assert_eq!(saved["input_features"]["observation.state"], config()["input_features"]["observation.state"]);
}

#[test]
fn errors_name_the_key() {
    let error = |key: &str, value: Json| {
        let mut config = config();
        config[key] = value;
        read(&config).unwrap_err()
    };
    let cases = [
        ("proprio_dim", Json::Null, "`proprio_dim` is null"),
        ("image_size", json!([64, 100]), "a multiple of 32×32 pixels"),
        ("num_video_frames", json!(16), "one more than a multiple of 8"),
        ("toggle_action_dimensions", json!([5]), "`toggle_action_dimensions` has 5, but an action has 5 numbers"),
        ("toggle_action_dimensions", json!([-6]), "`toggle_action_dimensions` has -6"),
        ("toggle_action_dimensions", json!([0.5]), "`toggle_action_dimensions` is [0.5], not whole numbers"),
        ("input_features", json!({"observation.state": {"type": "STATE", "shape": [3]}}), "no camera"),
        ("normalization_mapping", json!({"VISUAL": "MEAN_STD"}), "`VISUAL` is \"MEAN_STD\""),
    ];
    for (key, value, expected) in cases {
        let message = error(key, value);
        assert!(message.contains(expected), "{message}");
    }
}
