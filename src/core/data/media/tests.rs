//! Each family's processor against the one of transformers.

use image::{Rgb, RgbImage};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::*;
use crate::config::{ImageLimits, VideoLimits};
use crate::data::error::DataError;
use crate::data::processor::ProcessorFolders;
use crate::data::tokenizer::Tokenizer;

const PLACEHOLDER: &str = "<p>";

#[derive(Deserialize)]
struct Case {
    config: Json,
    image: Json,
    video: Json,
    width: u32,
    height: u32,
    seed: u32,
    /// 0: a picture.
    frames: usize,
    fps: Option<f64>,
    #[serde(default)]
    interval: Option<i64>,
    text: String,
    media: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    grid: [u32; 3],
    features: usize,
    len: usize,
    sum: f64,
    stride: usize,
    values: Vec<f32>,
}

/// Returns a model folder with these files and a tokenizer of one token a byte.
fn folder(image: &Json, video: &Json) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, json: &Json| std::fs::write(folder.path().join(name), json.to_string()).unwrap();
    let special = [PLACEHOLDER, "<img>", "</img>", "<|vision_start|>", "<|vision_end|>"];
    let added = special.iter().zip(0..).map(|(token, id)| {
        let flags = json!({"single_word": false, "lstrip": false, "rstrip": false, "normalized": false});
        let mut token = json!({"id": id, "content": token, "special": true});
        token.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
        token
    });
    let model = json!({"type": "WordLevel", "vocab": {}, "unk_token": "<p>"});
    write("tokenizer.json", &json!({"version": "1.0", "added_tokens": added.collect::<Vec<_>>(), "model": model}));
    write("preprocessor_config.json", image);
    if video.as_object().is_some_and(|video| !video.is_empty()) {
        write("video_preprocessor_config.json", video);
    }
    folder
}

fn open_with(config: &Json, image: &Json, video: &Json) -> Result<Option<Box<dyn MediaProcessor>>, DataError> {
    let folder = folder(image, video);
    let mut config = config.clone();
    config["image_token_id"] = json!(0);
    let tokenizer = Tokenizer::open(folder.path(), &config, &Json::Null).unwrap();
    let limits = (&ImageLimits::default(), &VideoLimits::default());
    open(ProcessorFolders::of(folder.path()), &config, &tokenizer, limits)
}

fn noise(width: u32, height: u32, seed: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        Rgb([(x * 7 + y * seed) as u8, (x * y + 31 * seed) as u8, (((x / 5 + y / 3) % 2) * 200 + 20) as u8])
    })
}

fn text(expansion: &Expansion) -> String {
    let spell = |piece: &Piece| match piece {
        Piece::Text(text) => text.clone(),
        Piece::Number(first) => first.to_string(),
        Piece::Run(run) => PLACEHOLDER.repeat(run.len()),
    };
    expansion.pieces.iter().map(spell).collect()
}

#[test]
fn equal_to_transformers() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../goldens/media.json")).unwrap();
    assert!(cases.len() >= 40);
    let (mut differ, mut num_values) = (0, 0);
    for case in cases {
        let name = format!("{} {}×{} {} frames", case.config["model_type"], case.width, case.height, case.frames);
        let processor = open_with(&case.config, &case.image, &case.video).unwrap().unwrap();
        let expansion = if case.frames == 0 {
            let picture = noise(case.width, case.height, case.seed);
            let num_features = processor.num_image_features(case.width as usize, case.height as usize).unwrap();
            assert_eq!(num_features, case.media.iter().map(|item| item.features).sum::<usize>(), "{name}");
            processor.image(&picture).unwrap()
        } else {
            let taken = processor.sampling().indices(case.frames, case.fps);
            let frames = taken.iter().map(|&index| noise(case.width, case.height, case.seed + index as u32)).collect();
            processor.video(&Video::new(frames, &taken, case.frames, case.fps.unwrap())).unwrap()
        };
        assert_eq!(text(&expansion), case.text, "{name}");
        if let Some(interval) = case.interval {
            let runs =
                expansion.pieces.iter().filter_map(|piece| if let Piece::Run(run) = piece { Some(run) } else { None });
            assert!(runs.clone().count() > 0 && runs.into_iter().all(|run| run.interval == interval), "{name}");
        }
        assert_eq!(expansion.media.len(), case.media.len(), "{name}");
        for (ours, theirs) in expansion.media.iter().zip(&case.media) {
            assert_eq!([ours.grid.t, ours.grid.h, ours.grid.w], theirs.grid, "{name}");
            assert_eq!((ours.num_features, ours.pixels.len()), (theirs.features, theirs.len), "{name}");
            assert_eq!(ours.pixels.len(), ours.grid.num_cells() * processor.patch_dim(), "{name}");
            // One step of a byte is at least 1/255/0.26: rounding in the two resizers may differ by one, seldom.
            let step = 1.0 / 255.0 / 0.26;
            for (ours, theirs) in ours.pixels.iter().step_by(theirs.stride).zip(&theirs.values) {
                let error = (ours - theirs).abs();
                assert!(error < step * 1.1, "{name}: {ours} {theirs}");
                differ += usize::from(error > 1e-4);
                num_values += 1;
            }
            let sum: f64 = ours.pixels.iter().map(|&value| f64::from(value)).sum();
            assert!((sum - theirs.sum).abs() / theirs.len as f64 <= 2e-4, "{name}: {sum} {}", theirs.sum);
        }
    }
    assert!(differ * 100 <= num_values, "{differ} of {num_values}");
}

