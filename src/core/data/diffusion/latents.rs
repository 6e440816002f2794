//! Sizes of latents: what an autoencoder and a transformer make of pixels.

use serde_json::Value as Json;

use crate::message::Grid;

/// The most levels of an autoencoder.
const MOST_LEVELS: usize = 16;

/// The most rows or columns of a patch, and numbers of a pixel.
const MOST_COUNT: u64 = 1 << 16;

/// The sizes by which a model's autoencoder and its patches divide pictures and clips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentSpace {
    /// Numbers of a pixel: 3, or 1 of gray pictures.
    pub channels: usize,
    /// Frames behind the first that become one frame of the latent.
    pub frames: usize,
    /// Pixels that become one of the latent, along rows and along columns.
    pub side: usize,
    /// Rows and columns of the latent that become one token.
    pub patch: [usize; 2],
}

impl LatentSpace {
    /// Returns the sizes of a diffusion model's `config.json`.
    ///
    /// # Errors
    /// The reason: a key is missing, or the autoencoder is of no known class.
    pub fn of(config: &Json) -> Result<Self, String> {
        let vae = &config["vae"];
        let count = |value: &Json, key: &str| {
            value
                .as_u64()
                .filter(|count| (1..=MOST_COUNT).contains(count))
                .map(|count| count as usize)
                .ok_or(format!("{key} must be a whole number from 1 to {MOST_COUNT}, found {value}"))
        };
        let patch = match &config["transformer"]["patch_size"] {
            Json::Array(sizes) if sizes.len() == 3 => {
                if sizes[0] != 1 {
                    return Err(format!("transformer.patch_size has {} frames, but only 1 is supported", sizes[0]));
                }
                [count(&sizes[1], "transformer.patch_size")?, count(&sizes[2], "transformer.patch_size")?]
            }
            // As the classes of both families have it.
            Json::Null => [2; 2],
            size => [count(size, "transformer.patch_size")?; 2],
        };
        let class = vae["_class_name"].as_str().unwrap_or_default();
        match class {
            "PixelLatents" => match count(&vae["channels"], "vae.channels")? {
                channels @ (1 | 3) => Ok(Self { channels, frames: 1, side: 1, patch }),
                channels => Err(format!("vae.channels must be 3, or 1 for gray pictures, found {channels}")),
            },
            "AutoencoderKLWan" | "AutoencoderKLQwenImage" => {
                let halvings = match &vae["dim_mult"] {
                    Json::Array(widths) => widths.len().saturating_sub(1),
                    Json::Null => 3,
                    other => return Err(format!("vae.dim_mult must be a list, found {other}")),
                };
                let doubles = match &vae["temperal_downsample"] {
                    Json::Array(stages) => stages.iter().filter(|stage| stage.as_bool() == Some(true)).count(),
                    Json::Null => 2,
                    other => return Err(format!("vae.temperal_downsample must be a list, found {other}")),
                };
                if halvings.max(doubles) >= MOST_LEVELS {
                    return Err(format!(
                        "vae.dim_mult must have at most {MOST_LEVELS} entries, vae.temperal_downsample one fewer"
                    ));
                }
                // Only Wan's class has patches.
                let (pixels, inputs) = match (class, &vae["patch_size"]) {
                    ("AutoencoderKLQwenImage", _) => (1, "input_channels"),
                    (_, Json::Null) => (1, "in_channels"),
                    (_, size) => (count(size, "vae.patch_size")?, "in_channels"),
                };
                let (found, colors) = (&vae[inputs], 3 * pixels * pixels);
                if !found.is_null() && found.as_u64() != Some(colors as u64) {
                    return Err(format!(
                        "vae.{inputs} must be {colors} (red, green and blue of each pixel), found {found}"
                    ));
                }
                Ok(Self { channels: 3, frames: 1 << doubles, side: pixels << halvings, patch })
            }
            _ => Err(format!(
                "vae._class_name must be AutoencoderKLWan, AutoencoderKLQwenImage or PixelLatents, found {class:?}"
            )),
        }
    }

    /// Returns the most of so many frames that the autoencoder takes: one, and a multiple of [`LatentSpace::frames`] more.
    pub fn whole(&self, frames: usize) -> usize {
        1 + frames.saturating_sub(1) / self.frames * self.frames
    }

    /// # Errors
    /// The reason: clips of so many frames would be shortened.
    pub fn check_frames(&self, frames: usize) -> Result<(), String> {
        let (whole, step) = (self.whole(frames), self.frames);
        match whole == frames {
            true => Ok(()),
            false => Err(format!(
                "is {frames}, but this autoencoder needs one more than a multiple of {step}: set {whole} or {}",
                whole + step
            )),
        }
    }

    /// Returns the tokens of a picture or clip of so many frames, rows and columns of pixels.
    pub fn tokens(&self, [frames, rows, columns]: [usize; 3]) -> Grid {
        let [unit_rows, unit_columns] = self.unit();
        let t = 1 + frames.saturating_sub(1) / self.frames;
        Grid { t: t as u32, h: (rows / unit_rows) as u32, w: (columns / unit_columns) as u32 }
    }

    /// Rows and columns of pixels of one token: sides are multiples of these.
    pub fn unit(&self) -> [usize; 2] {
        self.patch.map(|patch| patch * self.side)
    }
}

/// Brings a picture to a size of whole tokens: it is resized, then cut around the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Columns and rows after resizing.
    pub resized: (usize, usize),
    /// Columns and rows of what is kept.
    pub kept: (usize, usize),
}

