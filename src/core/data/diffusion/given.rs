//! The frames of a clip that a model of Wan is given: as latents, and as pictures for its image tower.

use std::path::Path;

use serde_json::Value as Json;

use super::latents::LatentSpace;
use super::pictures::Frames;
use crate::data::error::DataError;
use crate::data::media::{MediaProcessor, open_crop};
use crate::data::processor::FlowOptions;
use crate::data::sample::Media;
use crate::message::SampleId;
use crate::rng::Counter;

/// Tells the random numbers of given frames from others of the same seed and sample.
const PURPOSE: u64 = 0x0067_6976_656e;

/// Makes the items of given frames.
pub struct Given {
    frames: GivenFrames,
    /// Makes what the image tower reads of a given frame; `None`: the model has no such tower.
    pictures: Option<Box<dyn MediaProcessor>>,
    space: LatentSpace,
    seed: u64,
    /// The part of visits without given frames and pictures.
    dropout: f64,
}

/// The frames of a clip that the model is given.
#[derive(Clone, Copy, Debug, PartialEq)]
enum GivenFrames {
    Nothing,
    /// The first one, within a condition as long as the clip.
    First,
    FirstAndLast,
    /// The first one as the first of the latent, in this part of the visits (TI2V-5B).
    Sometimes(f64),
}

impl Given {
    /// Returns the frames that the transformer of `config` takes; how pictures are prepared for its image tower says the preprocessor
    /// config in `media_dir`. `share` is the part of visits with a first frame, of a model that takes clips with one and without.
    ///
    /// # Errors
    /// The preprocessor config is wrong, or the model has no use for `share` or for a dropout of conditions.
    pub fn open(
        media_dir: &Path,
        config: &Json,
        space: LatentSpace,
        flow: &FlowOptions,
        share: Option<f64>,
    ) -> Result<Self, DataError> {
        let transformer = &config["transformer"];
        let is_wan = transformer["_class_name"] == "WanTransformer3DModel";
        // Absent keys have the class's value.
        let channels = |key: &str| transformer[key].as_u64().unwrap_or(16);
        let has_condition = is_wan && channels("in_channels") > channels("out_channels");
        let frames = match (has_condition, is_wan && config["expand_timesteps"] == true) {
            (true, _) if !transformer["pos_embed_seq_len"].is_null() => GivenFrames::FirstAndLast,
            (true, _) => GivenFrames::First,
            (false, true) => GivenFrames::Sometimes(share.unwrap_or(0.0)),
            (false, false) => GivenFrames::Nothing,
        };
        if share.is_some() && !matches!(frames, GivenFrames::Sometimes(_)) {
            let reason = "data.video.first_frame is for models that take clips with a first frame and without (TI2V-5B, \
                          `expand_timesteps`); drop it";
            return Err(DataError::file(&media_dir.join("config.json"), reason));
        }
        if flow.condition_dropout > 0.0 && is_wan && !has_condition {
            let reason = "data.condition_dropout is for models that are always given pictures (I2V, FLF2V, Qwen-Image's \
                          edits); drop it; for TI2V-5B set data.video.first_frame";
            return Err(DataError::file(&media_dir.join("config.json"), reason));
        }
        let reads = is_wan && !transformer["image_dim"].is_null();
        let pictures = reads.then(|| open_crop(media_dir, &config["image_encoder"])).transpose()?;
        Ok(Self { frames, pictures, space, seed: flow.seed, dropout: flow.condition_dropout })
    }

    /// Returns whether there is nothing to make without a picture.
    pub fn needs_picture(&self) -> bool {
        matches!(self.frames, GivenFrames::First | GivenFrames::FirstAndLast)
    }

    /// Returns whether a visit of a clip of so many frames is given any.
    pub fn is_given(&self, id: SampleId, num_frames: usize) -> bool {
        match self.frames {
            GivenFrames::Nothing => false,
            GivenFrames::First | GivenFrames::FirstAndLast => true,
            // Of a single frame nothing would be left to make.
            GivenFrames::Sometimes(share) => num_frames > 1 && self.numbers(id).unit(0) < share,
        }
    }

    /// Returns whether a visit goes without given frames and pictures.
    pub fn are_dropped(&self, id: SampleId) -> bool {
        self.numbers(id).unit(1) < self.dropout
    }

    fn numbers(&self, id: SampleId) -> Counter {
        Counter::new(&[self.seed, id.0, PURPOSE])
    }

    /// Returns whether a prompt's picture begins its clip of so many frames.
    pub fn begins(&self, num_frames: usize) -> bool {
        match self.frames {
            GivenFrames::Sometimes(share) => num_frames > 1 && share > 0.0,
            GivenFrames::Nothing => false,
            GivenFrames::First | GivenFrames::FirstAndLast => true,
        }
    }

    /// Returns the number of the latent's tokens that are given and not made, of a clip that is given frames.
    pub fn num_clean(&self, num_frames: usize, frames: &Frames) -> usize {
        match self.frames {
            GivenFrames::Sometimes(_) if num_frames > 1 => self.tokens(1, frames),
            _ => 0,
        }
    }

    /// Returns the autoencoder's item of the frames that are given of a clip of so many frames. Those of a condition that are not are
    /// gray.
    pub fn condition(&self, frames: &Frames, num_frames: usize) -> Media {
        let channels = self.space.channels;
        let places = match self.frames {
            GivenFrames::FirstAndLast => vec![(0, 0), (frames.rgb.len() - 1, num_frames - 1)],
            _ => vec![(0, 0)],
        };
        let given = places.into_iter().map(|(from, to)| (&frames.rgb[from], to));
        let num_frames = if matches!(self.frames, GivenFrames::Sometimes(_)) { 1 } else { num_frames };
        frames.condition(num_frames, given, channels, self.tokens(num_frames, frames))
    }

    /// Makes the image tower's items of the frames that are given.
    ///
    /// # Errors
    /// The reason: a frame cannot be resized.
    pub fn pictures(&self, frames: &Frames) -> Result<Vec<Media>, String> {
        let Some(processor) = &self.pictures else { return Ok(Vec::new()) };
        let last = (self.frames == GivenFrames::FirstAndLast).then(|| frames.rgb.len() - 1);
        let picture = |at| Ok(processor.image(&frames.picture(at))?.media);
        let made: Vec<Vec<Media>> = [0].into_iter().chain(last).map(picture).collect::<Result<_, String>>()?;
        Ok(made.concat())
    }

    fn tokens(&self, num_frames: usize, frames: &Frames) -> usize {
        self.space.tokens([num_frames, frames.rows, frames.columns]).num_cells()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn channels_that_a_config_leaves_out_are_those_of_a_latent() {
        let space = LatentSpace { channels: 3, frames: 4, side: 8, patch: [2; 2] };
        let needs_picture = |channels: Json| {
            let mut config = json!({"transformer": channels});
            config["transformer"]["_class_name"] = json!("WanTransformer3DModel");
            Given::open(Path::new(""), &config, space, &FlowOptions::default(), None).unwrap().needs_picture()
        };
        assert!(!needs_picture(json!({})) && !needs_picture(json!({"in_channels": 16})));
        assert!(needs_picture(json!({"in_channels": 36})));
    }
}
