//! Translates musubi-tuner's data sets: the TOML or JSON that `--dataset_config` names, with what holds for all in `general`, and a
//! section of `datasets` for each.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::diffsynth::ENCODED;
use super::diffsynth_model::Named;
use super::flags::keys_of_file;
use super::sheet::Sheet;
use super::toml;
use crate::files;

/// Keys that name a set's files, and whether it is a list of them.
const PATHS: [(&str, bool); 4] =
    [("image_directory", false), ("image_jsonl_file", true), ("video_directory", false), ("video_jsonl_file", true)];
/// Keys that may be of all sets.
const GENERAL: [&str; 6] =
    ["resolution", "batch_size", "num_repeats", "caption_extension", "enable_bucket", "bucket_no_upscale"];
/// Pixels of the longest side.
const MAX_SIDE: f64 = 16384.0;
const MAX_FRAMES: f64 = 65536.0;

/// Reads the keys of a file of data sets, `general.KEY` and `datasets.N.KEY`; `None`: it cannot be read here.
pub(super) fn of_file(path: &str) -> Option<Map<String, Value>> {
    let fields = match path.to_lowercase().ends_with(".json") {
        true => keys_of_file(path)?,
        false => toml::read(&files::read_text(Path::new(path)).ok()?).ok()?,
    };
    let mut keys = Map::new();
    for (key, value) in fields {
        match value {
            Value::Array(sets) if key == "datasets" => {
                for (at, set) in sets.into_iter().enumerate() {
                    insert(&mut keys, &format!("datasets.{at}"), set);
                }
            }
            value if key.contains('.') => _ = keys.insert(key, value),
            value => insert(&mut keys, &key, value),
        }
    }
    Some(keys)
}

/// Adds a section, whose name may not be that of an option.
fn insert(keys: &mut Map<String, Value>, section: &str, value: Value) {
    match value {
        Value::Object(fields) => {
            keys.extend(fields.into_iter().map(|(name, value)| (format!("{section}.{name}"), value)));
        }
        value => _ = keys.insert(format!("dataset_config.{section}"), value),
    }
}

/// A data set, as far as it is read.
struct Set {
    at: usize,
    is_video: bool,
    /// True if a list names its files.
    is_listed: bool,
    /// True if sizes go by the picture.
    is_bucketed: bool,
    /// True if smaller pictures keep their size.
    keeps_small: bool,
    /// True if the rate of the clips is known.
    has_rate: bool,
    /// Width and height.
    size: Option<[u64; 2]>,
    /// The value of `data.video.take`; empty: none.
    take: &'static str,
    frames: Vec<u64>,
}

impl Set {
    fn of(sheet: &Sheet, at: usize) -> Self {
        let key = |name: &str| key(sheet, at, name);
        let named = PATHS.iter().find(|(name, _)| sheet.get(&key(name)).is_some());
        let extraction = sheet.text(&key("frame_extraction")).unwrap_or_else(|| "head".to_owned());
        let take = match extraction.as_str() {
            // A clip that is longer than max_frames is cut.
            "head" | "full" => "head",
            "chunk" => "chunks",
            "slide" | "uniform" => "sliding",
            _ => "",
        };
        let listed = match extraction == "full" {
            true => numbers(sheet, &key("max_frames"), MAX_FRAMES, &[129]),
            false => numbers(sheet, &key("target_frames"), MAX_FRAMES, &[1]),
        };
        // They are one more than a multiple of 4; others are rounded down to that.
        let frames = listed.into_iter().map(|frames| (frames - 1) / 4 * 4 + 1).collect();
        let size = match numbers(sheet, &key("resolution"), MAX_SIDE, &[960, 544])[..] {
            [side] => Some([side; 2]),
            [width, height] => Some([width, height]),
            _ => None,
        };
        Self {
            at,
            is_video: named.is_some_and(|(name, _)| name.starts_with("video")),
            is_listed: named.is_some_and(|(_, is_list)| *is_list),
            is_bucketed: sheet.is_true(&key("enable_bucket")),
            keeps_small: sheet.is_true(&key("bucket_no_upscale")),
            has_rate: sheet.get(&key("source_fps")).is_some(),
            size,
            take,
            frames,
        }
    }

