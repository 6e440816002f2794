//! What a robot knows when it asks what to do, and what it is taught.

use image::RgbImage;

use crate::data::lerobot::Window;

/// The pictures, state and instruction of one moment.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// Pictures by the policy's names of its cameras, such as `observation.images.base_0_rgb`.
    pub images: Vec<(String, RgbImage)>,
    /// The robot's state as it is measured, not normalized.
    pub state: Vec<f32>,
    /// What it is told to do.
    pub prompt: String,
    /// The first actions of the chunk that is asked for, one after the other: those that will be executed before it is there. Empty:
    /// none is begun.
    pub begun: Vec<f32>,
}

/// Pictures of a camera one after the other.
pub struct CameraClip {
    /// The policy's name of the camera.
    pub camera: String,
    /// At least one.
    pub pictures: Vec<RgbImage>,
}

/// What a sample is learned by.
pub struct LearnedActions {
    pub actions: Window,
    /// Of a policy that learns frames: those of each camera, from the step on, and which of them lie outside of the episode.
    pub clips: (Vec<CameraClip>, Vec<bool>),
    /// What the language model is to write before action tokens.
    pub text: Option<String>,
}

impl CameraClip {
    /// A clip of one picture.
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
