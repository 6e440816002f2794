//! Describes which processor a model folder asks for.

use std::path::Path;

use serde_json::Value as Json;

use super::clock::{Clock, Order};
use super::ernie::Ernie;
use super::kimi::Kimi;
use super::processor::MediaProcessor;
use super::qwen::{Qwen, Time};
use super::settings::{HALF, Settings};
use super::tiles::{TileConfig, Tiles};
use super::words::Words;
use crate::config::{ImageLimits, VideoLimits};
use crate::data::error::DataError;
use crate::data::sections;
use crate::data::tokenizer::Tokenizer;

/// The processor of the vision tower of `config`, a `config.json`, by the preprocessor configs in `media_dir`; `None` for a
/// text model.
///
/// # Errors
/// A file is missing or wrong, it disagrees with `config`, or the model is of an unknown family.
pub fn open(
    (model_dir, media_dir): (&Path, &Path),
    config: &Json,
    tokenizer: &Tokenizer,
    limits: (&ImageLimits, &VideoLimits),
) -> Result<Option<Box<dyn MediaProcessor>>, DataError> {
    let vision = sections::vision(config);
    if vision.is_null() {
        return Ok(None);
    }
    let placeholder = tokenizer.special().image.and_then(|id| tokenizer.token(id)).ok_or_else(|| {
        let tokenizer = "tokenizer.json has no token of the id image_token_id of config.json";
        DataError::file(model_dir, tokenizer)
    })?;
    let words = Words { config, tokenizer, placeholder };
    let (image, video) = Settings::read(media_dir)?;
    // A model put together from parts is cut as its vision tower was trained.
    let model_type = config["model_type"].as_str().unwrap_or_default();
    let tower = vision["model_type"].as_str().unwrap_or(model_type);
    let tower = if tower.is_empty() { model_type } else { tower };
    let processor: Box<dyn MediaProcessor> = match family(tower).or_else(|| family(model_type)) {
        Some(Family::Qwen2) => {
            let per_second = vision["tokens_per_second"].as_i64();
            let per_second = if tower.contains("2_5") { Some(per_second.unwrap_or(4)) } else { per_second };
            check(&image, vision, true)?;
            Box::new(Qwen::open((image, video), limits, Time::Positions(per_second), &words)?)
        }
        Some(Family::Qwen3) => {
            check(&image, vision, true)?;
            Box::new(Qwen::open((image, video.or_color(HALF)), limits, Time::Text, &words)?)
        }
        Some(Family::Omni(order)) => {
            check(&image, vision, true)?;
            let per_second = config["position_id_per_seconds"]
                .as_i64()
                .ok_or_else(|| DataError::file(&model_dir.join("config.json"), "position_id_per_seconds is missing"))?;
            let order = match order {
                Order::Chunks(_) => Order::Chunks(per_second * config["seconds_per_chunk"].as_i64().unwrap_or(2)),
                Order::Merged => Order::Merged,
            };
            let known = |names: [&str; 2]| names.map(|name| words.known(name)).concat();
            let clock = Clock {
                per_second,
                order,
                sound_start: known(["<|audio_bos|>", "<|audio_start|>"]),
                sound_end: known(["<|audio_eos|>", "<|audio_end|>"]),
            };
            Box::new(Qwen::open((image, video), limits, Time::Positions(None), &words)?.with_clock(clock))
        }
        Some(Family::Ernie) => {
            check(&image, vision, false)?;
            Box::new(Ernie::open((image, video), limits, &words)?)
        }
        Some(Family::InternVl) => {
            let tiles = tile_config(config, vision)
                .map_err(|reason| DataError::file(&model_dir.join("config.json"), reason))?;
            Box::new(Tiles::open((image, video), limits, &tiles, &words)?)
        }
        Some(Family::Kimi) => {
            check(&image, vision, false)?;
            Box::new(Kimi::open((image.or_color(HALF), video.or_color(HALF)), limits, &words)?)
        }
        None => {
            return Err(DataError::file(
                &model_dir.join("config.json"),
                format!("vision_config.model_type is {tower:?}: its image processor is not known"),
            ));
        }
    };
    Ok(Some(processor))
}

enum Family {
    Qwen2,
    Qwen3,
    Omni(Order),
    Ernie,
    InternVl,
    Kimi,
}

/// By the `model_type` of a model or of its vision tower.
fn family(model_type: &str) -> Option<Family> {
    let model_type = ["_vision", "_vision_encoder", "_thinker"]
        .iter()
        .find_map(|end| model_type.strip_suffix(end))
        .unwrap_or(model_type);
    Some(match model_type {
        "qwen2_vl" | "qwen2_5_vl" | "llava_onevision1_5" | "llavaonevision1_5" | "rice_vit" => Family::Qwen2,
        "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" | "qwen3_5_moe" => Family::Qwen3,
        "qwen2_5_omni" => Family::Omni(Order::Chunks(0)),
        "qwen3_omni_moe" => Family::Omni(Order::Merged),
        "ernie4_5_vl_moe" | "ernie4_5_moe_vl" | "DFNRope_vision_transformer" => Family::Ernie,
        "internvl" | "internvl_chat" | "intern_vit_6b" => Family::InternVl,
        "kimi_k25" => Family::Kimi,
        _ => return None,
    })
}

/// Sees to it that the files, or the processors' defaults, agree with the vision tower.
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

/// Reads the tiles of InternVL's own layout and of the one in transformers.
fn tile_config(config: &Json, vision: &Json) -> Result<TileConfig, &'static str> {
    if config["pad2square"] == true {
        return Err("pad2square is true; only false is known");
    }
    let one = (config["dynamic_image_size"] == false).then_some(1);
    let number = |value: &Json| value.as_u64().or_else(|| value[0].as_u64()).map(|number| number as usize);
    let ratios = [&config["downsample_ratio"], &config["image_projector"]["downsample_ratio"]];
    let ratio = ratios.into_iter().find(|ratio| !ratio.is_null()).unwrap_or(&Json::Null);
    Ok(TileConfig {
        side: number(&config["force_image_size"]).or(number(&vision["image_size"])),
        patch_size: number(&vision["patch_size"]).unwrap_or(14),
        downsample_ratio: ratio.as_f64().unwrap_or(0.5),
        min_tiles: one.or(number(&config["min_dynamic_patch"])),
        max_tiles: one.or(number(&config["max_dynamic_patch"])),
        thumbnail: config["use_thumbnail"] != false,
    })
}