#[test]
fn frames_are_sampled_as_transformers_does() {
    let cases: Vec<Json> = serde_json::from_str(include_str!("../goldens/sampling.json")).unwrap();
    assert!(cases.len() > 300);
    for case in cases {
        let number = |index: usize| case[index].as_f64().unwrap();
        let spread = match case[0].as_str().unwrap() {
            "parts" => Spread::Parts { multiple: 2 },
            "fractional" => Spread::Fractional,
            "ends" => Spread::Ends,
            "seconds" => Spread::Seconds,
            kind => Spread::Whole { middle: kind == "middle" },
        };
        let (min_frames, max_frames) = (number(4) as usize, number(5) as usize);
        let sampling = Sampling { fps: number(3), num_frames: None, min_frames, max_frames, spread };
        let indices = sampling.indices(number(1) as usize, Some(number(2)));
        let step = (indices.len() / 12).max(1);
        let shown: Vec<usize> = indices.iter().copied().step_by(step).collect();
        // Rounding up in float32 leads transformers behind the last frame, where it fails.
        let index = |index: &Json| (index.as_u64().unwrap() as usize).min(number(1) as usize - 1);
        let expected: Vec<usize> = case.as_array().unwrap()[7..].iter().map(index).collect();
        assert_eq!((indices.len(), shown), (number(6) as usize, expected), "{case}");
    }
    let all =
        Sampling { fps: 2.0, num_frames: None, min_frames: 4, max_frames: 8, spread: Spread::Parts { multiple: 2 } };
    assert_eq!(all.indices(1, Some(30.0)), [0]);
    assert_eq!(all.indices(7, None).len(), 7);
    assert_eq!(all.indices(80, None).len(), 8);
}

