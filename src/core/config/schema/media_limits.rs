//! Sizes of pictures, of clips and their frames, and lengths of recordings.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::Area;

/// Size of images; `null`: as the model's preprocessor config says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ImageLimits {
    /// Smaller images are enlarged to this many pixels; `null`: as the preprocessor config says.
    #[schemars(range(min = 1))]
    pub min_pixels: Option<usize>,
    /// Larger images are reduced to this many pixels; `null`: as the preprocessor config says.
    #[schemars(range(min = 1))]
    pub max_pixels: Option<usize>,
    /// An image with a longer side, in pixels, is a bad sample.
    #[schemars(range(min = 1))]
    pub max_side: usize,
    /// An image with more pixels, before it is reduced, is a bad sample; so is a video of such frames.
    #[schemars(range(min = 1))]
    pub max_decoded_pixels: usize,
    /// Diffusion models: pictures with more pixels are reduced to these, `1024x1024` or their number; smaller ones keep their
    /// size. Sides are cut to whole patches. `null`: no limit.
    pub area: Option<Area>,
}

/// Frames of videos; `null`: as the model's video preprocessor config says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VideoLimits {
    /// Frames a second that are taken of a video; `null` for a diffusion model: 24 for TI2V-5B, 16 for other models of Wan.
    #[schemars(range(max = 1000.0), extend("exclusiveMinimum" = 0.0))]
    pub fps: Option<f64>,
    /// Fewest frames of a video, if it has as many.
    #[schemars(range(min = 1))]
    pub min_frames: Option<usize>,
    /// Most frames of a video.
    #[schemars(range(min = 1))]
    pub max_frames: Option<usize>,
    /// Smaller frames are enlarged to this many pixels; of all frames together in Qwen3-VL and later.
    #[schemars(range(min = 1))]
    pub min_pixels: Option<usize>,
    /// Larger frames are reduced to this many pixels; of all frames together in Qwen3-VL and later.
    #[schemars(range(min = 1))]
    pub max_pixels: Option<usize>,
    /// Give the sound of an MP4 file to a model that hears videos (Qwen2.5-Omni, Qwen3-Omni), in time with the frames.
    pub sound: bool,
    /// Diffusion models: frames with more pixels are reduced to these, `480x832` or their number; `null`: no limit.
    pub area: Option<Area>,
    /// Diffusion models: most frames of a clip at `fps`, one more than a multiple of the autoencoder's frames (of Wan 4: 17,
    /// 49, 81); `null`: all.
    #[schemars(range(min = 1))]
    pub frames: Option<usize>,
    /// Diffusion models: the frames of a longer video. `head`: its first; `middle`; `sliding`: from anywhere, by the visit;
    /// `chunks`: one of the pieces that it is cut into, by the visit; `uniform`: evenly spread over all of it; `whole`:
    /// all, and a longer video is a bad sample. `null`: `head`.
    pub take: Option<Take>,
    /// TI2V-5B: the part of visits to a clip that are given its first frame, which is then neither noised nor in the loss.
    /// Above 0, the clips of `sample.prompts` begin with the pictures of their records. `null`: none.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub first_frame: Option<f64>,
}

/// Says which frames of a longer video are taken.
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
        Self { min_pixels: None, max_pixels: None, max_side: 16384, max_decoded_pixels: 1 << 26, area: None }
    }
}
