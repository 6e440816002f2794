//! Describes which processor a model folder asks for.

use std::path::Path;

use serde_json::Value as Json;

use super::clock::{Clock, RunOrder};
use super::davit::Convolutions;
use super::eagle::Eagle;
use super::ernie::Ernie;
use super::kimi::Kimi;
use super::processor::MediaProcessor;
use super::qwen::{Qwen, Time};
use super::settings::{Filter, HALF, Settings};
use super::slices::Slices;
use super::split::TileSplit;
use super::tiles::{TileConfig, Tiles};
use super::words::Words;
use crate::config::{ImageLimits, VideoLimits};
use crate::data::card::{ModelCard, VisionCut};
use crate::data::error::DataError;
use crate::data::processor::ProcessorFolders;
use crate::data::tokenizer::Tokenizer;
use crate::data::tokenizer_file::{read_json_if_exists, token_text};

/// Opens the processor of the vision tower of `config`, a `config.json`, by the preprocessor configs in the media folder; `None` for a
/// text model.
///
/// # Errors
/// A file is missing or wrong, it disagrees with `config`, or the model is of an unknown family.
pub fn open(
    folders: ProcessorFolders<'_>,
    config: &Json,
    tokenizer: &Tokenizer,
    limits: (&ImageLimits, &VideoLimits),
) -> Result<Option<Box<dyn MediaProcessor>>, DataError> {
    let card = ModelCard::of(config);
    let Some(vision) = card.vision() else { return Ok(None) };
    let id = tokenizer.special().image;
    let placeholder = id
        .and_then(|id| tokenizer.token(id))
        .ok_or_else(|| DataError::no_token(folders.model, "image_token_id", id))?;
    let words = Words { config, tokenizer: Some(tokenizer), placeholder };
    let (image, video) = Settings::read(folders.media)?;
    let cut = card.vision_cut().ok_or_else(|| {
        let tower = vision["model_type"].as_str().or(config["model_type"].as_str()).unwrap_or_default();
        let what = format!("vision_config.model_type is {tower:?}: its image processor is not supported");
        DataError::file(&folders.model.join("config.json"), what)
    })?;
    check_filter(cut, &image, &video)?;
    let processor: Box<dyn MediaProcessor> = match cut {
        VisionCut::Qwen2 { tokens_per_second } => {
            let per_second = vision["tokens_per_second"].as_i64().or(tokens_per_second);
            check(&image, vision, true)?;
            Box::new(Qwen::open((image, video), limits, Time::Positions(per_second), &words)?)
        }
        VisionCut::Qwen3 => {
            check(&image, vision, true)?;
            Box::new(Qwen::open((image, video.or_color(HALF)), limits, Time::Text, &words)?)
        }
        VisionCut::OmniChunks | VisionCut::OmniMerged => {
            check(&image, vision, true)?;
            let clock = clock(folders.model, cut, &words)?;
            // These models' processors have a range for frames that settings of pictures do not change.
            let side = if cut == VisionCut::OmniMerged { 32 } else { 28 };
            let video = video.or_pixels((128 * side * side, 768 * side * side));
            Box::new(Qwen::open((image, video), limits, Time::Positions(None), &words)?.with_clock(clock))
        }
        VisionCut::Ernie => {
            check(&image, vision, false)?;
            Box::new(Ernie::open((image, video), limits, &words)?)
        }
        VisionCut::Tiles => {
            let tiles = tile_config(config, vision)
                .map_err(|reason| DataError::file(&folders.model.join("config.json"), reason))?;
            let tiles = TileConfig { around: ["<img>", "</img>"].map(|token| words.known(token)), ..tiles };
            Box::new(Tiles::open((image, video), limits, &tiles, &words)?)
        }
        VisionCut::Square => {
            let image = image.or_color(HALF);
            Box::new(Tiles::open((image, video.or_color(HALF)), limits, &square_config(vision, 16), &words)?)
        }
        VisionCut::Gemma3 => {
            image.no_crops()?;
            let (num_features, square) = gemma3(vision, &words);
            Box::new(one_square(image.or_bilinear().or_color(HALF), limits, square, Some(num_features), &words)?)
        }
        VisionCut::PaliGemma => {
            Box::new(one_square(image.or_color(HALF), limits, square_config(vision, 16), None, &words)?)
        }
        VisionCut::Florence2 => {
            let (side, square) = florence2(&image, vision)?;
            let num_features = (side as f64 / square.patch_size as f64 * square.downsample_ratio).round() as usize;
            Box::new(one_square(image, limits, square, Some(num_features.pow(2)), &words)?)
        }
        VisionCut::Slices => {
            let settings = (image.or_color(HALF), video.or_color(HALF));
            Box::new(Slices::open(settings, limits, vision, named_tokens(folders.model)?, &words)?)
        }
        VisionCut::Eagle => Box::new(Eagle::open(&image.or_color(HALF), limits.0, (config, vision), &words)?),
        VisionCut::Split => Box::new(TileSplit::open(&image.or_color(HALF), limits.0, vision, &words)?),
        VisionCut::Crop { patch_size, of_tower } => {
            Box::new(crop((image, video), limits, vision, (patch_size, of_tower, 0), &words)?)
        }
        VisionCut::Kimi => {
            check(&image, vision, false)?;
            Box::new(Kimi::open((image.or_color(HALF), video.or_color(HALF)), limits, &words)?)
        }
    };
    Ok(Some(processor))
}