#[test]
fn what_does_not_go_together_is_said() {
    let error = |config: Json, image: Json| open_with(&config, &image, &json!({})).err().unwrap().to_string();
    for (config, image, part) in [
        (
            json!({"vision_config": {"model_type": "qwen3_vl", "patch_size": 16}}),
            json!({"patch_size": 14}),
            "patch_size is 14, but config.json says 16",
        ),
        (
            json!({"vision_config": {"model_type": "qwen2_5_vl", "spatial_merge_size": 3}}),
            json!({}),
            "merge_size is 2, but config.json says 3",
        ),
        (json!({"vision_config": {"model_type": "x"}}), json!({}), "\"x\": its image processor is not supported"),
        (
            json!({"model_type": "internvl", "vision_config": {"patch_size": 14, "image_size": 30}}),
            json!({}),
            "tiles of 30 pixels",
        ),
        (
            json!({"vision_config": {"model_type": "clip_vision_model", "patch_size": 14, "image_size": 28}}),
            json!({"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}),
            "crop_size is 56, but image_size of config.json is 28",
        ),
        (
            json!({"model_type": "gemma3", "vision_config": {"patch_size": 8, "image_size": 32}}),
            json!({"do_pan_and_scan": true}),
            "do_pan_and_scan is true; only false is supported",
        ),
        (
            json!({"model_type": "gemma3", "mm_tokens_per_image": 4, "vision_config": {"patch_size": 8, "image_size": 32}}),
            json!({"image_seq_length": 16}),
            "image_seq_length is 16, but config.json implies 4",
        ),
        (
            json!({"model_type": "paligemma", "vision_config": {"patch_size": 8, "image_size": 32}}),
            json!({"size": {"height": 64, "width": 64}}),
            "size is 64, but image_size of config.json is 32",
        ),
        (
            json!({"model_type": "florence2", "vision_config": {}}),
            json!({"size": {"height": 768, "width": 768}, "do_center_crop": true}),
            "do_center_crop is true; only false is supported",
        ),
        (
            json!({"model_type": "florence2", "vision_config": {}}),
            json!({"size": {"height": 770, "width": 770}}),
            "size is 770, but must be a multiple of 4",
        ),
        (
            json!({"model_type": "florence2", "vision_config": {"max_position_embeddings": 23}}),
            json!({"size": {"height": 768, "width": 768}}),
            "the last stage has 24 × 24 places, but there are positions for 23",
        ),
        (
            json!({"model_type": "florence2", "vision_config": {}}),
            json!({"size": {"height": 768, "width": 768}, "image_seq_length": 576}),
            "image_seq_length is 576, but config.json implies 577",
        ),
        (
            json!({"model_type": "kimi_k25", "vision_config": {"merge_kernel_size": [2, 2]}}),
            json!({"merge_size": 4}),
            "merge_size is 4",
        ),
    ] {
        let error = error(config, image);
        assert!(error.contains(part), "{error}");
    }
    let oblong = json!({"size": {"height": 768, "width": 384}});
    let error = error(json!({"model_type": "florence2", "vision_config": {}}), oblong);
    assert_eq!(error.matches("preprocessor_config.json").count(), 1, "{error}");
    // The published one, with colors of its own processor where a folder has none.
    let florence = open_with(&json!({"model_type": "florence2", "vision_config": {}}), &json!({}), &json!({}));
    let item = florence.unwrap().unwrap().image(&noise(30, 20, 1)).unwrap().media.remove(0);
    assert_eq!((item.num_features, [item.grid.t, item.grid.h, item.grid.w]), (577, [1, 192, 192]));
    let paligemma = json!({"model_type": "paligemma", "vision_config": {"patch_size": 8, "image_size": 32}});
    let paligemma = open_with(&paligemma, &json!({}), &json!({})).unwrap().unwrap();
    assert!(paligemma.markers().of(MediaKind::Video).words.is_empty());
    let draws =
        open_with(&json!({"model_type": "ernie4_5_vl_moe", "vision_config": {}}), &json!({}), &json!({})).unwrap();
    let video = Video::new(vec![noise(30, 30, 1)], &[0], 1, 2.0);
    assert!(draws.unwrap().video(&video).unwrap_err().contains("draw_on_frames"));
    assert!(open_with(&json!({"model_type": "qwen3"}), &json!({}), &json!({})).unwrap().is_none());
}

#[test]
fn a_picture_that_is_cropped_is_no_thread() {
    let config = json!({"vision_config": {"model_type": "clip_vision_model", "patch_size": 8, "image_size": 16}});
    let clip = open_with(&config, &json!({}), &json!({})).unwrap().unwrap();
    assert_eq!(clip.image(&noise(2, 400, 1)).unwrap().num_features(), 4);
    assert!(clip.image(&noise(402, 2, 1)).unwrap_err().contains("402×2 is more than 200 times"));
}

/// CLIP without a crop is SigLIP with CLIP's colors, which is compared with transformers.
#[test]
fn a_picture_that_is_not_cropped_is_squeezed() {
    let colors = json!({"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4], "size": {"height": 16, "width": 16},
        "resample": 3, "do_center_crop": false});
    let tower = |model_type: &str| json!({"model_type": model_type, "patch_size": 8, "image_size": 16});
    let open = |model_type: &str| {
        let config = json!({"model_type": "llava", "vision_config": tower(model_type)});
        open_with(&config, &colors, &json!({})).unwrap().unwrap()
    };
    let picture = noise(40, 23, 1);
    let [clip, siglip] = ["clip_vision_model", "siglip_vision_model"]
        .map(|model_type| open(model_type).image(&picture).unwrap().media.remove(0));
    assert_eq!((clip.grid, &clip.pixels, clip.num_features), (siglip.grid, &siglip.pixels, 4));
    // A diffusion model reads the class token as well.
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("preprocessor_config.json"), colors.to_string()).unwrap();
    let of_diffusion = super::open_crop(dir.path(), &tower("clip_vision_model")).unwrap();
    let item = of_diffusion.image(&picture).unwrap().media.remove(0);
    assert_eq!((item.pixels, item.num_features), (clip.pixels, 5));
    assert_eq!(of_diffusion.num_image_features(40, 23), Ok(5));
    let unknown = super::open_crop(dir.path(), &tower("x")).err().unwrap().to_string();
    assert!(unknown.contains("image_encoder.model_type is \"x\""), "{unknown}");
}

/// A page on its side is cut into twelve tiles, and upright into six.
#[test]
fn a_header_tells_the_fewest_features_of_a_picture_that_may_be_turned() {
    let mut config = json!({"model_type": "internvl_chat", "vision_config": {"patch_size": 8, "image_size": 32}});
    config["max_dynamic_patch"] = json!(12);
    let processor = open_with(&config, &json!({}), &json!({})).unwrap().unwrap();
    let [wide, tall] = [(1416, 1000), (1000, 1416)];
    let [of_wide, of_tall] = [wide, tall].map(|(width, height)| processor.num_image_features(width, height).unwrap());
    assert!(of_tall < of_wide, "{of_tall} {of_wide}");
    for (width, height) in [wide, tall] {
        assert_eq!(processor.least_image_features(width, height), Ok(of_tall));
    }
}

#[test]
fn internvl_may_do_without_tiles_or_thumbnail() {
    let features = |key: &str, value: bool| {
        let mut config = json!({"model_type": "internvl_chat", "vision_config": {"patch_size": 8, "image_size": 32}});
        config[key] = json!(value);
        let processor = open_with(&config, &json!({}), &json!({})).unwrap().unwrap();
        let features = processor.image(&noise(64, 32, 1)).unwrap().num_features();
        assert_eq!(processor.num_image_features(64, 32), Ok(features));
        features
    };
    assert_eq!(features("use_thumbnail", true), 12);
    assert_eq!(features("use_thumbnail", false), 8);
    assert_eq!(features("dynamic_image_size", false), 4);
}
