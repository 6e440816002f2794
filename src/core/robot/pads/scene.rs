//! The table of Pads: three colored discs, an agent that is pushed around, and when it has reached a disc.

use crate::rng::Counter;

/// The names of the pads' colors, as instructions have them.
pub const COLORS: [&str; 3] = ["red", "green", "blue"];
pub const PAD_RADIUS: f64 = 0.09;
pub const AGENT_RADIUS: f64 = 0.045;
/// A step's length at most.
pub const MAX_STEP: f64 = 0.08;
/// Steps of an episode at most.
pub const MAX_STEPS: usize = 40;
/// Distance from a pad's center within which the agent is on it.
const REACH: f64 = 0.05;
/// Steps in a row that it must be there: passing over does not count.
const STEPS_ON_PAD: u32 = 3;
/// Centers of pads from each other, and from the edge.
const APART: f64 = 0.28;
const FROM_EDGE: f64 = 0.12;
/// The agent at the beginning from every pad, and from the edge.
const AGENT_APART: f64 = 0.2;
const AGENT_FROM_EDGE: f64 = 0.05;

/// A place on the table, from 0 to 1 in both directions; y grows downward, as in pictures.
pub type Point = [f64; 2];

/// Says which layouts are meant: none of one part occurs in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Demonstrations,
    HeldOut,
}

/// The places of things at the beginning, and the pad that is named.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SceneLayout {
    /// Centers, in the order of [`COLORS`].
    pub pads: [Point; 3],
    pub agent: Point,
    /// Number of the pad that is named.
    pub named: usize,
}

impl SceneLayout {
    /// Draws layout `index` of a part; every color is named as often.
    pub fn draw(seed: u64, part: Part, index: u64) -> Self {
        let numbers = Counter::new(&[seed, part as u64, index]);
        let between = |number: u64, edge: f64| edge + (1.0 - 2.0 * edge) * numbers.unit(number);
        let attempt = |attempt: u64| {
            let point =
                |at: u64, edge: f64| [between(8 * attempt + 2 * at, edge), between(8 * attempt + 2 * at + 1, edge)];
            let pads = [0, 1, 2].map(|at| point(at, FROM_EDGE));
            let agent = point(3, AGENT_FROM_EDGE);
            let are_apart = (0..3).all(|at| distance(pads[at], pads[(at + 1) % 3]) >= APART);
            let is_apart = pads.iter().all(|pad| distance(*pad, agent) >= AGENT_APART);
            (are_apart && is_apart).then_some(Self { pads, agent, named: (index % 3) as usize })
        };
        (0..).find_map(attempt).expect("a layout: one draw of a few will do")
    }
}

/// An episode that goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    pub layout: SceneLayout,
    pub agent: Point,
    pub num_steps: usize,
    /// Steps in a row on each pad.
    on_pad: [u32; 3],
    /// Pads that were reached.
    pub reached: [bool; 3],
}

impl Scene {
    /// Begins an episode.
    pub fn begin(layout: SceneLayout) -> Self {
        Self { layout, agent: layout.agent, num_steps: 0, on_pad: [0; 3], reached: [false; 3] }
    }

    /// Moves the agent by `action`, at most [`MAX_STEP`] far and not off the table.
    pub fn step(&mut self, action: [f32; 2]) {
        let [x, y] = capped(action.map(f64::from));
        self.agent = [(self.agent[0] + x).clamp(0.0, 1.0), (self.agent[1] + y).clamp(0.0, 1.0)];
        self.num_steps += 1;
        for (pad, center) in self.layout.pads.iter().enumerate() {
            self.on_pad[pad] = if distance(*center, self.agent) <= REACH { self.on_pad[pad] + 1 } else { 0 };
            self.reached[pad] |= self.on_pad[pad] >= STEPS_ON_PAD;
        }
    }

    /// Returns whether the episode of pad `named` is over.
    pub fn is_over(&self, named: usize) -> bool {
        self.reached[named] || self.num_steps >= MAX_STEPS
    }

    /// Returns the state that the robot knows of itself: the place of the agent.
    pub fn state(&self) -> Vec<f32> {
        self.agent.map(|value| value as f32).into()
    }
}

/// Returns the prompt that names a pad.
pub fn instruction(named: usize) -> String {
    format!("go to the {} pad", COLORS[named])
}

/// Returns the expert's action from `agent` to a pad's center.
pub fn toward(center: Point, agent: Point) -> [f32; 2] {
    capped([0.25 * (center[0] - agent[0]), 0.25 * (center[1] - agent[1])]).map(|value| value as f32)
}

fn capped([x, y]: Point) -> Point {
    let length = (x * x + y * y).sqrt();
    match length {
        // What is not finite moves nothing.
        length if !length.is_finite() => [0.0, 0.0],
        length if length > MAX_STEP => [x * (MAX_STEP / length), y * (MAX_STEP / length)],
        _ => [x, y],
    }
}

/// Returns the Euclidean distance of two points.
pub fn distance(one: Point, other: Point) -> f64 {
    let (x, y) = (one[0] - other[0], one[1] - other[1]);
    (x * x + y * y).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passing_over_a_pad_does_not_count() {
        let layout = SceneLayout { pads: [[0.2, 0.5], [0.5, 0.5], [0.8, 0.5]], agent: [0.36, 0.5], named: 1 };
        let mut scene = Scene::begin(layout);
        for _ in 0..5 {
            scene.step([1.0, 0.0]);
        }
        assert_eq!(scene.reached, [false; 3]);
        assert!((scene.agent[0] - 0.76).abs() < 1e-9, "a step is {MAX_STEP} at most");
        for _ in 0..2 {
            scene.step([0.0, 0.0]);
        }
        assert_eq!((scene.reached, scene.is_over(2), scene.is_over(1)), ([false, false, true], true, false));
        scene.step([f32::NAN, 0.0]);
        assert!((scene.agent[0] - 0.76).abs() < 1e-9);
    }

    #[test]
    fn layouts_belong_to_their_seed_part_and_index() {
        let (part, other) = (Part::Demonstrations, Part::HeldOut);
        assert_eq!(SceneLayout::draw(1, part, 7), SceneLayout::draw(1, part, 7));
        assert_ne!(SceneLayout::draw(1, part, 7), SceneLayout::draw(1, other, 7));
        for index in 0..300 {
            let layout = SceneLayout::draw(2, other, index);
            assert_eq!(layout.named, index as usize % 3);
            for (at, pad) in layout.pads.iter().enumerate() {
                assert!(
                    distance(*pad, layout.pads[(at + 1) % 3]) >= APART && distance(*pad, layout.agent) >= AGENT_APART
                );
                assert!(pad.iter().all(|value| (FROM_EDGE..=1.0 - FROM_EDGE).contains(value)));
            }
        }
    }
}
