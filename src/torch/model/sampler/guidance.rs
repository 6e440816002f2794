//! Guidance without a classifier (Ho and Salimans 2022): the velocity of the prompt, exaggerated away from that of another.

use tch::{Kind, Tensor};

/// Says how the velocities of a prompt and of the negative prompt become one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guidance {
    /// `v_negative + scale · (v − v_negative)`; 1 leaves the negative prompt out.
    pub scale: f64,
    /// Gives every token the length of the prompt's own velocity (Qwen-Image).
    pub keeps_length: bool,
}

/// The guidance of a model's samples.
#[derive(Clone, Debug, PartialEq)]
pub struct GuidanceScales {
    /// One for all noise levels, or two: from `boundary` on, and below.
    pub scales: Vec<f64>,
    pub boundary: f64,
    pub keeps_length: bool,
}

impl GuidanceScales {
    /// Returns the guidance at a noise level as the model is told it.
    pub fn at(&self, time: f64) -> Guidance {
        let number = usize::from(time < self.boundary).min(self.scales.len().saturating_sub(1));
        Guidance { scale: self.scales.get(number).copied().unwrap_or(1.0), keeps_length: self.keeps_length }
    }
}

impl Guidance {
    /// Returns whether the negative prompt is read at all.
    pub fn reads_negative(self) -> bool {
        self.scale != 1.0
    }

    /// Returns the velocity to follow, float32, `[tokens, values]` as both.
    pub fn combine(self, velocity: &Tensor, negative: &Tensor) -> Tensor {
        let (velocity, negative) = (velocity.to_kind(Kind::Float), negative.to_kind(Kind::Float));
        let combined = &negative + (&velocity - &negative) * self.scale;
        if !self.keeps_length {
            return combined;
        }
        let length = |x: &Tensor| x.square().sum_dim_intlist(-1, true, Kind::Float).sqrt();
        let ratio = length(&velocity) / length(&combined);
        // A token of no length stays where it is.
        combined * ratio.nan_to_num(1.0, 1.0, 1.0)
    }
}
