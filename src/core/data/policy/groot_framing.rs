//! The part of a camera's picture that GR00T is given, before the processor of its vision-language model reads it: the middle, in
//! training as well, as the reference does when it evaluates.

use std::path::Path;

use image::RgbImage;
use serde_json::Value as Json;

use super::spec::only;
use crate::data::card::GrootVersion;
use crate::data::error::DataError;
use crate::data::media::{expect_aspect, middle, resize_area, resize_bicubic};
use crate::data::tokenizer_file::read_json_if_exists;

/// Rows and columns of a picture of N1.7, and of its middle that is kept before that is made as large again.
pub const SIDE: usize = 256;
pub const CROP: usize = 230;
/// The longest that a shorter side can be.
const MAX_EDGE: u64 = 1024;
/// NVIDIA's file of samples, which goes before the model's config.
const PROCESSOR: &str = "processor_config.json";
/// The keys, there and in the model's config, that say how pictures are cut.
const KEYS: [&str; 5] =
    ["image_target_size", "image_crop_size", "shortest_image_edge", "crop_fraction", "letter_box_transform"];

/// The way in which pictures are cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Framing {
    /// The picture is made square whatever its sides are; then its middle is made as large again (N1.7).
    Square,
    /// The shorter side has so many pixels, `fraction` of each side is kept, and the shorter side has as many again (N1.6, OpenCV's
    /// `INTER_AREA`).
    Edge { edge: usize, fraction: f64 },
}

impl Framing {
    /// Reads the framing from the keys of NVIDIA's config.
    ///
    /// # Errors
    /// The reason: a key that is wrong or not implemented.
    pub fn of(version: GrootVersion, keys: &Json) -> Result<Self, String> {
        only(keys, "letter_box_transform", &[Json::Null, false.into()])?;
        if version == GrootVersion::N1_7 {
            only(keys, "image_target_size", &[Json::Null, [SIDE, SIDE].as_slice().into()])?;
            only(keys, "image_crop_size", &[Json::Null, [CROP, CROP].as_slice().into()])?;
            only(keys, "shortest_image_edge", &[Json::Null])?;
            only(keys, "crop_fraction", &[Json::Null])?;
            return Ok(Self::Square);
        }
        // The other way is torchvision's, which no published policy goes.
        for key in ["use_albumentations_transforms", "use_albumentations"] {
            only(keys, key, &[Json::Null, true.into()])?;
        }
        // Absent and null differ there: null leaves the matter to the sizes.
        let sizes = |key: &str| {
            let side = keys[key][0].as_u64().filter(|side| (1..=MAX_EDGE).contains(side));
            side.ok_or_else(|| format!("`{key}` is {:.80}, not two sides from 1 to {MAX_EDGE}", keys[key].to_string()))
        };
        let edge = match keys.get("shortest_image_edge") {
            None => SIDE as u64,
            Some(Json::Null) => sizes("image_target_size")?,
            Some(edge) => edge
                .as_u64()
                .filter(|edge| (1..=MAX_EDGE).contains(edge))
                .ok_or_else(|| format!("`shortest_image_edge` is {edge:.80}, not a number from 1 to {MAX_EDGE}"))?,
        };
        let fraction = match keys.get("crop_fraction") {
            None => 0.95,
            Some(Json::Null) => sizes("image_crop_size")? as f64 / sizes("image_target_size")? as f64,
            Some(fraction) => fraction.as_f64().unwrap_or(f64::NAN),
        };
        match fraction > 0.0 && fraction <= 1.0 {
            true => Ok(Self::Edge { edge: edge as usize, fraction }),
            false => Err(format!("`crop_fraction` is {fraction}, but must be above 0 and at most 1")),
        }
    }

    /// Returns the same by the keys of NVIDIA's processor file in `folder`, where N1.6 has one: the reference goes by that alone.
    ///
    /// # Errors
    /// The file is not JSON, or has a key that is wrong or not implemented.
    pub fn of_folder(version: GrootVersion, keys: &Json, folder: &Path) -> Result<Self, DataError> {
        let path = folder.join(PROCESSOR);
        let file = read_json_if_exists(&path)?;
        let own = &file["processor_kwargs"];
        if version == GrootVersion::N1_7 || !own.is_object() {
            return Self::of(version, keys).map_err(|reason| DataError::file(&folder.join("config.json"), reason));
        }
        let wrong = |reason: String| DataError::file(&path, reason);
        only(own, "formalize_language", &[Json::Null, true.into()]).map_err(wrong)?;
        let mut all = keys.clone();
        for key in KEYS.into_iter().chain(["use_albumentations"]) {
            if let Some(value) = own.get(key) {
                all[key] = value.clone();
            }
        }
        Self::of(version, &all).map_err(wrong)
    }

