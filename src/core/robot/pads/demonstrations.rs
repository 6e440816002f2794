//! Episodes to learn from: the expert goes to the named pad, and in every second episode it is pushed about meanwhile.

use super::picture::picture;
use super::scene::{MAX_STEP, Part, Point, Scene, SceneLayout, instruction, toward};
use crate::rng::Counter;
use image::RgbImage;

/// Chance of a step of a disturbed episode to go anywhere.
const DISTURBED: f64 = 0.5;

/// A frame of an episode.
pub struct Frame {
    pub picture: RgbImage,
    pub state: Vec<f32>,
    /// The expert's, also where another one was executed.
    pub action: [f32; 2],
}

/// An episode, its instruction, and whether it ended on the pad.
pub struct Demonstration {
    pub frames: Vec<Frame>,
    pub instruction: String,
    pub is_success: bool,
}

/// Makes episode `index`, which belongs to it and the seed alone.
pub fn demonstration(seed: u64, index: u64) -> Demonstration {
    let layout = SceneLayout::draw(seed, Part::Demonstrations, index);
    let numbers = Counter::new(&[seed, 2, index]);
    let mut scene = Scene::begin(layout);
    let mut frames = Vec::new();
    while !scene.is_over(layout.named) {
        let action = toward(layout.pads[layout.named], scene.agent);
        frames.push(Frame { picture: picture(&scene), state: scene.state(), action });
        let draw = |number: u64| numbers.unit(3 * scene.num_steps as u64 + number);
        let is_pushed = index % 2 == 1 && draw(0) < DISTURBED;
        let push: Point = [1, 2].map(|number| MAX_STEP * (2.0 * draw(number) - 1.0));
        scene.step(if is_pushed { push.map(|value| value as f32) } else { action });
    }
    Demonstration { frames, instruction: instruction(layout.named), is_success: scene.reached[layout.named] }
}
