//! Policies of Pads that nobody has trained: the expert, who finds the named pad in the picture, and one that acts by chance.

use super::picture::PAD_COLORS;
use super::scene::{COLORS, MAX_STEP, Point, toward};
use crate::rng::Counter;
use crate::robot::policy::{Actions, DataNames, Moment, Observation, Policy, PolicySpec};
use image::RgbImage;

/// The name of the camera above the table.
pub const CAMERA: &str = "observation.images.top";
/// Actions of a chunk, and those of them that are executed.
pub const CHUNK_SIZE: usize = 8;
pub const NUM_EXECUTED: usize = 4;

/// Returns the spec of policies of Pads: what they read and make.
pub fn spec(name: &str) -> PolicySpec {
    PolicySpec {
        name: name.to_owned(),
        cameras: vec![CAMERA.to_owned()],
        state_width: 2,
        action_width: 2,
        chunk_size: CHUNK_SIZE,
        num_executed: NUM_EXECUTED,
        reads_prompt: true,
        continues_chunks: false,
        data: DataNames::default(),
    }
}

/// Goes a quarter of the way to the named pad with every step.
pub struct Expert(PolicySpec);

/// Acts by chance, whatever it sees.
pub struct Random {
    spec: PolicySpec,
    seed: u64,
}

impl Expert {
    /// Makes the expert, who needs no training.
    pub fn new() -> Self {
        Self(spec("pads expert"))
    }
}

impl Default for Expert {
    fn default() -> Self {
        Self::new()
    }
}

impl Policy for Expert {
    fn spec(&self) -> &PolicySpec {
        &self.0
    }

    fn execute(&mut self, num_executed: usize) {
        self.0.num_executed = num_executed;
    }

    fn act(&mut self, observation: &Observation, _: Moment) -> Result<Actions, String> {
        let named = COLORS.iter().position(|color| observation.prompt.split(' ').any(|word| word == *color));
        let named = named.ok_or_else(|| format!("the instruction {:?} does not name a pad", observation.prompt))?;
        let &[x, y] = &observation.state[..] else { return Err("a state in Pads must have two values".to_owned()) };
        let Some((_, picture)) = observation.images.first() else {
            return Err("the observation has no picture".to_owned());
        };
        let mut agent = [f64::from(x), f64::from(y)];
        // A pad that is nowhere is not gone to.
        let center = find(picture, named).unwrap_or(agent);
        let values = (0..CHUNK_SIZE).flat_map(|_| {
            let action = toward(center, agent);
            agent = [agent[0] + f64::from(action[0]), agent[1] + f64::from(action[1])];
            action
        });
        Ok(Actions { width: 2, values: values.collect() })
    }
}

/// Returns the middle of all that has a pad's color.
fn find(picture: &RgbImage, pad: usize) -> Option<Point> {
    let strength = |pixel: [f64; 3]| {
        let others = (0..3).filter(|&channel| channel != pad).map(|channel| pixel[channel]).fold(0.0, f64::max);
        (pixel[pad] - others).max(0.0)
    };
    let (mut sum, mut at) = (0.0, [0.0, 0.0]);
    for (column, row, pixel) in picture.enumerate_pixels() {
        let weight = strength(pixel.0.map(f64::from)) / strength(PAD_COLORS[pad]);
        sum += weight;
        at[0] += weight * (f64::from(column) + 0.5) / f64::from(picture.width());
        at[1] += weight * (f64::from(row) + 0.5) / f64::from(picture.height());
    }
    // Less than a pixel is a trace of rounding.
    (sum >= 1.0).then(|| at.map(|value| value / sum))
}

impl Random {
    /// Makes the player who acts by chance; the same seed acts the same.
    pub fn new(seed: u64) -> Self {
        Self { spec: spec("pads random"), seed }
    }
}

impl Policy for Random {
    fn spec(&self) -> &PolicySpec {
        &self.spec
    }

    fn execute(&mut self, num_executed: usize) {
        self.spec.num_executed = num_executed;
    }

    fn act(&mut self, _: &Observation, moment: Moment) -> Result<Actions, String> {
        let numbers = Counter::new(&[self.seed, moment.episode, moment.request]);
        let value = |at: usize| (MAX_STEP * (2.0 * numbers.unit(at as u64) - 1.0)) as f32;
        Ok(Actions { width: 2, values: (0..2 * CHUNK_SIZE).map(value).collect() })
    }
}