    fn pixels(&self) -> u64 {
        self.size.map_or(0, |[width, height]| width * height)
    }
}

/// Returns the key of a set, or that of all.
fn key(sheet: &Sheet, at: usize, name: &str) -> String {
    let own = format!("datasets.{at}.{name}");
    if sheet.get(&own).is_some() { own } else { format!("general.{name}") }
}

/// Returns the numbers from 1 on under a key, one or a list of them, or these by default; nothing where one is none.
fn numbers(sheet: &Sheet, key: &str, most: f64, default: &[u64]) -> Vec<u64> {
    let number = |value: &Value| value.as_f64().filter(|number| (1.0..=most).contains(number)).map(|it| it as u64);
    match sheet.get(key) {
        None => default.to_vec(),
        Some(Value::Array(list)) => list.iter().map(number).collect::<Option<_>>().unwrap_or_default(),
        Some(value) => number(value).into_iter().collect(),
    }
}

/// Translates the keys of the data sets, and returns how often an epoch has each sample.
pub(super) fn read(sheet: &mut Sheet, model: Option<&Named>) -> f64 {
    let at = |key: &String| key.strip_prefix("datasets.")?.split('.').next()?.parse().ok();
    let ats: BTreeSet<usize> = sheet.fields().keys().filter_map(at).collect();
    let sets: Vec<Set> = ats.into_iter().map(|at| Set::of(sheet, at)).collect();
    if sets.is_empty() {
        let why = "it cannot be read here: import where it is, or set data.train, data.image.area or data.video.area, \
                   and data.pack.max_tokens";
        sheet.missing(why, &["dataset_config"]);
        sheet.batch("general.batch_size", 1.0);
        return 1.0;
    }
    sheet.settled("its keys are translated", &["dataset_config"]);
    paths(sheet, &sets);
    captions(sheet, &sets);
    let repeats = repeats(sheet, &sets);
    batches(sheet, &sets);
    sizes(sheet, &sets, model);
    clips(sheet, &sets, model);
    references(sheet, &sets);
    sets.iter().for_each(|set| sheet.settled(ENCODED, &[&format!("datasets.{}.cache_directory", set.at)]));
    for name in GENERAL {
        sheet.settled("each data set has its own", &[&format!("general.{name}")]);
    }
    repeats
}

fn paths(sheet: &mut Sheet, sets: &[Set]) {
    let mut found = Vec::new();
    for set in sets {
        let own = |name: &str| format!("datasets.{}.{name}", set.at);
        let named = PATHS.iter().find_map(|(name, is_list)| Some((own(name), *is_list, sheet.text(&own(name))?)));
        let Some((key, is_list, path)) = named else { continue };
        let mut entry = match is_list {
            // There, names in a list are relative to the folder that the program runs in.
            true => json!({ "path": path, "media_dir": "." }),
            false => json!({ "path": path }),
        };
        // The largest size is that of all that have none.
        if let Some([width, height]) = set.size.filter(|_| set.pixels() < largest(sets, set.is_video)) {
            entry["area"] = json!(format!("{height}x{width}"));
        }
        found.push(entry);
        sheet.arrived(&key, "data.train");
        PATHS.iter().for_each(|(name, _)| sheet.settled("another key of the set takes precedence", &[&own(name)]));
    }
    if found.len() > 1 {
        sheet.once_per_epoch();
    }
    if !found.is_empty() {
        sheet.set("data.train", found);
    }
}