/// Opens the processor that makes the input of a diffusion model's image tower `vision` of a picture, its class token included; by the
/// preprocessor config in `media_dir`, or as it was published where there is none.
///
/// # Errors
/// The file is wrong, or the tower is of an unknown family.
pub fn open_crop(media_dir: &Path, vision: &Json) -> Result<Box<dyn MediaProcessor>, DataError> {
    let Some(VisionCut::Crop { patch_size, of_tower }) = ModelCard::of(vision).vision_cut() else {
        let what =
            format!("image_encoder.model_type is {}: its image processor is not supported", vision["model_type"]);
        return Err(DataError::file(&media_dir.join("config.json"), what));
    };
    let settings = Settings::read_or_default(media_dir)?;
    let words = Words { config: vision, tokenizer: None, placeholder: String::new() };
    let limits = (&ImageLimits::default(), &VideoLimits::default());
    Ok(Box::new(crop(settings, limits, vision, (patch_size, of_tower, 1), &words)?))
}

/// Returns mean and standard deviation of the colors that the preprocessor config in `media_dir` takes from pictures and divides them by.
///
/// # Errors
/// The file is wrong.
pub fn colors(media_dir: &Path) -> Result<[[f32; 3]; 2], DataError> {
    let (image, _) = Settings::read_or_default(media_dir)?;
    Ok([image.mean(), image.std()])
}

/// # Errors
/// The files name a filter that the tower was not trained with.
fn check_filter(cut: VisionCut, image: &Settings, video: &Settings) -> Result<(), DataError> {
    let filters = matches!(
        cut,
        VisionCut::Square
            | VisionCut::Crop { .. }
            | VisionCut::Gemma3
            | VisionCut::PaliGemma
            | VisionCut::Florence2
            | VisionCut::Split
    );
    if !filters && (image.is_bilinear() || video.is_bilinear()) {
        return Err(image.wrong("resample is 2 (bilinear); this tower was trained with 3 (bicubic)".to_owned()));
    }
    if cut != VisionCut::Split && image.filter_or(Filter::Bicubic) == Filter::Lanczos {
        return Err(image.wrong("resample is 1 (Lanczos), which only towers of SmolVLM were trained with".to_owned()));
    }
    Ok(())
}

/// Returns in which order frames and their sound are read, and the tokens around sound.
///
/// # Errors
/// The config does not say how many positions a second has.
fn clock(model_dir: &Path, cut: VisionCut, words: &Words<'_>) -> Result<Clock, DataError> {
    let config = words.config;
    let per_second = config["position_id_per_seconds"]
        .as_i64()
        .ok_or_else(|| DataError::file(&model_dir.join("config.json"), "position_id_per_seconds is missing"))?;
    let order = match cut {
        VisionCut::OmniMerged => RunOrder::Merged,
        _ => RunOrder::Chunks(per_second * config["seconds_per_chunk"].as_i64().unwrap_or(2)),
    };
    let known = |names: [&str; 2]| names.map(|name| words.known(name)).concat();
    Ok(Clock {
        per_second,
        order,
        sound_start: known(["<|audio_bos|>", "<|audio_start|>"]),
        sound_end: known(["<|audio_eos|>", "<|audio_end|>"]),
    })
}

