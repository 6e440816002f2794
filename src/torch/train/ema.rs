//! The exponential moving average of what a pool trains (`train.ema`).

use super::placed::{Places, StateTensor};
use crate::native::NativeError;
use crate::params::ParamStore;
use tch::{Kind, Tensor};

/// The end of the names of averages in files.
pub(super) const EMA: &str = "ema";

/// The average of what this rank's optimizer changes, float32, laid out as the optimizer's state.
pub(super) struct Ema {
    decay: f64,
    pub(super) values: StateTensor,
}

impl Ema {
    /// # Errors
    /// There is no place for it.
    pub fn new(params: &ParamStore, decay: f64, places: &Places) -> Result<Self, NativeError> {
        let values = places.zeros(params.num_owned(), places.elements_away, Kind::Float)?;
        Ok(Self { decay, values })
    }

    /// Returns the share of the average so far after step `num_steps`, from 1. The first steps leave less of what was before, as in the
    /// `EMAModel` of diffusers; the first leaves nothing, so that it does not matter what there was.
    fn decay_of(&self, num_steps: u64) -> f64 {
        match num_steps.saturating_sub(1) {
            0 => 0.0,
            former => self.decay.min((1.0 + former as f64) / (10.0 + former as f64)),
        }
    }

    /// Adds what step `num_steps` made of the elements from `at` on to their averages: `values` are flat `[len]`, float32.
    pub fn update(&self, at: i64, values: &Tensor, num_steps: u64) {
        let mut average = self.values.narrow(at, values.numel() as i64);
        let _ = average.lerp_(&values.to_device(average.device()), 1.0 - self.decay_of(num_steps));
    }
}
