//! Noise and time of one of the draws of a sample.

use loongforge_core::message::SampleId;
use loongforge_core::rng::{Counter, Rng};
use loongforge_core::schedule::TimeSampler;
use tch::Tensor;

use super::NoisePurpose;

/// One of the draws of a sample: what it is belongs to these four alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    pub seed: u64,
    pub sample: SampleId,
    pub purpose: NoisePurpose,
    pub number: u32,
}

impl Draw {
    /// Returns the noise of this draw, of the given `shape`, float32, on the CPU.
    pub fn noise(&self, shape: &[i64]) -> Tensor {
        normal(&self.numbers(u64::from(self.number)), shape)
    }

    /// Returns noise of the given `shape`, float32, on the CPU, for another purpose, which the number `what` tells.
    pub fn noise_of(&self, what: u32, shape: &[i64]) -> Tensor {
        normal(&self.numbers(Self::stream(what, self.number)), shape)
    }

    /// Returns the draw's time between data and noise.
    pub fn time(&self, of: &TimeSampler) -> f64 {
        of.at(self.numbers(u64::MAX - u64::from(self.number)).unit(0))
    }

    /// Returns a number between 0 and 1 for something else, which `what` tells.
    pub fn chance(&self, what: u32) -> f64 {
        Counter::new(&self.key(Self::stream(what, self.number))).unit(0)
    }

    /// Returns the keys of so many rows of something else, which `what` tells.
    pub fn keys(&self, what: u32, count: usize) -> Vec<i64> {
        let mut numbers = Rng::new(&self.key(Self::stream(what, self.number)));
        (0..count).map(|_| numbers.next_u64() as i64).collect()
    }

    /// Returns the number of a random stream apart from those of noise and times.
    fn stream(what: u32, number: u32) -> u64 {
        (1 + u64::from(what)) << 32 | u64::from(number)
    }

    fn numbers(&self, stream: u64) -> Counter {
        Counter::new(&self.key(stream))
    }

    fn key(&self, stream: u64) -> [u64; 4] {
        let purpose = match self.purpose {
            NoisePurpose::Training => 0,
            NoisePurpose::Evaluation(draw) => 1 + u64::from(draw),
        };
        [self.seed, self.sample.0, purpose, stream]
    }
}

fn normal(numbers: &Counter, shape: &[i64]) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product::<i64>() as u64).map(|at| numbers.normal(at) as f32).collect();
    Tensor::from_slice(&values).view(shape)
}

#[cfg(test)]
mod tests {
    use loongforge_core::message::SampleId;
    use loongforge_core::schedule::TimeSampler;

    use super::{Draw, NoisePurpose};

    #[test]
    fn times_have_their_density_and_belong_to_the_draw() {
        let draw = |sample, number| Draw { seed: 3, sample: SampleId(sample), purpose: NoisePurpose::Training, number };
        let of = TimeSampler::Beta { alpha: 1.5, beta: 1.0, scale: 0.999, offset: 0.001 };
        let times: Vec<f64> = (0..20_000).map(|sample| draw(sample, 0).time(&of)).collect();
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        // Beta(a, 1) has the mean a / (a + 1).
        assert!((mean - (0.001 + 0.999 * 0.6)).abs() < 0.01, "{mean}");
        let below = times.iter().filter(|time| **time < 0.001 + 0.999 * 0.25).count() as f64 / times.len() as f64;
        assert!((below - 0.125).abs() < 0.01, "{below}");
        let own = [draw(5, 0), draw(5, 1), draw(6, 0)].map(|draw| draw.time(&of));
        assert!(own[0] == times[5] && own[0] != own[1] && own[2] == times[6], "{own:?}");
        assert_ne!(draw(5, 0).noise(&[2, 3]), draw(5, 1).noise(&[2, 3]));
        let keys = draw(5, 0).keys(1, 3);
        assert_eq!(keys[..2], draw(5, 0).keys(1, 2));
        assert!(keys[0] != keys[1] && keys[0] != draw(5, 1).keys(1, 1)[0] && keys[0] != draw(5, 0).keys(2, 1)[0]);
        let dropped = (0..2000).filter(|sample| draw(*sample, 0).chance(0) < 0.2).count();
        assert!((350..450).contains(&dropped), "{dropped}");
    }
}