/// Returns a function that finds the token under a key of `tokenizer_config.json`; it takes the default where the file has none.
///
/// # Errors
/// The file is wrong.
fn named_tokens(model_dir: &Path) -> Result<impl Fn(&str, &str) -> String, DataError> {
    let names = read_json_if_exists(&model_dir.join("tokenizer_config.json"))?;
    Ok(move |key: &str, default: &str| {
        let sections = [&names, &names["extra_special_tokens"], &names["model_specific_special_tokens"]];
        let found = sections.into_iter().find_map(|section| token_text(&section[key]));
        found.unwrap_or(default).to_owned()
    })
}

/// Returns the number of features of Gemma 3's pictures, and their square, which stands between tokens of its own.
fn gemma3(vision: &Json, words: &Words<'_>) -> (usize, TileConfig) {
    let [begin, end] = [("boi_token_index", "<start_of_image>"), ("eoi_token_index", "<end_of_image>")]
        .map(|(key, default)| words.token(key, default));
    let num_features = words.config["mm_tokens_per_image"].as_u64().unwrap_or(256) as usize;
    let around = [format!("\n\n{begin}"), format!("{end}\n\n")];
    (num_features, TileConfig { around, marker: Some(begin), ..square_config(vision, 16) })
}

/// Opens the processor of the square in the middle of a picture. A patch has `patch_size` where `vision` says nothing; `of_tower` squares
/// must have its size; there are features of `num_more` beside those of patches.
fn crop(
    (image, video): (Settings, Settings),
    limits: (&ImageLimits, &VideoLimits),
    vision: &Json,
    (patch_size, of_tower, num_more): (usize, bool, usize),
    words: &Words<'_>,
) -> Result<Tiles, DataError> {
    let square = square_config(vision, patch_size);
    let (side, shorter) = image.crop(square.side.unwrap_or(224))?;
    if let Some(own) = square.side.filter(|own| of_tower && *own != side) {
        return Err(image.wrong(format!("crop_size is {side}, but image_size of config.json is {own}")));
    }
    Tiles::open((image, video), limits, &TileConfig { side: Some(side), shorter, num_more, ..square }, words)
}

/// Returns the side of Florence-2's pictures, which the processor alone says, and the square that becomes a feature for each place behind
/// the convolutions and one more.
///
/// # Errors
/// Pictures are cropped, or do not go with the convolutions or the positions.
fn florence2(image: &Settings, vision: &Json) -> Result<(usize, TileConfig), DataError> {
    let wrong = |reason: String| image.wrong(reason);
    if image.crops() {
        return Err(wrong("do_center_crop is true; only false is supported: a picture is one square".to_owned()));
    }
    let side = image.side()?.unwrap_or(768);
    let convolutions = Convolutions::of(vision, "vision_config").map_err(wrong)?;
    let patch = convolutions.patch();
    if side == 0 || !side.is_multiple_of(patch) {
        let must = format!("must be a multiple of {patch}, the step of the first convolution");
        return Err(wrong(format!("size is {side}, but {must}")));
    }
    let places = convolutions.places([side; 2]).map_err(wrong)?[0];
    let most = vision["max_position_embeddings"].as_u64().unwrap_or(50) as usize;
    if places > most {
        let reason = format!("the last stage has {places} × {places} places, but there are positions for {most}");
        return Err(wrong(format!("size is {side}: {reason}")));
    }
    let ratio = places as f64 * patch as f64 / side as f64;
    let square = square_config(vision, patch);
    Ok((side, TileConfig { side: Some(side), patch_size: patch, downsample_ratio: ratio, num_more: 1, ..square }))
}