impl Fit {
    /// Returns the native size under a limit of pixels: the sides are cut to multiples of `unit` (rows, columns), and a larger picture is
    /// reduced first.
    ///
    /// # Errors
    /// The reason: a side is shorter than the unit.
    pub fn native((width, height): (usize, usize), area: Option<u64>, unit: [usize; 2]) -> Result<Self, String> {
        let pixels = (width * height) as f64;
        let scale = area.map_or(1.0, |area| (area as f64 / pixels).sqrt().min(1.0));
        let [rows, columns] = unit;
        let whole = |side: usize, unit: usize| (side as f64 * scale + 1e-6) as usize / unit * unit;
        let kept = (whole(width, columns), whole(height, rows));
        if kept.0 == 0 || kept.1 == 0 {
            let of = if scale < 1.0 { ", reduced to its limit of pixels" } else { "" };
            return Err(format!("is {width}×{height} pixels{of}, less than {columns}×{rows}, the smallest size"));
        }
        match scale < 1.0 {
            true => Ok(Self::cover((width, height), kept)),
            false => Ok(Self { resized: (width, height), kept }),
        }
    }

    /// This size exactly: the picture is resized so that it covers it.
    pub fn cover((width, height): (usize, usize), kept: (usize, usize)) -> Self {
        let scale = (kept.0 as f64 / width as f64).max(kept.1 as f64 / height as f64);
        let side = |side: usize, least: usize| ((side as f64 * scale).round() as usize).max(least);
        Self { resized: (side(width, kept.0), side(height, kept.1)), kept }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_are_those_of_the_published_models() {
        let of = |vae: Json, patch: Json| LatentSpace::of(&json!({"vae": vae, "transformer": {"patch_size": patch}}));
        let wan = json!({"_class_name": "AutoencoderKLWan", "dim_mult": [1, 2, 4, 4],
                         "temperal_downsample": [false, true, true]});
        let wan = of(wan, json!([1, 2, 2])).unwrap();
        assert_eq!(wan, LatentSpace { channels: 3, frames: 4, side: 8, patch: [2, 2] });
        // 480p of 81 frames: 32,760 tokens.
        assert_eq!(wan.tokens([81, 480, 832]).num_cells(), 32_760);
        let five = json!({"_class_name": "AutoencoderKLWan", "patch_size": 2, "is_residual": true});
        assert_eq!(of(five, json!([1, 2, 2])).unwrap().unit(), [32, 32]);
        let qwen = of(json!({"_class_name": "AutoencoderKLQwenImage"}), json!(2)).unwrap();
        assert_eq!(qwen.tokens([1, 1024, 1024]).num_cells(), 4096);
        let pixels = of(json!({"_class_name": "PixelLatents", "channels": 1}), json!(2)).unwrap();
        assert_eq!(pixels.tokens([1, 8, 24]), Grid { t: 1, h: 4, w: 12 });
        for (vae, patch, reason) in [
            (json!({"_class_name": "AutoencoderKL"}), json!(2), "found \"AutoencoderKL\""),
            (
                json!({"_class_name": "AutoencoderKLWan", "temperal_downsample": vec![true; 70]}),
                json!(2),
                "vae.dim_mult must have at most 16 entries",
            ),
            (json!({"_class_name": "PixelLatents", "channels": 4}), json!(2), "gray pictures, found 4"),
            (json!({"_class_name": "PixelLatents", "channels": 1}), json!([2, 2, 2]), "2 frames"),
            (
                json!({"_class_name": "PixelLatents", "channels": 1}),
                json!(0),
                "transformer.patch_size must be a whole number from 1 to 65536, found 0",
            ),
            (
                json!({"_class_name": "AutoencoderKLWan"}),
                json!([1, 2, 1u64 << 60]),
                "transformer.patch_size must be a whole number from 1 to 65536, found 1152921504606846976",
            ),
            (
                json!({"_class_name": "AutoencoderKLQwenImage", "input_channels": 4}),
                json!(2),
                "vae.input_channels must be 3 (red, green and blue of each pixel), found 4",
            ),
            (
                json!({"_class_name": "AutoencoderKLWan", "patch_size": 2, "in_channels": 3}),
                json!([1, 2, 2]),
                "vae.in_channels must be 12 (red, green and blue of each pixel), found 3",
            ),
        ] {
            assert!(of(vae, patch).unwrap_err().contains(reason), "{reason}");
        }
    }

    #[test]
    fn pictures_keep_their_size_under_the_limit() {
        let native = |size, area| Fit::native(size, area, [16, 16]);
        assert_eq!(native((100, 50), None), Ok(Fit { resized: (100, 50), kept: (96, 48) }));
        assert_eq!(native((100, 50), Some(5000)), Ok(Fit { resized: (100, 50), kept: (96, 48) }));
        // 2000×1000 under 512²: 724×362, of which 720×352 are whole tokens.
        assert_eq!(native((2000, 1000), Some(512 * 512)), Ok(Fit { resized: (720, 360), kept: (720, 352) }));
        assert_eq!(native((1024, 1024), Some(512 * 512)), Ok(Fit { resized: (512, 512), kept: (512, 512) }));
        let small = native((15, 400), None).unwrap_err();
        assert_eq!(small, "is 15×400 pixels, less than 16×16, the smallest size");
        assert!(native((4000, 30), Some(1024)).unwrap_err().contains("reduced to its limit of pixels"));
        assert_eq!(Fit::cover((10, 30), (20, 20)), Fit { resized: (20, 60), kept: (20, 20) });
    }
}