fn captions(sheet: &mut Sheet, sets: &[Set]) {
    const READ: &str = "captions are in NAME.txt or NAME.caption, or in the list";
    for set in sets {
        let key = key(sheet, set.at, "caption_extension");
        let is_own = key.starts_with("datasets.");
        match set.is_listed || sheet.is(&key, ".txt") || sheet.is(&key, ".caption") {
            // What holds for all may be wrong for another set.
            true if is_own => sheet.settled(READ, &[&key]),
            true => {}
            false => sheet.missing("captions are in NAME.txt or NAME.caption: rename them", &[&key]),
        }
    }
    sheet.settled(READ, &["general.caption_extension"]);
}

/// Returns how often an epoch has each sample, where all sets agree.
fn repeats(sheet: &mut Sheet, sets: &[Set]) -> f64 {
    let keys: Vec<String> = sets.iter().map(|set| key(sheet, set.at, "num_repeats")).collect();
    let numbers: Vec<f64> = keys.iter().map(|key| sheet.number(key).unwrap_or(1.0)).collect();
    let all = numbers[0];
    for key in &keys {
        match numbers.iter().all(|number| *number == all) {
            true if sheet.get("max_train_epochs").is_some() => sheet.arrived(key, "train.epochs"),
            true => sheet.settled("train.steps counts steps", &[key]),
            false => {
                let why = "set the `weight` of each data set to its num_repeats, which train.epochs does not count";
                sheet.missing(why, &[key]);
            }
        }
    }
    if numbers.iter().all(|number| *number == all) { all } else { 1.0 }
}

/// Translates the batch of the first set, which should be that of all.
fn batches(sheet: &mut Sheet, sets: &[Set]) {
    let keys: Vec<String> = sets.iter().map(|set| key(sheet, set.at, "batch_size")).collect();
    let first = sheet.number(&keys[0]).unwrap_or(1.0);
    let others: Vec<&String> = keys.iter().filter(|key| sheet.number(key).unwrap_or(1.0) != first).collect();
    for key in others {
        sheet.missing("train.global_batch_size is that of all data sets: it is computed from the first", &[key]);
    }
    sheet.batch(&keys[0], 1.0);
    keys.iter().for_each(|key| sheet.arrived(key, "train.global_batch_size"));
}

/// Translates sizes of pictures and frames, of each the largest.
fn sizes(sheet: &mut Sheet, sets: &[Set], model: Option<&Named>) {
    let mut packs = Vec::new();
    let frames = longest(sets);
    let makes_pictures = model.is_some_and(Named::is_image);
    for (is_video, ours) in [(false, "data.image.area"), (true, "data.video.area")] {
        if is_video && makes_pictures {
            continue;
        }
        let of_kind = || sets.iter().filter(|set| set.is_video == is_video);
        let Some(most) = of_kind().max_by_key(|set| set.pixels()).filter(|set| set.pixels() > 0) else {
            for set in of_kind() {
                let key = key(sheet, set.at, "resolution");
                sheet.with(&key, ours, |_| Err("a side must have from 1 to 16384 pixels"));
            }
            continue;
        };
        if let Some([width, height]) = most.size {
            sheet.set(ours, format!("{height}x{width}"));
        }
        packs.push((if is_video { frames } else { 1 }, most.pixels()));
        for set in of_kind() {
            let key = key(sheet, set.at, "resolution");
            match set.size {
                Some(_) if set.pixels() == most.pixels() => sheet.arrived(&key, ours),
                Some(_) => sheet.arrived(&key, "data.train[].area"),
                None => sheet.with(&key, ours, |_| Err("a side must have from 1 to 16384 pixels")),
            }
        }
    }
    if let Some(model) = model.filter(|_| !packs.is_empty()) {
        model.packs(sheet, &packs);
    }
    if sets.iter().any(|set| !set.is_bucketed) {
        sheet.note(
            "without enable_bucket musubi-tuner brings all pictures and frames to one size; here larger ones are \
             scaled down to as many pixels and keep their aspect ratio",
        );
    }
    if sets.iter().any(|set| !(set.is_bucketed && set.keeps_small)) {
        sheet.note(
            "musubi-tuner enlarges pictures and frames that are smaller than the resolution unless bucket_no_upscale \
             is set; here they keep their size",
        );
    }
    for name in ["enable_bucket", "bucket_no_upscale"] {
        for set in sets {
            let why = "pictures and frames keep their aspect ratio, and smaller ones their size";
            sheet.settled(why, &[&key(sheet, set.at, name)]);
        }
    }
}