    /// Returns the sides of a picture that is as high as wide.
    pub fn side(self) -> usize {
        match self {
            Self::Square => SIDE,
            Self::Edge { edge, .. } => edge,
        }
    }

    /// Returns the picture as the processor is given it.
    ///
    /// # Errors
    /// The reason: it has no pixels.
    pub fn apply(self, picture: &RgbImage) -> Result<RgbImage, String> {
        match self {
            Self::Square => {
                let square = resize_bicubic(picture, SIDE, SIDE)?;
                let middle = of_bytes(middle(&square, (SIDE, SIDE), (CROP, CROP)), (CROP, CROP))?;
                let whole = resize_bicubic(&middle, SIDE, SIDE)?.into_owned();
                of_bytes(whole, (SIDE, SIDE))
            }
            Self::Edge { edge, fraction } => {
                let whole = with_edge(picture, edge)?;
                let (width, height) = (whole.width() as usize, whole.height() as usize);
                let kept = |side: usize| ((side as f64 * fraction) as usize).max(1);
                let size = (kept(width), kept(height));
                with_edge(&of_bytes(middle(&whole, (width, height), size), size)?, edge)
            }
        }
    }
}

/// Returns a picture whose shorter side is `edge` (`SmallestMaxSize` of albumentations 1.4).
fn with_edge(picture: &RgbImage, edge: usize) -> Result<RgbImage, String> {
    let (width, height) = picture.dimensions();
    let shorter = width.min(height);
    if shorter == 0 {
        return Err("the picture has no pixels".to_owned());
    }
    // What it becomes has as many more pixels as it is longer than wide.
    expect_aspect(width as usize, height as usize)?;
    let scale = edge as f64 / f64::from(shorter);
    let side = |old: u32| ((f64::from(old) * scale).round_ties_even() as usize).max(1);
    let size = (side(width), side(height));
    of_bytes(resize_area(picture, size.0, size.1), size)
}

fn of_bytes(bytes: Vec<u8>, (width, height): (usize, usize)) -> Result<RgbImage, String> {
    RgbImage::from_raw(width as u32, height as u32, bytes)
        .ok_or_else(|| "the picture has another size than expected".to_owned())
}

#[cfg(test)]
mod tests {
    use image::RgbImage;
    use serde_json::json;

    use super::Framing;
    use crate::data::card::GrootVersion;

    #[test]
    fn sides_are_bounded_and_settings_that_are_not_implemented_are_named() {
        let framing = Framing::of(GrootVersion::N1_6, &json!({ "shortest_image_edge": 32 })).unwrap();
        assert_eq!(framing, Framing::Edge { edge: 32, fraction: 0.95 });
        let size = |width, height| framing.apply(&RgbImage::new(width, height)).map(|picture| picture.dimensions());
        assert_eq!(size(3, 500), Ok((32, 5404)));
        assert!(size(3, 603).unwrap_err().contains("3×603 pixels"));
        assert!(size(0, 5).unwrap_err().contains("has no pixels"));
        let sizes = json!({ "crop_fraction": null, "shortest_image_edge": null, "image_target_size": [64, 64],
            "image_crop_size": [48, 48] });
        assert_eq!(Framing::of(GrootVersion::N1_6, &sizes), Ok(Framing::Edge { edge: 64, fraction: 0.75 }));
        for (key, value) in [
            ("shortest_image_edge", json!(2048)),
            ("crop_fraction", json!(1.5)),
            ("crop_fraction", json!(null)),
            ("letter_box_transform", json!(true)),
            ("use_albumentations_transforms", json!(false)),
        ] {
            let reason = Framing::of(GrootVersion::N1_6, &json!({ key: value })).unwrap_err();
            assert!(reason.contains(key) || reason.contains("image_crop_size"), "{reason}");
        }
    }
}
