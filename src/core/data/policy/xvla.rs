//! Samples of X-VLA: pictures normalized as ImageNet's before they are resized, prompts that are padded, and the domain.

use image::RgbImage;
use serde_json::Value as Json;

use super::action_space::ActionSpace;
use super::canvas::{cut, taps};
use crate::data::card::dropped;
use crate::data::error::DataError;
use crate::data::lerobot::Step;
use crate::data::media::Convolutions;
use crate::data::sample::Media;
use crate::message::{Grid, Tower};

/// ImageNet's mean and deviation of red, green and blue.
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const STD: [f32; 3] = [0.229, 0.224, 0.225];
/// The description of samples in a `config.json` of X-VLA, beside the keys that all policies have.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    pub space: ActionSpace,
    /// Rows and columns of a picture.
    pub resolution: [usize; 2],
    /// The side of the patches that its values come in.
    pub patch: usize,
    /// Features of a picture.
    pub num_features: usize,
    /// Pictures are resized; otherwise they must have the resolution.
    pub resizes: bool,
    pub reads_state: bool,
    /// The token that fills up prompts, and whether it does so before them.
    pub pad_token: i64,
    pub pads_left: bool,
    /// The feature of a step that says its domain; without it all have `domain`.
    pub domain_key: Option<String>,
    pub domain: i64,
    pub num_domains: i64,
    /// A note about the rates of the config that training does not apply.
    pub note: Option<String>,
}

impl Rules {
    /// # Errors
    /// The reason: a key that is wrong or not implemented.
    pub fn of(config: &Json) -> Result<Self, String> {
        let florence = &config["florence_config"];
        let (vision, text) = (&florence["vision_config"], &florence["text_config"]);
        let (resolution, resizes) = resolution(config)?;
        let convolutions = Convolutions::of(vision, "florence_config.vision_config")?;
        let pads_left = match config["tokenizer_padding_side"].as_str().unwrap_or("right") {
            "right" => false,
            "left" => true,
            other => return Err(format!("`tokenizer_padding_side` is {other:?}, not left or right")),
        };
        if !matches!(config["pad_language_to"].as_str(), None | Some("max_length")) {
            return Err(format!("`pad_language_to` is {}; supported: max_length", config["pad_language_to"]));
        }
        let number = |value: &Json, default: i64| value.as_i64().unwrap_or(default);
        Ok(Self {
            space: ActionSpace::of(config)?,
            num_features: convolutions.num_features(resolution)?,
            resolution,
            patch: convolutions.patch(),
            resizes,
            reads_state: config["use_proprio"].as_bool().unwrap_or(true),
            pad_token: number(&text["pad_token_id"], 1),
            pads_left,
            domain_key: config["domain_feature_key"].as_str().map(str::to_owned),
            domain: 0,
            num_domains: number(&config["num_domains"], 30),
            note: note(vision, text),
        })
    }

    /// Returns the same rules with the domain that all samples have.
    ///
    /// # Errors
    /// The reason: the policy has not so many.
    pub fn with_domain(self, domain: i64) -> Result<Self, String> {
        match (0..self.num_domains).contains(&domain) {
            true => Ok(Self { domain, ..self }),
            false => {
                Err(format!("domain {domain} does not exist: the policy has {} (`num_domains`)", self.num_domains))
            }
        }
    }

    /// Returns the domain of a step.
    ///
    /// # Errors
    /// Named by the feature: it is not one whole number below `num_domains`.
    pub fn domain_of(&self, step: &Step) -> Result<i64, DataError> {
        let Some(key) = self.domain_key.as_deref().filter(|key| step.set().info().feature(key).is_some()) else {
            return Ok(self.domain);
        };
        let found = step.numbers(key)?;
        let value = found.first().copied().unwrap_or(-1.0);
        match value.fract() == 0.0 && (0.0..self.num_domains as f32).contains(&value) {
            true => Ok(value as i64),
            false => Err(DataError::Line(format!(
                "{key} is {found:?}, but a domain is a number from 0 to {}",
                self.num_domains - 1
            ))),
        }
    }

    /// Returns a prompt of `ids`, at most `len`, filled up to this length. Attention has no mask: what fills it up is read as well.
    pub fn filled(&self, mut ids: Vec<i64>, len: usize) -> Vec<i64> {
        let missing = len.saturating_sub(ids.len());
        let at = if self.pads_left { 0 } else { ids.len() };
        ids.splice(at..at, std::iter::repeat_n(self.pad_token, missing));
        ids
    }

