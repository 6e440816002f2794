//! What is measured of a step. Not how it is shown.

use serde::{Deserialize, Serialize};

/// One step's measurements: a line of `metrics.jsonl`, a point of every TensorBoard curve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepMetrics {
    /// Counted from 0.
    pub step: u64,
    /// Mean over the step's target tokens.
    pub loss: f64,
    /// Norm of the gradient over all pools, before clipping.
    pub grad_norm: f64,
    pub learning_rate: f64,
    /// Real tokens of the step; there is no padding.
    pub tokens: u64,
    pub images: u64,
    pub tokens_per_s: f64,
    pub images_per_s: f64,
    pub step_ms: f64,
    /// Share of the step in which the pool's engines computed, 0 to 1, the mean over the pool.
    pub encoder_busy: f64,
    pub foundation_busy: f64,
    /// Model FLOPs utilization, 0 to 1, where the device's peak is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// The step's gradient was dropped.
    pub skipped: bool,
    /// Bad samples so far.
    pub bad_samples: u64,
}

impl StepMetrics {
    /// Name and value of every curve; the names follow Megatron's groups.
    pub fn scalars(&self) -> Vec<(&'static str, f64)> {
        let mut scalars = vec![
            ("train/loss", self.loss),
            ("train/grad_norm", self.grad_norm),
            ("train/learning_rate", self.learning_rate),
            ("train/skipped", f64::from(u8::from(self.skipped))),
            ("data/tokens", self.tokens as f64),
            ("data/images", self.images as f64),
            ("data/bad_samples", self.bad_samples as f64),
            ("speed/tokens_per_s", self.tokens_per_s),
            ("speed/images_per_s", self.images_per_s),
            ("speed/step_ms", self.step_ms),
            ("busy/encoder", self.encoder_busy),
            ("busy/foundation", self.foundation_busy),
        ];
        scalars.extend(self.mfu.map(|mfu| ("speed/mfu", mfu)));
        scalars
    }
}
