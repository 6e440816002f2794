//! The keys of `preprocessor_config.json` and `video_preprocessor_config.json` that processors read.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value as Json;

use crate::data::error::DataError;
use crate::data::tokenizer_file::{read_json, read_json_if_exists};

/// A filter by which pictures are resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filter {
    Lanczos,
    Bilinear,
    Bicubic,
}

/// PIL's numbers for the filters that these models are trained with: bicubic, but for SigLIP 2, Gemma 3 and SmolVLM.
const LANCZOS: u8 = 1;
const BILINEAR: u8 = 2;
const BICUBIC: u8 = 3;

pub const CLIP: ([f32; 3], [f32; 3]) =
    ([0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1]);
pub const HALF: ([f32; 3], [f32; 3]) = ([0.5; 3], [0.5; 3]);

/// One of the two files, under Hugging Face's names; what is absent is the family's default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Settings {
    #[serde(skip)]
    path: PathBuf,
    /// Mean and standard deviation where the file has none.
    #[serde(skip)]
    default_color: Option<([f32; 3], [f32; 3])>,
    /// The filter where the file has none.
    #[serde(skip)]
    default_filter: Option<u8>,
    /// True if these are settings of pictures, used for videos since the folder has no others.
    #[serde(skip)]
    of_pictures: bool,
    pub patch_size: Option<usize>,
    #[serde(alias = "merge_kernel_size")]
    pub merge_size: Option<usize>,
    #[serde(alias = "temporal_merge_kernel_size")]
    pub temporal_patch_size: Option<usize>,
    size: Option<Size>,
    min_pixels: Option<usize>,
    max_pixels: Option<usize>,
    image_mean: Option<[f32; 3]>,
    image_std: Option<[f32; 3]>,
    rescale_factor: Option<f32>,
    resample: Option<u8>,
    crop_size: Option<Size>,
    do_center_crop: Option<bool>,
    /// Gemma 3: crops of a long picture beside the whole.
    do_pan_and_scan: Option<bool>,
    /// SmolVLM: whether a picture is cut into tiles.
    pub do_image_splitting: Option<bool>,
    max_image_size: Option<Size>,
    /// Features of a picture.
    pub image_seq_length: Option<usize>,
    do_resize: Option<bool>,
    do_rescale: Option<bool>,
    do_normalize: Option<bool>,
    /// LLaVA's own class: pictures are padded to squares with the mean color. Other classes pad pictures that are of one size already.
    do_pad: Option<bool>,
    image_processor_type: Option<String>,
    pub min_patches: Option<usize>,
    /// Tiles of a picture (InternVL), patches of a picture (Kimi).
    #[serde(alias = "in_patch_limit")]
    pub max_patches: Option<usize>,
    pub in_patch_limit_each_frame: Option<usize>,
    pub patch_limit_on_one_side: Option<usize>,
    /// Kimi: patches of all frames that are encoded together, features of any picture, and how times are written.
    pub in_patch_limit_video: Option<usize>,
    pub fixed_output_tokens: Option<usize>,
    pub timestamp_mode: Option<String>,
    #[serde(alias = "sample_fps")]
    pub fps: Option<f64>,
    pub num_frames: Option<usize>,
    pub min_frames: Option<usize>,
    #[serde(alias = "max_num_frames_each_video")]
    pub max_frames: Option<usize>,
    pub cap_pixels_per_frame: Option<bool>,
    pub max_video_tokens: Option<usize>,
    pub draw_on_frames: Option<bool>,
    /// MiniCPM-V: most slices of a picture.
    pub max_slice_nums: Option<usize>,
    /// The side of a square of as many pixels as a slice has.
    pub scale_resolution: Option<usize>,
    pub slice_mode: Option<bool>,
    pub downsample_mode: Option<String>,
    /// True if pictures are numbered in the text.
    pub use_image_id: Option<bool>,
    /// Frames of a second that are one picture.
    pub stack_frames: Option<usize>,
    pub max_num_frames: Option<usize>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Size {
    Side(usize),
    Sides(Sides),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Sides {
    shortest_edge: Option<usize>,
    longest_edge: Option<usize>,
    min_pixels: Option<usize>,
    max_pixels: Option<usize>,
    height: Option<usize>,
    width: Option<usize>,
    max_height: Option<usize>,
}

/// Says which limit the run sets without the other one, so that the file's, or that of the model's family, contradicts it.
pub fn set_alone(limits: (Option<usize>, Option<usize>), (min, max): (&str, &str)) -> String {
    let (set, beside) = match limits {
        (None, Some(_)) => (max, min),
        (Some(_), None) => (min, max),
        _ => return String::new(),
    };
    format!("; the run sets {set} alone: set {beside} beside it")
}

impl Settings {
    /// Reads the settings of pictures and those of videos, which are the pictures' where a folder has no others.
    ///
    /// # Errors
    /// A file is missing or of another form, or asks for what is not known.
    pub fn read(model_dir: &Path) -> Result<(Self, Self), DataError> {
        let both = model_dir.join("processor_config.json");
        let nested = read_json_if_exists(&both)?;
        let image_path = model_dir.join("preprocessor_config.json");
        let (image, image_path) = match &nested["image_processor"] {
            Json::Object(_) => (nested["image_processor"].clone(), both.clone()),
            _ if image_path.exists() => (read_json(&image_path)?, image_path),
            _ => {
                let reason = "is missing, which says how pictures become the input of the image tower: copy that of the tower's \
                              model, or name a folder that has it in `model.image_encoder.load`";
                return Err(DataError::file(&image_path, reason));
            }
        };
        let video_path = model_dir.join("video_preprocessor_config.json");
        let (video, video_path, of_pictures) = match &nested["video_processor"] {
            Json::Object(_) => (nested["video_processor"].clone(), both, false),
            _ if video_path.exists() => (read_json(&video_path)?, video_path, false),
            _ => (image.clone(), image_path.clone(), true),
        };
        Ok((Self::parse(image, image_path)?, Self { of_pictures, ..Self::parse(video, video_path)? }))
    }

    /// Works like [`Settings::read`]; the families' defaults where there is no file.
    ///
    /// # Errors
    /// A file is of another form, or asks for what is not known.
    pub fn read_or_default(model_dir: &Path) -> Result<(Self, Self), DataError> {
        let names = ["preprocessor_config.json", "processor_config.json"];
        match names.iter().any(|name| model_dir.join(name).is_file()) {
            true => Self::read(model_dir),
            false => Ok((Self::default(), Self::default())),
        }
    }

    /// Reads the settings; Kimi's own files nest them under `media_proc_cfg`.
    ///
    /// # Errors
    /// A key has the wrong type, or a value that is not implemented.
    pub fn parse(json: Json, path: PathBuf) -> Result<Self, DataError> {
        // Kimi's own files nest them.
        let json = match &json["media_proc_cfg"] {
            Json::Object(_) => json["media_proc_cfg"].clone(),
            _ => json,
        };
        let settings: Self = serde_json::from_value(json).map_err(|error| DataError::file(&path, error))?;
        let all = settings.do_resize != Some(false)
            && settings.do_rescale != Some(false)
            && settings.do_normalize != Some(false);
        // Processors of tiles of `max_image_size` are the only ones with Lanczos.
        let known = |filter: u8| {
            [BILINEAR, BICUBIC].contains(&filter)
                || filter == LANCZOS && (settings.do_image_splitting.is_some() || settings.max_image_size.is_some())
        };
        if settings.resample.is_some_and(|filter| !known(filter)) || !all {
            let known =
                "only do_resize, do_rescale, do_normalize and resample: 3 (bicubic) or 2 (bilinear) are supported";
            return Err(DataError::file(&path, known));
        }
        let class = settings.image_processor_type.as_deref().unwrap_or_default();
        if settings.do_pad == Some(true) && class.starts_with("LlavaImageProcessor") {
            let reason = format!("do_pad is true; only false is supported of {class}: a picture's middle is cut out");
            return Err(DataError::file(&path, reason));
        }
        Ok(Self { path, ..settings })
    }

    /// Pictures are resized with the bilinear filter and not with the bicubic one.
    pub fn is_bilinear(&self) -> bool {
        self.resample.or(self.default_filter) == Some(BILINEAR)
    }

    /// Returns the filter, `default` where the file has none.
    pub fn filter_or(&self, default: Filter) -> Filter {
        match self.resample {
            Some(LANCZOS) => Filter::Lanczos,
            Some(BILINEAR) => Filter::Bilinear,
            Some(_) => Filter::Bicubic,
            None => default,
        }
    }

    /// Sets the bilinear filter where the file has none.
    pub fn or_bilinear(self) -> Self {
        Self { default_filter: Some(BILINEAR), ..self }
    }

    /// Sets the family's colors where the file has none.
    pub fn or_color(self, color: ([f32; 3], [f32; 3])) -> Self {
        Self { default_color: Some(color), ..self }
    }

    /// Sets this range of pixels where the folder gives none for videos themselves.
    pub fn or_pixels(self, (min, max): (usize, usize)) -> Self {
        let says = self.size.is_some() || self.min_pixels.is_some() || self.max_pixels.is_some();
        match says && !self.of_pictures {
            true => self,
            false => Self { size: None, min_pixels: Some(min), max_pixels: Some(max), ..self },
        }
    }

    /// Returns the mean of red, green and blue; CLIP's where the file says none.
    pub fn mean(&self) -> [f32; 3] {
        self.image_mean.or(self.default_color.map(|color| color.0)).unwrap_or(CLIP.0)
    }

    /// Returns the standard deviations likewise.
    pub fn std(&self) -> [f32; 3] {
        self.image_std.or(self.default_color.map(|color| color.1)).unwrap_or(CLIP.1)
    }

    /// Returns the factor before normalization.
    pub fn rescale_factor(&self) -> f32 {
        self.rescale_factor.unwrap_or(1.0 / 255.0)
    }

    /// Returns the range of pixels; `limits` are the run's, which come first.
    ///
    /// # Errors
    /// The smaller number is 0, or larger than the other.
    pub fn pixels(
        &self,
        limits: (Option<usize>, Option<usize>),
        default: (usize, usize),
    ) -> Result<(usize, usize), DataError> {
        let sides = self.sides();
        let min = limits.0.or(self.min_pixels).or(sides.shortest_edge).or(sides.min_pixels).unwrap_or(default.0);
        let max = limits.1.or(self.max_pixels).or(sides.longest_edge).or(sides.max_pixels).unwrap_or(default.1);
        if min > max {
            let alone = set_alone(limits, ("min_pixels", "max_pixels"));
            return Err(self.wrong(format!("min_pixels ({min}) must not exceed max_pixels ({max}){alone}")));
        }
        Ok((self.positive("min_pixels", Some(min), min)?, max))
    }

    /// Returns the side of a square to which everything is resized.
    ///
    /// # Errors
    /// The file asks for a rectangle that is no square.
    pub fn side(&self) -> Result<Option<usize>, DataError> {
        match (&self.size, self.sides()) {
            (Some(Size::Side(side)), _) => Ok(Some(*side)),
            (_, Sides { height: Some(height), width: Some(width), .. }) if height == width => Ok(Some(height)),
            (_, Sides { height: Some(height), width: Some(width), .. }) => {
                Err(self.wrong(format!("size is {width}×{height}; only square tiles are supported")))
            }
            _ => Ok(None),
        }
    }

    /// Returns the side of the square that is cut out of the middle of a picture, and the length to which its shorter side is resized
    /// before that: `crop_size` and `size`, `default` where the file has none. Without a crop the whole picture becomes a square of
    /// `size`, whatever its shape: `None`.
    ///
    /// # Errors
    /// The file asks for something else, or the square is larger than the resized picture may be.
    pub fn crop(&self, default: usize) -> Result<(usize, Option<usize>), DataError> {
        if self.do_center_crop == Some(false) {
            let side = self.side()?.ok_or_else(|| {
                self.wrong("do_center_crop is false: size must have the height and width of a square".to_owned())
            })?;
            return Ok((self.positive("size", Some(side), default)?, None));
        }
        let side = match &self.crop_size {
            None => default,
            Some(Size::Side(side) | Size::Sides(Sides { height: Some(side), width: None, .. })) => *side,
            Some(Size::Sides(Sides { height: Some(height), width: Some(width), .. })) if height == width => *height,
            Some(Size::Sides(_)) => return Err(self.wrong("crop_size must be a square".to_owned())),
        };
        let shorter = match (&self.size, self.sides()) {
            (None, _) => default,
            (Some(Size::Side(side)), _) => *side,
            (_, Sides { shortest_edge: Some(side), longest_edge: None, .. }) => side,
            _ => {
                let reason = "size must have shortest_edge alone, which is all that this tower supports: if the file is that of \
                              another tower, name a folder with this one's in `model.image_encoder.load`";
                return Err(self.wrong(reason.to_owned()));
            }
        };
        let side = self.positive("crop_size", Some(side), default)?;
        match shorter < side {
            true => Err(self.wrong(format!("size {shorter} is below crop_size {side}"))),
            false => Ok((side, Some(shorter))),
        }
    }

    /// Returns whether the middle of a picture is cut out.
    pub fn crops(&self) -> bool {
        self.do_center_crop == Some(true)
    }

    /// Returns the longest side to which pictures are resized.
    pub fn longest_edge(&self) -> Option<usize> {
        self.sides().longest_edge
    }

    /// Returns the side of a tile.
    pub fn max_image_size(&self) -> Option<usize> {
        match &self.max_image_size {
            Some(Size::Side(side)) => Some(*side),
            Some(Size::Sides(sides)) => sides.longest_edge,
            None => None,
        }
    }

    /// Returns the most patches on one side of a picture.
    pub fn max_side_patches(&self) -> Option<usize> {
        self.sides().max_height.or(self.patch_limit_on_one_side)
    }

    /// # Errors
    /// The file asks for crops beside the whole picture.
    pub fn no_crops(&self) -> Result<(), DataError> {
        match self.do_pan_and_scan {
            Some(true) => {
                Err(self.wrong("do_pan_and_scan is true; only false is supported: a picture is one square".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Reads a key that must be above 0.
    ///
    /// # Errors
    /// It is 0.
    pub fn positive(&self, key: &str, value: Option<usize>, default: usize) -> Result<usize, DataError> {
        match value.unwrap_or(default) {
            0 => Err(self.wrong(format!("{key} must be above 0"))),
            value => Ok(value),
        }
    }

    /// Makes the error of the settings' file.
    pub fn wrong(&self, reason: String) -> DataError {
        DataError::file(&self.path, reason)
    }

    fn sides(&self) -> Sides {
        match &self.size {
            Some(Size::Sides(sides)) => sides.clone(),
            _ => Sides::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_name_the_file() {
        let error = |json: &str| {
            let json = serde_json::from_str(json).unwrap();
            let settings = Settings::parse(json, "dir/preprocessor_config.json".into());
            let error = settings.and_then(|settings| {
                settings.positive("patch_size", settings.patch_size, 14)?;
                settings.pixels((None, None), (1, 2))?;
                settings.side()?;
                settings.crop(224)
            });
            error.unwrap_err().to_string()
        };
        for (json, part) in [
            (r#"{"patch_size": 0}"#, "patch_size must be above 0"),
            (r#"{"resample": 1}"#, "resample: 3"),
            (r#"{"size": {"shortest_edge": 9, "longest_edge": 3}}"#, "must not exceed max_pixels (3)"),
            (r#"{"size": {"height": 9, "width": 3}}"#, "only square"),
            (r#"{"patch_size": "x"}"#, "invalid type"),
            (r#"{"do_center_crop": false}"#, "do_center_crop is false: size must have the height"),
            (r#"{"crop_size": {"height": 9, "width": 8}}"#, "crop_size must be a square"),
            (r#"{"size": 64, "crop_size": 65}"#, "size 64 is below crop_size 65"),
            (r#"{"do_pad": true, "image_processor_type": "LlavaImageProcessorFast"}"#, "do_pad is true; only false"),
            (r#"{"size": {"shortest_edge": 3, "longest_edge": 9}, "crop_size": 3}"#, "in `model.image_encoder.load`"),
        ] {
            let error = error(json);
            assert!(error.contains(part) && error.contains("preprocessor_config.json"), "{error}");
        }
    }

    #[test]
    fn videos_may_have_a_range_of_their_own_beside_that_of_pictures() {
        let range = |file: &str| {
            let folder = tempfile::tempdir().unwrap();
            for name in ["preprocessor_config.json", file] {
                std::fs::write(folder.path().join(name), r#"{"min_pixels": 5, "max_pixels": 9}"#).unwrap();
            }
            let (image, video) = Settings::read(folder.path()).unwrap();
            [image, video.or_pixels((100, 700))].map(|settings| settings.pixels((None, None), (1, 2)).unwrap())
        };
        assert_eq!(range("preprocessor_config.json"), [(5, 9), (100, 700)]);
        assert_eq!(range("video_preprocessor_config.json"), [(5, 9), (5, 9)]);
        let silent = Settings::parse(serde_json::json!({"patch_size": 16}), "a".into()).unwrap();
        assert_eq!(silent.or_pixels((100, 700)).pixels((None, None), (1, 2)).unwrap(), (100, 700));
    }

    #[test]
    fn a_folder_without_settings_is_told_where_they_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let error = Settings::read(folder.path()).unwrap_err().to_string();
        assert!(error.contains("preprocessor_config.json: is missing"), "{error}");
        assert!(error.contains("`model.image_encoder.load`"), "{error}");
    }

    #[test]
    fn the_runs_limits_come_first() {
        let json = serde_json::json!({"min_pixels": 5, "max_pixels": 9, "size": {"shortest_edge": 2}});
        let settings = Settings::parse(json, "a".into()).unwrap();
        assert_eq!(settings.pixels((None, Some(7)), (1, 2)).unwrap(), (5, 7));
        let error = settings.pixels((None, Some(4)), (1, 2)).unwrap_err().to_string();
        assert!(error.contains("the run sets max_pixels alone: set min_pixels beside it"), "{error}");
        assert_eq!(settings.rescale_factor(), 1.0 / 255.0);
    }
}
