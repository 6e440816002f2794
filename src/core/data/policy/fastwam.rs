//! Samples of FastWAM: it learns frames beside actions, of all cameras side by side, and a text tower reads its text.

use image::RgbImage;
use serde_json::Value as Json;

use super::observation::{CameraClip, Observation};
use crate::data::card::fastwam_networks;
use crate::data::column::{ColumnValues, SampleColumn};
use crate::data::contexts::TextProcessor;
use crate::data::diffusion::LatentSpace;
use crate::data::error::DataError;
use crate::data::sample::{IGNORE_INDEX, Media, Sample};
use crate::message::{Grid, SampleId, Tower};

/// The ids of a sample's rows: an action, a place of a latent, a row of text.
pub const IDS: [i64; 3] = [0, 1, 2];
const CHANNELS: usize = 3;

/// The description of samples in a `config.json` of FastWAM, beside the keys that all policies have.
#[derive(Clone, Debug, PartialEq)]
pub struct Frames {
    space: LatentSpace,
    /// Rows and columns of the pictures of all cameras, side by side.
    pub size: [usize; 2],
    /// Steps of a sample's frames from its own, which is the first.
    pub steps: Vec<i64>,
    /// Numbers of an action that lerobot's postprocessor makes signs of, as LIBERO's grippers want them.
    pub toggled: Vec<usize>,
}

impl Frames {
    /// Returns the frames of a window of so many steps, one at every `every`-th of them.
    ///
    /// # Errors
    /// The reason: a key that is wrong or not implemented.
    pub fn of(config: &Json, [window, every]: [usize; 2]) -> Result<Self, String> {
        let space = LatentSpace::of(&fastwam_networks(config))?;
        let sides = &config["image_size"];
        let size_of = match [&sides[0], &sides[1]].map(Json::as_u64) {
            [None, None] if sides.is_null() => [224, 448],
            [Some(rows @ 1..=4096), Some(columns @ 1..=4096)] => [rows as usize, columns as usize],
            _ => return Err(format!("`image_size` is {sides}, not two sides")),
        };
        let unit = space.unit();
        if size_of[0] % unit[0] + size_of[1] % unit[1] > 0 {
            return Err(format!("`image_size` is {sides}, which is not a multiple of {}×{} pixels", unit[0], unit[1]));
        }
        if (window - 1) % (every * space.frames) > 0 || window == 1 {
            let multiple = every * space.frames;
            return Err(format!("`num_video_frames` is {window}, but must be one more than a multiple of {multiple}"));
        }
        Ok(Self { space, size: size_of, steps: (0..window as i64).step_by(every).collect(), toggled: Vec::new() })
    }

    /// Makes the sample of what a robot sees and is told, with the frames that follow where it learns them: `clips` are those of cameras,
    /// in their order.
    ///
    /// # Errors
    /// The text is too long or has no token, or there are too many rows.
    pub fn sample(
        &self,
        id: SampleId,
        (seen, clips): (&Observation, &[&CameraClip]),
        (horizon, max_tokens): (usize, usize),
        texts: &TextProcessor,
    ) -> Result<Sample, DataError> {
        let text = texts.item(&seen.prompt).map_err(|reason| DataError::Line(format!("its prompt: {reason}")))?;
        let clip = self.item(clips);
        let (num_latents, num_text) = (clip.num_features, text.num_features);
        let num_tokens = num_latents + horizon + num_text;
        if num_tokens > max_tokens {
            let num_image_tokens = num_latents;
            return Err(DataError::TooLong { num_tokens, num_image_tokens, num_audio_tokens: 0, max_tokens });
        }
        let [action, latent, of_text] = IDS;
        let ids = [(latent, num_latents), (action, horizon), (of_text, num_text)];
        let input_ids = ids.iter().flat_map(|&(own, count)| std::iter::repeat_n(own, count)).collect();
        let mut sample =
            Sample::new(id, input_ids, vec![0.0; 3 * num_tokens], vec![IGNORE_INDEX; num_tokens], vec![text, clip]);
        sample.num_sources = clips.len();
        Ok(sample)
    }

