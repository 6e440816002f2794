//! The noise levels of a sampler's steps, as diffusers computes them of a `scheduler_config.json`.

use super::Method;
use serde_json::Value;

/// The number of noise levels of a schedule in training; a model is told them in these units.
const TRAIN_STEPS: f64 = 1000.0;

/// The noise levels of a number of steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    pub method: Method,
    pub num_steps: usize,
    pub shift: Shift,
    /// The last noise level that a step begins with, to which all are stretched (Qwen-Image: 0.02).
    pub terminal: Option<f64>,
    /// Euler's even spacing goes down to the least level of training, as in Wan's pipelines; else to 1 / `num_steps`.
    pub to_least: bool,
}

/// The noise levels of one sample's steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Levels {
    /// The noise levels that steps begin with, and a 0 behind them.
    pub sigmas: Vec<f32>,
    /// The time that the model is told at each step: the noise level; under UniPC whole thousandths of it.
    pub times: Vec<f64>,
}

/// Says how noise levels are moved toward noise: `s·σ / (1 + (s − 1)·σ)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shift {
    /// This s for all.
    Constant(f64),
    /// `ln s` is linear in the picture's tokens: `(tokens, ln s)` of two points.
    BySize([(f64, f64); 2]),
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ScheduleError {
    #[error("scheduler: {0} is not supported; supported: FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler")]
    Unknown(String),
    #[error("scheduler: {key}: {value} is not supported; only {only} is")]
    Setting { key: &'static str, value: String, only: &'static str },
}

impl Schedule {
    /// Returns the schedule that a `scheduler_config.json` describes.
    ///
    /// # Errors
    /// It is of another class, or asks for what this sampler does not do.
    pub fn from_hf(config: &Value, num_steps: usize) -> Result<Self, ScheduleError> {
        let class = config["_class_name"].as_str().unwrap_or_default();
        let number = |key: &str, default: f64| config[key].as_f64().unwrap_or(default);
        let is_set = |key: &str| config[key].as_bool().unwrap_or(false);
        let expect = |key: &'static str, only: &'static str, default: &str| {
            let value = match &config[key] {
                Value::Null => default.to_owned(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            if value == only { Ok(()) } else { Err(ScheduleError::Setting { key, value, only }) }
        };
        for key in ["use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas"] {
            expect(key, "false", "false")?;
        }
        expect("num_train_timesteps", "1000", "1000")?;
        let method = match class {
            "FlowMatchEulerDiscreteScheduler" => {
                expect("stochastic_sampling", "false", "false")?;
                expect("invert_sigmas", "false", "false")?;
                Method::Euler
            }
            "UniPCMultistepScheduler" => {
                expect("use_flow_sigmas", "true", "false")?;
                expect("prediction_type", "flow_prediction", "epsilon")?;
                expect("solver_type", "bh2", "bh2")?;
                expect("solver_order", "2", "2")?;
                expect("predict_x0", "true", "true")?;
                expect("lower_order_final", "true", "true")?;
                expect("thresholding", "false", "false")?;
                expect("final_sigmas_type", "zero", "zero")?;
                expect("disable_corrector", "[]", "[]")?;
                expect("solver_p", "null", "null")?;
                Method::UniPc
            }
            other => return Err(ScheduleError::Unknown(other.to_owned())),
        };
        let shift = match is_set("use_dynamic_shifting") {
            true => {
                expect("time_shift_type", "exponential", "exponential")?;
                let point =
                    |len: &str, shift: &str, default: (f64, f64)| (number(len, default.0), number(shift, default.1));
                Shift::BySize([
                    point("base_image_seq_len", "base_shift", (256.0, 0.5)),
                    point("max_image_seq_len", "max_shift", (4096.0, 1.15)),
                ])
            }
            false => Shift::Constant(number(if method == Method::Euler { "shift" } else { "flow_shift" }, 1.0)),
        };
        let terminal = config["shift_terminal"].as_f64().filter(|last| *last != 0.0);
        Ok(Self { method, num_steps, shift, terminal, to_least: false })
    }

    /// Returns the levels of a picture of so many tokens.
    pub fn levels(&self, num_tokens: usize) -> Levels {
        let steps = self.num_steps.max(1);
        let mut sigmas: Vec<f64> = match self.method {
            // linspace(1, the least of training, N): shifted here, and with all others once more below.
            Method::Euler if self.to_least => {
                let step = (self.shift.least() - 1.0) / (steps - 1).max(1) as f64;
                (0..steps).map(|at| 1.0 + at as f64 * step).collect()
            }
            // linspace(1, 1/N, N)
            Method::Euler => (0..steps).map(|at| (steps - at) as f64 / steps as f64).collect(),
            // linspace(1, 1/1000, N + 1) without its last
            Method::UniPc => {
                let step = (1.0 / TRAIN_STEPS - 1.0) / steps as f64;
                (0..steps).map(|at| 1.0 + at as f64 * step).collect()
            }
        };
        let scale = self.shift.at(num_tokens);
        sigmas.iter_mut().for_each(|sigma| *sigma = scale * *sigma / (1.0 + (scale - 1.0) * *sigma));
        if let (Some(terminal), Some(&last)) = (self.terminal, sigmas.last()) {
            let factor = (1.0 - last) / (1.0 - terminal);
            // A single step begins at pure noise: there is nothing to stretch.
            if factor > 0.0 {
                sigmas.iter_mut().for_each(|sigma| *sigma = 1.0 - (1.0 - *sigma) / factor);
            }
        }
        if self.method == Method::UniPc && (sigmas[0] - 1.0).abs() < 1e-6 {
            // At pure noise the ratio of data to noise has no logarithm.
            sigmas[0] -= 1e-6;
        }
        let times = sigmas.iter().map(|sigma| match self.method {
            Method::Euler => f64::from(*sigma as f32),
            Method::UniPc => (TRAIN_STEPS * sigma).floor() / TRAIN_STEPS,
        });
        let times = times.collect();
        Levels { sigmas: sigmas.into_iter().map(|sigma| sigma as f32).chain([0.0]).collect(), times }
    }
}

impl Shift {
    /// Returns the least noise level of training, as diffusers' Euler scheduler has it: shifted, unless s goes by size.
    fn least(self) -> f64 {
        let least = 1.0 / TRAIN_STEPS;
        match self {
            Self::Constant(shift) => shift * least / (1.0 + (shift - 1.0) * least),
            Self::BySize(_) => least,
        }
    }

    /// Returns the shift s of a picture of so many tokens.
    pub fn at(self, num_tokens: usize) -> f64 {
        match self {
            Self::Constant(shift) => shift,
            Self::BySize([(from, low), (to, high)]) => {
                let slope = (high - low) / (to - from);
                (num_tokens as f64 * slope + (low - slope * from)).exp()
            }
        }
    }
}
