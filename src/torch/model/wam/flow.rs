//! The weight of a time in the loss, and the steps from noise to data.

use super::config::Flow;
use loongforge_core::schedule::TimeSampler;

/// The weight of samples by their times (`WanContinuousFlowMatchScheduler.training_weight`): a bell around the middle without its
/// smallest value, 1 on the mean of the times of a schedule of so many steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bell {
    least: f64,
    mean: f64,
}

impl Bell {
    /// Finds the least and the mean value of the bell over all times of training, by which weights are scaled to a mean of 1.
    pub fn new(flow: &Flow) -> Bell {
        let steps = flow.num_times;
        let sampler = flow.sampler();
        let values: Vec<f64> = (1..=steps).map(|step| bell(sampler.at(step as f64 / steps as f64))).collect();
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        Bell { least, mean: values.iter().map(|value| value - least).sum::<f64>() / values.len() as f64 + 1e-10 }
    }

    /// Returns the weight at a time from 0, data, to 1, noise.
    pub fn at(&self, time: f64) -> f64 {
        (bell(time) - self.least) / self.mean
    }
}

fn bell(time: f64) -> f64 {
    (-2.0 * (time - 0.5).powi(2)).exp()
}

/// Even times, which a shift above 1 moves toward noise.
fn shifted(shift: f64) -> TimeSampler {
    TimeSampler::Shift { shift, of: Box::new(TimeSampler::Uniform) }
}

impl Flow {
    /// Returns the distribution of times in training.
    pub(super) fn sampler(&self) -> TimeSampler {
        shifted(self.train_shift)
    }

    /// Returns the number that the network is told of a time.
    pub(super) fn told(&self, time: f32) -> f64 {
        f64::from(time * self.num_times as f32)
    }

    /// Returns the times that sampling goes through, from 1 on down, and by how much each step goes on (`get_sampling_sigmas`).
    pub(super) fn steps(&self, count: usize) -> Vec<(f32, f64)> {
        let sampler = shifted(self.infer_shift);
        let time = |step: usize| sampler.at(1.0 - step as f64 / count as f64) as f32;
        let next = |step: usize| if step + 1 == count { 0.0 } else { time(step + 1) };
        (0..count).map(|step| (time(step), f64::from(next(step) - time(step)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Bell, Flow};

    const FLOW: Flow = Flow { train_shift: 5.0, infer_shift: 5.0, num_times: 1000, weight: 1.0 };

    /// Numbers of `WanContinuousFlowMatchScheduler(1000, shift=5.0)`.
    #[test]
    fn weights_and_steps_are_lerobots() {
        let bell = Bell::new(&FLOW);
        for (time, expected) in [(1.0, 0.0), (0.5, WEIGHTS[0]), (0.25, WEIGHTS[1]), (0.9, WEIGHTS[2])] {
            assert!((bell.at(time) - expected).abs() < 1e-5, "{time}: {}", bell.at(time));
        }
        let steps = FLOW.steps(4);
        let times: Vec<f32> = steps.iter().map(|(time, _)| *time).collect();
        assert_eq!(times, [1.0, 0.9375, 0.833_333_3, 0.625]);
        assert!((steps.iter().map(|(_, step)| step).sum::<f64>() + 1.0).abs() < 1e-6);
    }

    const WEIGHTS: [f64; 3] = [2.076_404_1, 1.456_320_4, 0.631_246_3];
}