    /// Returns the column that says which frames of the latent count, of all but the first: with `masks`, those of which a frame of
    /// pixels lies within the episode.
    pub fn weights(&self, is_pad: &[bool], masks: bool) -> SampleColumn {
        let latents = (self.steps.len() - 1) / self.space.frames;
        let of_latent = |at: usize| {
            let own = is_pad.get(1 + at * self.space.frames..).unwrap_or_default();
            let is_there = own.is_empty() || own.iter().take(self.space.frames).any(|is_pad| !is_pad);
            f32::from(!masks || is_there)
        };
        let values = ColumnValues::F32((0..latents).map(of_latent).collect());
        SampleColumn { name: "frame_weights".to_owned(), before: Vec::new(), rows: latents, after: Vec::new(), values }
    }

    /// Makes signs of the numbers of actions `[N, width]` that are toggled: numbers from 0 to 1 become 1 below the middle, -1 above it
    /// and 0 in it.
    pub fn toggle(&self, actions: &mut [f32], width: usize) {
        for action in actions.chunks_mut(width) {
            for &at in &self.toggled {
                let value = action[at] * 2.0 - 1.0;
                action[at] = if value == 0.0 { 0.0 } else { -value.signum() };
            }
        }
    }

    /// Makes the item of the autoencoder: frames of all cameras side by side, numbers from -1 to 1.
    pub(super) fn item(&self, clips: &[&CameraClip]) -> Media {
        let [rows, columns] = self.size;
        let (across, num_frames) = (columns / clips.len(), clips[0].pictures.len());
        let mut pixels = vec![0.0; num_frames * rows * columns * CHANNELS];
        for (camera, clip) in clips.iter().enumerate() {
            for (frame, picture) in clip.pictures.iter().enumerate() {
                let own = smoothed(picture, rows, across);
                for (row, values) in own.chunks(across * CHANNELS).enumerate() {
                    let at = ((frame * rows + row) * columns + camera * across) * CHANNELS;
                    pixels[at..at + values.len()].copy_from_slice(values);
                }
            }
        }
        let num_features = self.space.tokens([num_frames, rows, columns]).num_cells();
        let grid = Grid { t: num_frames as u32, h: rows as u32, w: columns as u32 };
        Media { tower: Tower::Vae, grid, num_features, pixels }
    }
}

/// Returns `[rows, columns, 3]`, from -1 to 1: a picture at another size, as torch interpolates bilinearly with antialiasing, columns
/// first, in float32 from values of 0 to 1.
pub(super) fn smoothed(picture: &RgbImage, rows: usize, columns: usize) -> Vec<f32> {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let values: Vec<f32> = picture.as_raw().iter().map(|&byte| f32::from(byte) / 255.0).collect();
    let across = blend(&values, [height, width, CHANNELS], columns);
    let down = blend(&across, [1, height, columns * CHANNELS], rows);
    down.iter().map(|value| value * 2.0 - 1.0).collect()
}

/// Resizes `[N, old, C]` to `[N, new, C]` with triangles as wide as what is made smaller.
fn blend(values: &[f32], [n, old, c]: [usize; 3], new: usize) -> Vec<f32> {
    if old == new {
        return values.to_vec();
    }
    let scale = old as f32 / new as f32;
    let reach = scale.max(1.0);
    let mut made = vec![0.0; n * new * c];
    for at in 0..new {
        let center = scale * (at as f32 + 0.5);
        let first = ((center - reach + 0.5) as i64).max(0) as usize;
        let end = ((center + reach + 0.5) as usize).min(old);
        let weight = |place: usize| (1.0 - ((place as f32 - center + 0.5) / reach).abs()).max(0.0);
        let weights: Vec<f32> = (first..end).map(weight).collect();
        let sum: f32 = weights.iter().sum();
        for row in 0..n {
            for (place, weight) in (first..end).zip(&weights) {
                let share = weight / sum;
                let from = &values[(row * old + place) * c..][..c];
                made[(row * new + at) * c..][..c].iter_mut().zip(from).for_each(|(to, value)| *to += share * value);
            }
        }
    }
    made
}
