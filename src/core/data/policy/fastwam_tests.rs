use image::RgbImage;
use serde_json::{Value as Json, json};

use super::fastwam::smoothed;
use super::fastwam_spec::{put_cameras, read};
use super::observation::Clip;
use crate::data::column::ColumnValues;
use crate::message::Grid;

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
    assert_eq!((frames.steps.as_slice(), spec.resolution), ([0, 2, 4, 6, 8, 10, 12, 14, 16].as_slice(), [64, 64]));
    let [dark, light] = [0, 255].map(|value| Clip {
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
        ("image_size", json!([64, 100]), "whole places of 32×32 pixels"),
        ("num_video_frames", json!(16), "one more than a multiple of 8"),
        ("toggle_action_dimensions", json!([-1]), "`toggle_action_dimensions` is [-1]"),
        ("input_features", json!({"observation.state": {"type": "STATE", "shape": [3]}}), "no camera"),
        ("normalization_mapping", json!({"VISUAL": "MEAN_STD"}), "`VISUAL` is \"MEAN_STD\""),
    ];
    for (key, value, expected) in cases {
        let message = error(key, value);
        assert!(message.contains(expected), "{message}");
    }
}
