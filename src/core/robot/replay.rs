//! A policy that repeats what was recorded: what a robot's side can be tested with before there is a model.

use super::policy::{Actions, DataNames, Moment, Observation, Policy, PolicySpec};
use crate::data::DataError;
use crate::data::lerobot::{Set, Step};
use std::path::Path;
use std::sync::Arc;

/// Features of a set that a robot's state and actions have by custom.
pub const STATE: &str = "observation.state";
pub const ACTION: &str = "action";
/// Actions of a chunk, unless fewer were recorded.
const CHUNK_SIZE: usize = 50;

/// Returns the recorded actions of one episode, whatever it sees.
pub struct Replay {
    first: Step,
    num_frames: usize,
    spec: PolicySpec,
}

impl Replay {
    /// Opens episode `episode` of a LeRobot set, whose actions are the feature `action`.
    ///
    /// # Errors
    /// The folder is no such set, has no such episode, or no such numbers.
    pub fn open(folder: &Path, episode: usize, action: &str) -> Result<Self, DataError> {
        let set = Arc::new(Set::open(folder)?);
        let first = set.step(episode, 0)?;
        let num_frames = set.episodes()[episode].length;
        let width =
            |key: &str| set.info().feature(key).filter(|feature| feature.is_numbers()).map(|feature| feature.width());
        let lacks = || {
            let numbers = set.info().features.iter().filter(|feature| feature.is_numbers());
            let known: Vec<&str> = numbers.map(|feature| feature.key.as_str()).collect();
            let reason = format!("has no numeric feature {action}, only {}", known.join(", "));
            DataError::File { path: folder.to_owned(), reason }
        };
        let chunk_size = CHUNK_SIZE.min(num_frames);
        let spec = PolicySpec {
            name: format!("replay of episode {episode} of {}", folder.display()),
            cameras: set.info().cameras().map(|camera| camera.key.clone()).collect(),
            state_width: width(STATE).unwrap_or(0),
            action_width: width(action).ok_or_else(lacks)?,
            chunk_size,
            num_executed: chunk_size,
            reads_prompt: false,
            continues_chunks: false,
            data: DataNames { action: action.to_owned(), ..DataNames::default() },
        };
        Ok(Self { first, num_frames, spec })
    }
}

impl Policy for Replay {
    fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    fn execute(&mut self, num_executed: usize) {
        self.spec.num_executed = num_executed;
    }

    /// Returns the recorded actions; behind the end of the episode its last action is repeated.
    fn act(&mut self, _: &Observation, moment: Moment) -> Result<Actions, String> {
        let begin = usize::try_from(moment.request).unwrap_or(usize::MAX).saturating_mul(self.spec.num_executed);
        if begin >= self.num_frames {
            return Err(format!("the recorded episode has ended: it has only {} frames", self.num_frames));
        }
        let steps: Vec<i64> = (begin..begin + self.spec.chunk_size).map(|step| step as i64).collect();
        let window = self.first.window(&self.spec.data.action, &steps).map_err(|error| error.to_string())?;
        Ok(Actions { width: self.spec.action_width, values: window.values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::lerobot::{Feature, SetWriter, Value};

    #[test]
    fn actions_may_have_another_name() {
        let folder = tempfile::tempdir().unwrap();
        let features = vec![Feature::vector("control", &["x"])];
        let mut writer = SetWriter::create(folder.path(), 10, "arm", features).unwrap();
        for step in 0..3u8 {
            writer.add_frame(&[("control", Value::Numbers(&[f32::from(step)]))]).unwrap();
        }
        writer.end_episode("go").unwrap();
        writer.finish().unwrap();
        let error = Replay::open(folder.path(), 0, ACTION).err().unwrap().to_string();
        assert!(error.contains("has no numeric feature action, only control"), "{error}");
        let mut replay = Replay::open(folder.path(), 0, "control").unwrap();
        let seen = Observation { images: Vec::new(), state: Vec::new(), prompt: String::new(), begun: Vec::new() };
        assert_eq!(replay.act(&seen, Moment::default()).unwrap().values, [0.0, 1.0, 2.0]);
    }
}