/// Opens the processor of all of a picture as a square of the tower's own size, which becomes `num_features`, or one for each patch;
/// it takes no videos.
fn one_square(
    image: Settings,
    limits: (&ImageLimits, &VideoLimits),
    square: TileConfig,
    num_features: Option<usize>,
    words: &Words<'_>,
) -> Result<Tiles, DataError> {
    if limits.0.min_pixels.is_some() || limits.0.max_pixels.is_some() {
        let reason = "data.image.min_pixels and max_pixels do not apply: this model's pictures are squares of one size";
        return Err(image.wrong(reason.to_owned()));
    }
    let side = square.side.unwrap_or(224);
    if let Some(found) = image.side()?.filter(|found| *found != side) {
        return Err(image.wrong(format!("size is {found}, but image_size of config.json is {side}")));
    }
    let patches = side / square.patch_size.max(1);
    let num_features = num_features.unwrap_or(patches.pow(2));
    let by_config = num_features + square.num_more;
    if let Some(found) = image.image_seq_length.filter(|found| *found != by_config) {
        return Err(image.wrong(format!("image_seq_length is {found}, but config.json implies {by_config}")));
    }
    let downsample_ratio = (num_features as f64).sqrt() / patches.max(1) as f64;
    let config = TileConfig { downsample_ratio, takes_videos: false, ..square };
    Tiles::open((image.clone(), image), limits, &config, words)
}

/// Checks that the files, or the processors' defaults, agree with the vision tower.
fn check(image: &Settings, vision: &Json, temporal: bool) -> Result<(), DataError> {
    let number = |value: &Json| value.as_u64().or_else(|| value[0].as_u64());
    let merge = image.merge_size.unwrap_or(2);
    for (key, value, expected) in [
        ("patch_size", image.patch_size.unwrap_or(14), &vision["patch_size"]),
        ("merge_size", merge, &vision["spatial_merge_size"]),
        ("merge_size", merge, &vision["merge_kernel_size"]),
        ("temporal_patch_size", image.temporal_patch_size.unwrap_or(2), &vision["temporal_patch_size"]),
    ] {
        if key == "temporal_patch_size" && !temporal {
            continue;
        }
        if let Some(expected) = number(expected)
            && expected != value as u64
        {
            return Err(image.wrong(format!("{key} is {value}, but config.json says {expected}")));
        }
    }
    Ok(())
}

/// Returns one tile: all of the picture. `patch_size` holds where `vision` says nothing.
fn square_config(vision: &Json, patch_size: usize) -> TileConfig {
    let number = |key: &str| vision[key].as_u64().or_else(|| vision[key][0].as_u64()).map(|number| number as usize);
    TileConfig {
        side: Some(number("image_size").unwrap_or(224)),
        shorter: None,
        patch_size: number("patch_size").unwrap_or(patch_size),
        downsample_ratio: 1.0 / number("spatial_merge_size").unwrap_or(1).max(1) as f64,
        min_tiles: Some(1),
        max_tiles: Some(1),
        thumbnail: false,
        has_rest: true,
        num_more: 0,
        around: Default::default(),
        marker: None,
        takes_videos: true,
    }
}

/// Reads the tiles of InternVL's own layout and of the one in transformers.
fn tile_config(config: &Json, vision: &Json) -> Result<TileConfig, &'static str> {
    if config["pad2square"] == true {
        return Err("pad2square is true; only false is supported");
    }
    let one = (config["dynamic_image_size"] == false).then_some(1);
    let number = |value: &Json| value.as_u64().or_else(|| value[0].as_u64()).map(|number| number as usize);
    let ratios = [&config["downsample_ratio"], &config["image_projector"]["downsample_ratio"]];
    let ratio = ratios.into_iter().find(|ratio| !ratio.is_null()).unwrap_or(&Json::Null);
    Ok(TileConfig {
        shorter: None,
        side: number(&config["force_image_size"]).or(number(&vision["image_size"])),
        patch_size: number(&vision["patch_size"]).unwrap_or(14),
        downsample_ratio: ratio.as_f64().unwrap_or(0.5),
        min_tiles: one.or(number(&config["min_dynamic_patch"])),
        max_tiles: one.or(number(&config["max_dynamic_patch"])),
        thumbnail: config["use_thumbnail"] != false,
        has_rest: false,
        num_more: 0,
        around: Default::default(),
        marker: None,
        takes_videos: true,
    })
}
