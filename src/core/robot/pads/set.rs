//! Writes demonstrations as a LeRobot data set, and a tiny policy to learn from them.

use super::demonstrations::demonstration;
use super::model::write_model;
use super::picture::SIDE;
use super::players::CAMERA;
use crate::data::lerobot::{Feature, SetWriter, Value};
use crate::data::{DataError, NewFolder};
use crate::robot::replay::{ACTION, STATE};
use std::path::Path;

/// Steps a second, which the set has to say.
const FPS: u32 = 10;

/// Describes the demonstrations to make. The same values give the same pictures, states and actions.
#[derive(Clone, Copy, Debug)]
pub struct PadsSet {
    pub seed: u64,
    /// Fewer than 3,000 layouts are learned by heart.
    pub num_episodes: u64,
}

impl Default for PadsSet {
    fn default() -> Self {
        Self { seed: 1, num_episodes: 3000 }
    }
}

/// The numbers of what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub num_episodes: u64,
    pub num_frames: u64,
    /// Episodes that ended on the pad.
    pub num_successes: u64,
}

/// Writes the set `train/` and the folder `model/` (without weights) into `dir`, which must be new or empty.
///
/// # Errors
/// `dir` holds something or cannot be written.
pub fn compose_pads(dir: &Path, settings: &PadsSet) -> Result<Written, DataError> {
    let new = NewFolder::begin(dir)?;
    let side = SIDE as usize;
    let features = vec![
        Feature::images(CAMERA, side, side),
        Feature::vector(STATE, &["x", "y"]),
        Feature::vector(ACTION, &["dx", "dy"]),
    ];
    let mut set = SetWriter::create(&new.path().join("train"), FPS, "pads", features)?;
    let mut written = Written { num_episodes: settings.num_episodes, ..Written::default() };
    for index in 0..settings.num_episodes {
        let episode = demonstration(settings.seed, index);
        for frame in &episode.frames {
            set.add_frame(&[
                (CAMERA, Value::Picture(&frame.picture)),
                (STATE, Value::Numbers(&frame.state)),
                (ACTION, Value::Numbers(&frame.action)),
            ])?;
        }
        set.end_episode(&episode.instruction)?;
        written.num_frames += episode.frames.len() as u64;
        written.num_successes += u64::from(episode.is_success);
    }
    set.finish()?;
    write_model(&new.path().join("model"))?;
    new.publish("train")?;
    Ok(written)
}
