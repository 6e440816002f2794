//! The autoencoders of Wan 2.1, Wan 2.2 and Qwen-Image as data (`AutoencoderKLWan`, `AutoencoderKLQwenImage`).

use serde_json::{Value, json};

use crate::model::keys::{Keys, ModelConfigError};

type Result<T> = std::result::Result<T, ModelConfigError>;

/// `latents_mean` and `latents_std` of Wan 2.1 and Qwen-Image, the defaults of both classes.
const MEAN: [f64; 16] = [
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517, -0.3632, -0.1922,
    -0.9497, 0.2503, -0.2921,
];
const STD: [f64; 16] = [
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253,
    2.8251, 1.9160,
];

/// The most levels, channels of a level and residual blocks of one: layers are bounded before they are listed.
const MOST_LEVELS: usize = 16;
const MOST_CHANNELS: i64 = 1 << 16;
const MOST_BLOCKS: i64 = 64;

/// An autoencoder of frames that sees no later frame than the one that it makes.
#[derive(Clone, Debug, PartialEq)]
pub struct VaeConfig {
    /// The prefix of all names.
    pub prefix: String,
    /// Channels of the widest pictures in the encoder and in the decoder.
    pub base: [i64; 2],
    /// The factor of the channels of each level.
    pub multipliers: Vec<i64>,
    /// Channels of a latent.
    pub latent_channels: i64,
    /// Residual blocks of a level of the encoder; the decoder has one more.
    pub num_blocks: usize,
    /// For each halving of rows and columns, whether frames are halved as well.
    pub halves_time: Vec<bool>,
    /// True if each level has a shortcut (Wan 2.2).
    pub has_shortcuts: bool,
    /// Values of a pixel.
    pub pixel_channels: i64,
    /// Side of the square of pixels that is one place of the network.
    pub patch: i64,
    /// The means of the channels, and their standard deviations: a latent is `(z - mean) / std`.
    pub mean: Vec<f64>,
    pub std: Vec<f64>,
}

impl VaeConfig {
    /// Reads `keys` of `AutoencoderKLWan`, or of `AutoencoderKLQwenImage` (`is_wan` false), with names under `prefix`.
    pub(in crate::model) fn read(keys: &Keys<'_>, prefix: &str, is_wan: bool) -> Result<VaeConfig> {
        let size = |key: &str, default: i64| Ok(keys.size_or(key)?.unwrap_or(default));
        keys.only("attn_scales", &[json!([])])?;
        keys.only("dropout", &[json!(0.0), json!(0)])?;
        let base = size("base_dim", 96)?;
        let base = [base, if is_wan { size("decoder_base_dim", base)? } else { base }];
        let multipliers = multipliers(keys, base[0].max(base[1]))?;
        let halves_time = flags(keys, "temperal_downsample", &[false, true, true])?;
        if halves_time.len() + 1 != multipliers.len() {
            let must = format!("must have one entry fewer than dim_mult ({})", multipliers.len());
            return Err(keys.inconsistent("temperal_downsample", format!("{halves_time:?}"), must));
        }
        let patch = if is_wan { size("patch_size", 1)? } else { 1 };
        let inputs_key = if is_wan { "in_channels" } else { "input_channels" };
        let inputs = size(inputs_key, 3)?;
        if inputs % patch.pow(2) != 0 {
            let must = format!("must be a multiple of the {} pixels of patch_size", patch.pow(2));
            return Err(keys.inconsistent(inputs_key, inputs, must));
        }
        if is_wan {
            must_be(keys, "out_channels", (inputs_key, inputs))?;
        }
        let latent_channels = size("z_dim", 16)?;
        let by_channel = |key: &str, default: [f64; 16]| {
            let values = if keys.value(key).is_some() { keys.numbers(key)? } else { default.to_vec() };
            match values.len() as i64 == latent_channels {
                true => Ok(values),
                false => {
                    let must = format!("must have as many as z_dim ({latent_channels})");
                    Err(keys.inconsistent(key, format!("a list of {} numbers", values.len()), must))
                }
            }
        };
        let config = VaeConfig {
            prefix: prefix.to_owned(),
            base,
            multipliers,
            latent_channels,
            num_blocks: num_blocks(keys)?,
            halves_time,
            has_shortcuts: is_wan && keys.flag_or("is_residual")?.unwrap_or(false),
            pixel_channels: inputs / patch.pow(2),
            patch,
            mean: by_channel("latents_mean", MEAN)?,
            std: by_channel("latents_std", STD)?,
        };
        if let Some(std) = config.std.iter().find(|std| **std <= 0.0) {
            return Err(keys.inconsistent("latents_std", std, "must be more than 0"));
        }
        if is_wan {
            let [time, space] = config.factors();
            must_be(keys, "scale_factor_temporal", ("temperal_downsample", time))?;
            must_be(keys, "scale_factor_spatial", ("dim_mult and patch_size", space))?;
        }
        match config.fits() {
            true => Ok(config),
            false => {
                let found = format!("{:?}", config.multipliers);
                Err(keys.inconsistent("dim_mult", found, "the channels of a level do not fit those of the next"))
            }
        }
    }

