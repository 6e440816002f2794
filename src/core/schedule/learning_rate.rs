//! The learning rate of a step.

use crate::config::{Schedule, Train};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// Linear warm-up to `peak`, then decay toward `min`: constant, linear, cosine, inverse square root, or constant with a linear decay at
/// the end (WSD; MiniCPM, Hu et al. 2024). The rates are those of Megatron's `OptimizerParamScheduler` and of transformers' schedules.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearningRate {
    pub peak: f64,
    pub min: f64,
    pub schedule: Schedule,
    pub warmup_steps: u64,
    /// Number of steps at the end of [`Schedule::Wsd`] over which the rate decays.
    pub decay_steps: u64,
    /// Number of steps of the whole run.
    pub steps: u64,
}

/// Replaces the number of warm-up steps in the inverse square root schedule if there is no warm-up, as in transformers.
const TIMESCALE: u64 = 10_000;

impl LearningRate {
    /// Reads the schedule of a config with settled epochs; by default the decay takes a tenth of the steps, or what the warm-up leaves.
    pub fn new(train: &Train) -> Self {
        let steps = train.num_steps();
        let warmup_steps = train.num_warmup_steps(steps);
        let usual = steps.div_ceil(10).min(steps.saturating_sub(warmup_steps));
        Self {
            peak: train.lr,
            min: train.min_lr,
            schedule: train.schedule,
            warmup_steps,
            decay_steps: train.decay_steps.unwrap_or(usual),
            steps,
        }
    }

    /// Returns the learning rate of step `step`, counted from 0: it is above 0 in the first warm-up step and in the last step of
    /// the run.
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
            Schedule::Wsd => {
                let left = self.steps.saturating_sub(step) as f64;
                (left / self.decay_steps.max(1) as f64).min(1.0)
            }
            Schedule::InverseSqrt => {
                let scale = if self.warmup_steps == 0 { TIMESCALE } else { self.warmup_steps };
                let share = (scale as f64 / (step - self.warmup_steps + scale) as f64).sqrt();
                return (self.peak * share).max(self.min);
            }
        };
        self.min + share * (self.peak - self.min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;

    fn rate(schedule: Schedule) -> LearningRate {
        LearningRate { peak: 1.0, min: 0.1, schedule, warmup_steps: 4, decay_steps: 5, steps: 14 }
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
    fn wsd_falls_at_the_end_and_an_inverse_root_from_the_warm_up_on() {
        let wsd = rate(Schedule::Wsd);
        assert!((4..10).all(|step| wsd.at(step) == 1.0));
        assert!((wsd.at(13) - (0.1 + 0.9 / 5.0)).abs() < 1e-12 && (wsd.at(14) - 0.1).abs() < 1e-12);
        let root = rate(Schedule::InverseSqrt);
        assert_eq!((root.at(4), root.at(12)), (1.0, (4.0f64 / 12.0).sqrt()));
        assert_eq!(root.at(1_000_000), 0.1);
        assert!((LearningRate { warmup_steps: 0, ..root }.at(30_000) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn the_decay_of_wsd_takes_no_more_than_the_warm_up_leaves() {
        let file = tempfile::Builder::new().suffix(".jsonl").tempfile().unwrap();
        std::fs::write(&file, "{}\n").unwrap();
        let of = |warmup_steps: u64| {
            let model = "model: { config: { model_type: x }, weights: random, tokenizer: org/name }";
            let data = format!("data: {{ train: [{{ path: {} }}] }}", file.path().display());
            let train = "steps: 40, global_batch_size: 1, lr: 1.0, schedule: wsd";
            let text =
                format!("run: {{ name: a }}\n{model}\n{data}\ntrain: {{ {train}, warmup_steps: {warmup_steps} }}\n");
            LearningRate::new(&load_text(&text).unwrap().config.train)
        };
        let rate = of(38);
        assert_eq!((rate.decay_steps, rate.at(37), rate.at(38)), (2, 1.0, 1.0));
        let rate = of(4);
        assert_eq!((rate.decay_steps, rate.at(36)), (4, 1.0));
        assert_eq!(of(40).decay_steps, 0);
    }

    #[test]
    fn a_run_that_is_all_warm_up_is_no_division_by_zero() {
        let rate = LearningRate { steps: 4, ..rate(Schedule::Cosine) };
        assert_eq!(rate.at(3), 1.0);
        assert_eq!(rate.at(4), 1.0);
    }
}