    /// Makes the item of a picture: patches row by row, `[patches, 3 × patch × patch]`. It is as large as it fits, at the lower right,
    /// with zeros around it, which are ImageNet's mean.
    ///
    /// # Errors
    /// The picture has another size, and the config does not say that it is resized.
    pub fn item(&self, picture: &RgbImage) -> Result<Media, DataError> {
        let [rows, columns] = self.resolution;
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        if !self.resizes && [height, width] != [rows, columns] {
            return Err(DataError::Line(format!(
                "has a picture of {height}×{width}, but the policy takes {rows}×{columns}: set \
                 resize_imgs_with_padding in its config.json to resize pictures"
            )));
        }
        let canvas = fitted(picture, rows, columns);
        let [down, across] = self.resolution.map(|side| (side / self.patch) as u32);
        let grid = Grid { t: 1, h: down, w: across };
        let pixels = cut(&canvas, self.resolution, self.patch);
        Ok(Media { tower: Tower::Vision, grid, num_features: self.num_features, pixels })
    }
}

/// Rows and columns of pictures, and whether they are resized to them.
fn resolution(config: &Json) -> Result<([usize; 2], bool), String> {
    let checked = |key: &str, sides: [&Json; 2]| match sides.map(Json::as_u64) {
        [Some(rows), Some(columns)] if (1..=4096).contains(&rows) && (1..=4096).contains(&columns) => {
            Ok([rows as usize, columns as usize])
        }
        _ => Err(format!("`{key}` has {} and {}, not two sides", sides[0], sides[1])),
    };
    let resized = &config["resize_imgs_with_padding"];
    if !resized.is_null() {
        return Ok((checked("resize_imgs_with_padding", [&resized[0], &resized[1]])?, true));
    }
    let features = config["input_features"].as_object().into_iter().flatten();
    let mut cameras = features.filter(|(_, feature)| feature["type"] == "VISUAL");
    let Some((key, first)) = cameras.next() else {
        return Err("`resize_imgs_with_padding` is missing, and `input_features` has no camera".to_owned());
    };
    if let Some((other, _)) = cameras.find(|(_, feature)| feature["shape"] != first["shape"]) {
        return Err(format!("{key} and {other} have pictures of different sizes: set `resize_imgs_with_padding`"));
    }
    Ok((checked(key, [&first["shape"][1], &first["shape"][2]])?, false))
}

/// Says which parts of the original's training are left out.
fn note(vision: &Json, text: &Json) -> Option<String> {
    let of_config = dropped(vision, text).map_or_else(String::new, |rates| format!(", nor {rates} of florence_config"));
    Some(format!("X-VLA is trained without the dropout of its transformer (0.1 in lerobot){of_config}"))
}

/// Returns `[3, rows, columns]`: the picture normalized and as large as it fits, at the lower right, with zeros around it. Resized as
/// torch interpolates bilinearly, without smoothing.
fn fitted(picture: &RgbImage, rows: usize, columns: usize) -> Vec<f32> {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let ratio = (width as f64 / columns as f64).max(height as f64 / rows as f64);
    // Cut off, as `int` does.
    let (new_height, new_width) = match (height, width) == (rows, columns) {
        true => (rows, columns),
        false => ((height as f64 / ratio) as usize, (width as f64 / ratio) as usize),
    };
    let (new_height, new_width) = (new_height.clamp(1, rows), new_width.clamp(1, columns));
    let (top, left) = (rows - new_height, columns - new_width);
    let (down, across) = (taps(height, new_height), taps(width, new_width));
    let bytes = picture.as_raw();
    let mut canvas = vec![0.0; 3 * rows * columns];
    for (y, &(above, below, by)) in down.iter().enumerate() {
        for (x, &(before, behind, bx)) in across.iter().enumerate() {
            for channel in 0..3 {
                let at = |row: usize, column: usize| {
                    (f32::from(bytes[(row * width + column) * 3 + channel]) / 255.0 - MEAN[channel]) / STD[channel]
                };
                let mix = |row: usize| (1.0 - bx) * at(row, before) + bx * at(row, behind);
                canvas[(channel * rows + top + y) * columns + left + x] = (1.0 - by) * mix(above) + by * mix(below);
            }
        }
    }
    canvas
}
