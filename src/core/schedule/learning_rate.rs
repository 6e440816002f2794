//! The learning rate of a step.

use crate::config::{Schedule, Train};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// Linear warm-up to `peak`, then constant, linear or cosine decay to `min` (Megatron's `OptimizerParamScheduler`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearningRate {
    pub peak: f64,
    pub min: f64,
    pub schedule: Schedule,
    pub warmup_steps: u64,
    /// Steps of the whole run.
    pub steps: u64,
}

impl LearningRate {
    pub fn new(train: &Train) -> Self {
        Self {
            peak: train.lr,
            min: train.min_lr,
            schedule: train.schedule,
            warmup_steps: train.warmup_steps,
            steps: train.num_steps(),
        }
    }

    /// Learning rate of step `step`, counted from 0: the first step of the warm-up already learns, and so does the
    /// last step of the run.
    pub fn at(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let decay_steps = self.steps.saturating_sub(self.warmup_steps).max(1);
        let ratio = ((step - self.warmup_steps) as f64 / decay_steps as f64).min(1.0);
        let share = match self.schedule {
            Schedule::Constant => return self.peak,
            Schedule::Linear => 1.0 - ratio,
            Schedule::Cosine => 0.5 * ((PI * ratio).cos() + 1.0),
        };
        self.min + share * (self.peak - self.min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(schedule: Schedule) -> LearningRate {
        LearningRate { peak: 1.0, min: 0.1, schedule, warmup_steps: 4, steps: 14 }
    }

    #[test]
    fn warm_up_rises_to_the_peak_and_decay_falls_towards_the_minimum() {
        let cosine = rate(Schedule::Cosine);
        let warm: Vec<f64> = (0..4).map(|step| cosine.at(step)).collect();
        assert_eq!(warm, [0.25, 0.5, 0.75, 1.0]);
        assert_eq!(cosine.at(4), 1.0);
        assert!((cosine.at(9) - 0.55).abs() < 1e-12);
        assert!((4..14).all(|step| cosine.at(step + 1) < cosine.at(step)));
        assert!((cosine.at(14) - 0.1).abs() < 1e-12);
        assert_eq!(cosine.at(99), cosine.at(14));
    }

    #[test]
    fn linear_halves_at_half_way_and_constant_stays() {
        assert!((rate(Schedule::Linear).at(9) - 0.55).abs() < 1e-12);
        assert_eq!(rate(Schedule::Constant).at(13), 1.0);
    }

    #[test]
    fn a_run_that_is_all_warm_up_is_no_division_by_zero() {
        let rate = LearningRate { steps: 4, ..rate(Schedule::Cosine) };
        assert_eq!(rate.at(3), 1.0);
        assert_eq!(rate.at(4), 1.0);
    }
}
