//! Actions of what a policy predicts, and what it is given of a chunk that has begun.

use super::data_names::DataNames;
use super::maker::PolicyMaker;
use super::relative;
use super::robots::Robot;
use crate::data::error::DataError;
use crate::data::lerobot::{Step, Window};

/// The values that a policy's actions at a step are compared with.
pub struct Compared {
    /// `[H, action_dim]`.
    pub actions: Vec<f32>,
    pub recorded: Window,
    /// `[action_dim]`.
    pub last: Vec<f32>,
    pub state: Vec<f32>,
}

impl PolicyMaker {
    /// Returns the names of the features that the policy was trained on.
    pub fn data_names(&self) -> DataNames {
        DataNames::of(&self.settings)
    }

    /// Actions as the robot takes them, `[H, action_dim]`, of what the policy predicts, `[H, max_action_dim]`, in `state`.
    ///
    /// # Errors
    /// A length does not match.
    pub fn actions(&self, normalized: &[f32], state: &[f32]) -> Result<Vec<f32>, DataError> {
        let robot = self.robot().map_err(DataError::Line)?;
        let mut actions = Self::restored(robot, normalized, state)?;
        if let Some(frames) = &robot.spec.frames {
            frames.toggle(&mut actions, robot.spec.action_dim);
        }
        Ok(actions)
    }

    /// Works like [`PolicyMaker::actions`], but numbers that become signs for the robot are what they are in the data.
    ///
    /// # Errors
    /// Fails as that function does.
    pub fn actions_as_recorded(&self, normalized: &[f32], state: &[f32]) -> Result<Vec<f32>, DataError> {
        Self::restored(self.robot().map_err(DataError::Line)?, normalized, state)
    }

    /// Actions as the robot takes them as the policy predicts them, in `state`: the first ones of a chunk, so many times
    /// `max_action_dim` numbers.
    ///
    /// # Errors
    /// They are no whole actions, as many as a chunk, more than the policy has learned to be given or not finite, or scales differ
    /// from step to step.
    pub fn begun(&self, actions: &[f32], state: &[f32]) -> Result<Vec<f32>, DataError> {
        let Robot { spec, scales, .. } = self.robot().map_err(DataError::Line)?;
        if actions.is_empty() {
            return Ok(Vec::new());
        }
        let (width, count) = (spec.action_dim, actions.len() / spec.action_dim);
        if !actions.len().is_multiple_of(width) || count >= spec.horizon || state.len() != spec.state_dim {
            let reason = format!(
                "found {} numbers of started actions, but expected fewer than {} actions of {width} numbers each",
                actions.len(),
                spec.horizon
            );
            return Err(DataError::Line(reason));
        }
        if let Some(most) = self.learned_delay.filter(|most| count > *most) {
            let reason = format!(
                "{count} actions of the chunk have started, but the policy was trained with at most {most} \
                 (policy.max_delay of its run)"
            );
            return Err(DataError::Line(reason));
        }
        if let Some(value) = actions.iter().find(|value| !value.is_finite()) {
            return Err(DataError::Line(format!("a started action has {value}, which is not finite")));
        }
        if spec.scales_by_step() {
            return Err(DataError::Line(
                "the policy has separate scales for each step of a chunk, so no action may have started".to_owned(),
            ));
        }
        let mut own = actions.to_vec();
        relative::to_relative(&mut own, state, &scales.mask);
        scales.action.normalize(&mut own);
        let padded = |action: &[f32]| {
            let mut row = action.to_vec();
            row.resize(spec.max_action_dim, 0.0);
            row
        };
        Ok(own.chunks(width).flat_map(padded).collect())
    }

    /// Actions that were predicted of a step as its robot takes them, those that were recorded from there on, the last one before
    /// it, and its state.
    ///
    /// # Errors
    /// A length does not match, or a feature cannot be read.
    pub fn compared(&self, step: &Step, normalized: &[f32]) -> Result<Compared, DataError> {
        let robot = self.robot_of(step.set()).map_err(DataError::Line)?;
        let state = step.numbers(&self.settings.state)?;
        Ok(Compared {
            actions: Self::restored(robot, normalized, &state)?,
            recorded: self.recorded(step)?,
            last: step.window(&self.settings.action, &[-1])?.values,
            state,
        })
    }

    fn restored(robot: &Robot, normalized: &[f32], state: &[f32]) -> Result<Vec<f32>, DataError> {
        let Robot { spec, scales, .. } = robot;
        let expected = spec.horizon * spec.max_action_dim;
        if (normalized.len(), state.len()) != (expected, spec.state_dim) {
            return Err(DataError::Line(format!(
                "found {} numbers of actions and {} of a state, but expected {expected} and {}",
                normalized.len(),
                state.len(),
                spec.state_dim
            )));
        }
        let chunks = normalized.chunks(spec.max_action_dim);
        let mut actions: Vec<f32> = chunks.flat_map(|action| &action[..spec.action_dim]).copied().collect();
        scales.action.restore(&mut actions);
        relative::to_absolute(&mut actions, state, &scales.mask);
        Ok(actions)
    }
}