    /// Returns the number of frames of a clip, behind its first, and of rows or columns of pixels, that become one of the latent.
    pub fn factors(&self) -> [i64; 2] {
        let time = self.halves_time.iter().filter(|halves| **halves).count() as u32;
        [2i64.pow(time), self.patch * 2i64.pow(self.halves_time.len() as u32)]
    }

    /// Returns the frames, rows and columns of the latent of so many frames, rows and columns of pixels.
    pub fn latent_size(&self, [t, h, w]: [i64; 3]) -> [i64; 3] {
        let [time, space] = self.factors();
        [1 + (t - 1) / time, h / space, w / space]
    }
}

/// Returns the factors of the channels of levels; `base` is what the wider side multiplies them with.
fn multipliers(keys: &Keys<'_>, base: i64) -> Result<Vec<i64>> {
    let found = indices(keys, "dim_mult", &[1, 2, 4, 4])?;
    let most = MOST_CHANNELS / base;
    match (1..=MOST_LEVELS).contains(&found.len()) && found.iter().all(|it| (1..=most).contains(it)) {
        true => Ok(found),
        false => {
            let must =
                format!("must be 1 to {MOST_LEVELS} positive numbers of at most {most} ({MOST_CHANNELS} channels)");
            Err(keys.inconsistent("dim_mult", format!("{found:?}"), must))
        }
    }
}

/// Returns the number of residual blocks of a level of the encoder.
fn num_blocks(keys: &Keys<'_>) -> Result<usize> {
    match keys.size_or("num_res_blocks")?.unwrap_or(2) {
        count if count > MOST_BLOCKS => {
            Err(keys.inconsistent("num_res_blocks", count, format!("must be at most {MOST_BLOCKS}")))
        }
        count => Ok(count as usize),
    }
}

/// The key, where it is there, must be what another one says.
fn must_be(keys: &Keys<'_>, key: &str, (other, value): (&str, i64)) -> Result<()> {
    match keys.size_or(key)? {
        Some(found) if found != value => {
            Err(keys.inconsistent(key, found, format!("must be {value}, by {}", keys.path(other))))
        }
        _ => Ok(()),
    }
}

fn indices(keys: &Keys<'_>, key: &str, default: &[i64]) -> Result<Vec<i64>> {
    if keys.value(key).is_some() { keys.indices(key) } else { Ok(default.to_vec()) }
}

fn flags(keys: &Keys<'_>, key: &str, default: &[bool]) -> Result<Vec<bool>> {
    let Some(value) = keys.value(key) else { return Ok(default.to_vec()) };
    let found: Option<Vec<bool>> = value.as_array().and_then(|list| list.iter().map(Value::as_bool).collect());
    found.ok_or_else(|| keys.inconsistent(key, value, "must be a list of true and false"))
}
