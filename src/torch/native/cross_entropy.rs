//! The passes of a cross-entropy over scores that come in chunks of the vocabulary, on the CPU.
//!
//! Shapes: L targets, C entries of a chunk.

use tch::{Device, Kind, Tensor};

use super::error::last_error;
use super::ffi::{self, raw};
use super::fused::can_fuse;

/// The maximum, the sum of exponentials and the label's score of every target over the scores that were seen so far.
pub struct ScoreScan {
    greatest: Tensor,
    sum: Tensor,
    label_score: Tensor,
}

impl ScoreScan {
    /// Returns a scan of no scores yet, for so many targets, on the CPU.
    pub fn new(num_targets: i64) -> ScoreScan {
        let full = |value: f64| Tensor::full([num_targets], value, (Kind::Float, Device::Cpu));
        ScoreScan { greatest: full(f64::from(f32::MIN)), sum: full(0.0), label_score: full(0.0) }
    }

    /// Takes the scores `[L, C]` of the vocabulary's entries from `first` on; `labels` are int64.
    pub fn add(&mut self, scores: &Tensor, labels: &Tensor, first: i64) {
        check(scores, labels, &self.sum);
        let [greatest, sum, of_label] = [&self.greatest, &self.sum, &self.label_score].map(raw);
        // SAFETY: the tensors are alive, and kinds, shapes, layout and device were checked.
        let status = unsafe { ffi::lf_scan_scores(raw(scores), raw(labels), first, greatest, sum, of_label) };
        assert!(status == 0, "scan of scores: {}", last_error());
    }

    /// Returns the logarithm of every target's sum of exponentials, and its label's score; `[L]`, float32.
    pub fn finish(self) -> (Tensor, Tensor) {
        (self.sum.log() + self.greatest, self.label_score)
    }
}

/// Turns the scores `[L, C]` into their gradients, in place: probabilities, less one at the label, times `scale`.
pub fn scores_to_gradient(scores: &Tensor, labels: &Tensor, first: i64, norm: &Tensor, scale: f64) {
    check(scores, labels, norm);
    // SAFETY: as in `ScoreScan::add`.
    let status = unsafe { ffi::lf_scores_to_gradient(raw(scores), raw(labels), first, raw(norm), scale) };
    assert!(status == 0, "gradient of scores: {}", last_error());
}

fn check(scores: &Tensor, labels: &Tensor, of_rows: &Tensor) {
    assert!(can_fuse(scores) && scores.is_contiguous() && scores.dim() == 2, "scores {scores:?}");
    let rows = [scores.size()[0]];
    assert!(labels.kind() == Kind::Int64 && labels.is_contiguous() && labels.size() == rows, "{labels:?}");
    assert!(of_rows.kind() == Kind::Float && of_rows.is_contiguous() && of_rows.size() == rows, "{of_rows:?}");
}
