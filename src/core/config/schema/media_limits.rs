//! Sizes of images, videos and their frames.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Area;

/// Size of images; `null`: from the model's preprocessor config.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ImageLimits {
    /// Smaller images are enlarged to this many pixels; `null`: from the preprocessor config.
    #[schemars(range(min = 1))]
    pub min_pixels: Option<usize>,
    /// Larger images are reduced to this many pixels; `null`: from the preprocessor config.
    #[schemars(range(min = 1))]
    pub max_pixels: Option<usize>,
    /// Longest side in pixels; a larger image is a bad sample.
    #[schemars(range(min = 1))]
    pub max_side: usize,
    /// Largest number of pixels before an image is reduced; an image with more is a bad sample, and so is a video with such frames.
    #[schemars(range(min = 1))]
    pub max_decoded_pixels: usize,
    /// Diffusion models: larger images are reduced to this size, `1024x1024` or a number of pixels; smaller ones keep their size.
    /// Sides are cropped to whole patches. `null`: no limit.
    pub area: Option<Area>,
    /// Diffusion models: sides are cropped to multiples of this many pixels, so that images have few sizes (buckets). It must be
    /// a multiple of a patch's side, which is 16 for Wan and Qwen-Image and 32 for TI2V-5B. `null`: whole patches.
    #[schemars(range(min = 1, max = 4096))]
    pub bucket: Option<usize>,
}

/// Frames of videos; `null`: from the model's video preprocessor config.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VideoLimits {
    /// Frames per second to take from a video; `null` for a diffusion model: 24 for TI2V-5B, 16 for other Wan models.
    #[schemars(range(max = 1000.0), extend("exclusiveMinimum" = 0.0))]
    pub fps: Option<f64>,
    /// Minimum number of frames to take, if the video has that many.
    #[schemars(range(min = 1))]
    pub min_frames: Option<usize>,
    /// Maximum number of frames to take.
    #[schemars(range(min = 1))]
    pub max_frames: Option<usize>,
    /// Smaller frames are enlarged to this many pixels; in Qwen3-VL and later the total of all frames.
    #[schemars(range(min = 1))]
    pub min_pixels: Option<usize>,
    /// Larger frames are reduced to this many pixels; in Qwen3-VL and later the total of all frames.
    #[schemars(range(min = 1))]
    pub max_pixels: Option<usize>,
    /// Pass the sound of an MP4 file, aligned with the frames, to models that hear videos (Qwen2.5-Omni, Qwen3-Omni).
    pub sound: bool,
    /// Diffusion models: larger frames are reduced to this size, `480x832` or a number of pixels; `null`: no limit.
    pub area: Option<Area>,
    /// Diffusion models: as `data.image.bucket`, for the frames of clips.
    #[schemars(range(min = 1, max = 4096))]
    pub bucket: Option<usize>,
    /// Diffusion models: maximum number of frames of a clip at `fps`, one more than a multiple of the frames that the autoencoder
    /// merges (4 for Wan: 17, 49, 81); `null`: all.
    #[schemars(range(min = 1))]
    pub frames: Option<usize>,
    /// Diffusion models: which frames of a longer video to use. `head`: the first; `middle`: the middle; `sliding`: from a random
    /// position, a new one each time the video is read; `chunks`: one of the pieces the video is cut into, chosen in the same way;
    /// `uniform`: evenly spaced over the whole video; `whole`: all, and a longer video is a bad sample. `null`: `head`.
    pub take: Option<Take>,
    /// TI2V-5B: probability that a clip is conditioned on its first frame, which then gets no noise and is not in the loss. Above
    /// 0, the clips of `sample.prompts` begin with the pictures of their records. `null`: none.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub first_frame: Option<f64>,
}

/// The frames of a longer video that are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Take {
    #[default]
    Head,
    Middle,
    Sliding,
    Chunks,
    Uniform,
    Whole,
}

impl Default for ImageLimits {
    fn default() -> Self {
        Self {
            min_pixels: None,
            max_pixels: None,
            max_side: 16384,
            max_decoded_pixels: 1 << 26,
            area: None,
            bucket: None,
        }
    }
}