/// Returns the pixels of the largest size of sets of pictures, or of clips.
fn largest(sets: &[Set], is_video: bool) -> u64 {
    sets.iter().filter(|set| set.is_video == is_video).map(Set::pixels).max().unwrap_or(0)
}

/// Returns the number of frames of the longest clips.
fn longest(sets: &[Set]) -> u64 {
    sets.iter().filter(|set| set.is_video).flat_map(|set| set.frames.iter().copied()).max().unwrap_or(1)
}

/// Translates the keys that say which frames of clips are taken, and at which rate.
fn clips(sheet: &mut Sheet, sets: &[Set], model: Option<&Named>) {
    const FRAMES: &str = "data.video.frames";
    const TAKE: &str = "data.video.take";
    let clips: Vec<&Set> = sets.iter().filter(|set| set.is_video).collect();
    let Some(first) = clips.first().filter(|_| !model.is_some_and(Named::is_image)) else { return };
    let frames = longest(sets);
    sheet.set(FRAMES, frames);
    if !["", "head"].contains(&first.take) {
        sheet.set(TAKE, first.take);
        sheet.note(
            "musubi-tuner cuts several pieces out of a clip, each a sample of its epoch; here each visit of a clip \
             takes one of them: set train.epochs to as many visits as there should be",
        );
    }
    for set in &clips {
        let own = |name: &str| format!("datasets.{}.{name}", set.at);
        let is_whole = sheet.is(&own("frame_extraction"), "full");
        let (read, unread) = match is_whole {
            true => ("max_frames", "target_frames"),
            false => ("target_frames", "max_frames"),
        };
        match set.frames.iter().all(|number| *number == frames) && !set.frames.is_empty() {
            true => sheet.arrived(&own(read), FRAMES),
            false => sheet.missing("clips have one number of frames: data.video.frames is the largest", &[&own(read)]),
        }
        sheet.settled("frame_extraction does not use it", &[&own(unread)]);
        match set.take == first.take && !set.take.is_empty() {
            true => sheet.arrived(&own("frame_extraction"), TAKE),
            false => sheet.missing(
                "data.video.take is one for all data sets: head, chunk, slide, uniform and full are translated",
                &[&own("frame_extraction")],
            ),
        }
        sheet.settled("pieces begin at places that are drawn", &[&own("frame_stride"), &own("frame_sample")]);
        sheet.settled("frames are taken at data.video.fps, by the rate in the file", &[&own("source_fps")]);
    }
    if clips.iter().any(|set| !set.has_rate) {
        sheet.note(
            "musubi-tuner takes every frame of clips without source_fps; here data.video.fps frames a second are \
             taken: set it to the frame rate of the clips",
        );
    }
}

/// Translates the keys of pictures that the result is made from.
fn references(sheet: &mut Sheet, sets: &[Set]) {
    let side = "pictures to edit have data.image.area pixels";
    for set in sets {
        let own = |name: &str| format!("datasets.{}.{name}", set.at);
        sheet.missing(
            "write a list of records that name their pictures in control_path, or control_path_0 and so on",
            &[&own("control_directory")],
        );
        for name in ["control_resolution", "qwen_image_edit_control_resolution"] {
            let sides = numbers(sheet, &own(name), MAX_SIDE, &[]);
            let pixels = sides.first().zip(sides.last()).map(|(width, height)| width * height);
            if pixels == Some(set.pixels()) {
                sheet.settled(side, &[&own(name)]);
            }
            sheet.missing(side, &[&own(name)]);
        }
        sheet.missing(side, &[&own("no_resize_control"), &own("qwen_image_edit_no_resize_control")]);
        sheet.missing("layers of pictures are not supported", &[&own("multiple_target")]);
    }
}
