//! Policies: observations in, chunks of actions out.

pub use crate::data::policy::{DataNames, Observation};

/// Actions of the next steps, in the units of the robot.
#[derive(Clone, Debug, PartialEq)]
pub struct Actions {
    /// Values of one action.
    pub width: usize,
    /// [steps, width]
    pub values: Vec<f32>,
}

impl Actions {
    /// Returns the number of steps of the chunk.
    pub fn num_steps(&self) -> usize {
        self.values.len().checked_div(self.width).unwrap_or(0)
    }

    /// # Panics
    /// The chunk has fewer steps.
    pub fn step(&self, index: usize) -> &[f32] {
        &self.values[index * self.width..][..self.width]
    }

    /// # Errors
    /// The reason: no action, values that do not fill rows of the width, or one that is not finite.
    pub fn check(&self) -> Result<(), String> {
        if self.values.is_empty() || !self.values.len().is_multiple_of(self.width.max(1)) {
            return Err(format!(
                "the policy returned {} values, which do not form actions of {} values",
                self.values.len(),
                self.width
            ));
        }
        match self.values.iter().find(|value| !value.is_finite()) {
            Some(value) => Err(format!("the policy returned an action that contains {value}")),
            None => Ok(()),
        }
    }
}

/// The inputs and outputs of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySpec {
    /// The kind of the policy, and the folder it comes from where it has one.
    pub name: String,
    /// Names of the cameras that it reads, such as `observation.images.top`.
    pub cameras: Vec<String>,
    /// Values of a state; 0: it reads none.
    pub state_width: usize,
    /// Values of an action.
    pub action_width: usize,
    /// Actions of a chunk.
    pub chunk_size: usize,
    /// Actions of a chunk to execute before the next is asked for.
    pub num_executed: usize,
    /// It reads the prompt.
    pub reads_prompt: bool,
    /// It can go on with a chunk that has begun (`Observation::begun`).
    pub continues_chunks: bool,
    /// The names of the features of recorded data.
    pub data: DataNames,
}

impl PolicySpec {
    /// Returns the number of the camera of this whole name: the policy's own, or else what its data calls one.
    pub fn camera_named(&self, name: &str) -> Option<usize> {
        let own = |name: &str| self.cameras.iter().position(|camera| camera == name);
        let of_data = || self.data.cameras.iter().find(|(key, _)| key == name).and_then(|(_, camera)| own(camera));
        own(name).or_else(of_data)
    }
}

/// Says which of a client's requests this is. What a policy draws by chance depends on this and its seed alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Episodes of the client before this one.
    pub episode: u64,
    /// Chunks of the episode before this one.
    pub request: u64,
}

/// Makes chunks of actions.
pub trait Policy {
    fn spec(&self) -> &PolicySpec;

    /// Lets so many actions of a chunk be executed before the next is asked for.
    fn execute(&mut self, num_executed: usize);

    /// Lets actions begin as this noise, [chunk_size, the model's max_action_dim], instead of the seed's.
    ///
    /// # Errors
    /// The reason: the policy draws none, or the noise has another size.
    fn begin_with(&mut self, _noise: Vec<f32>) -> Result<(), String> {
        Err("this policy does not start from noise".to_owned())
    }

    /// # Errors
    /// The reason why it cannot act on this observation.
    fn act(&mut self, observation: &Observation, moment: Moment) -> Result<Actions, String>;

    /// Returns whether it never acts again, as on a GPU that computes nothing any more.
    fn has_failed(&self) -> bool {
        false
    }

    /// Works like [`Policy::act`] with actions as the data has them, which may be others than those that the robot takes.
    ///
    /// # Errors
    /// Fails as that function does.
    fn act_as_recorded(&mut self, observation: &Observation, moment: Moment) -> Result<Actions, String> {
        self.act(observation, moment)
    }
}
