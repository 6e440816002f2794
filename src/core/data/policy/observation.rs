//! The observation from which a robot's policy predicts actions, and the actions that it learns.

use image::RgbImage;

use crate::data::lerobot::Window;

/// The pictures, state and instruction of one moment.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// Pictures by the policy's names of its cameras, such as `observation.images.base_0_rgb`.
    pub images: Vec<(String, RgbImage)>,
    /// The robot's state as it is measured, not normalized.
    pub state: Vec<f32>,
    /// The instruction to the robot.
    pub prompt: String,
    /// The first actions of the chunk that is asked for, one after the other: those that will be executed before it is there. Empty:
    /// none is begun.
    pub begun: Vec<f32>,
}

/// Pictures of a camera one after the other.
pub struct CameraClip {
    /// The policy's name of the camera.
    pub camera: String,
    /// The pictures, at least one.
    pub pictures: Vec<RgbImage>,
}

/// The targets of a sample.
pub struct LearnedActions {
    pub actions: Window,
    /// The frames of each camera from the step on, of a policy that learns frames, and which of them lie outside of the episode.
    pub clips: (Vec<CameraClip>, Vec<bool>),
    /// The text that the language model is to write before action tokens.
    pub text: Option<String>,
}

impl CameraClip {
    /// Returns a clip of one picture.
    pub fn still(camera: &str, picture: &RgbImage) -> Self {
        Self { camera: camera.to_owned(), pictures: vec![picture.clone()] }
    }
}

#[cfg(test)]
impl From<Window> for LearnedActions {
    fn from(actions: Window) -> Self {
        Self { actions, clips: (Vec::new(), Vec::new()), text: None }
    }
}
