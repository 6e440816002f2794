//! The passes of a cross-entropy over a chunk of scores: by one of ours on a CPU, else by libtorch's operators, each of which reads and
//! writes all of the chunk.
//!
//! Shapes: L counted targets, D hidden size, C a chunk's entries.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use crate::native::ScoreScan;

/// Scores of which a pass over all takes a GPU less than finding the labels among them: to add in a fixed order it sorts their places, in
/// about twenty kernels.
const FEW_SCORES: usize = 4 << 20;

/// The sum of exponentials and the label's score of every target.
pub(super) enum Scan {
    Fused(ScoreScan),
    Plain { norm_L: Tensor, label_score_L: Tensor },
}

impl Scan {
    /// Begins a scan of the scores of the states `[L, D]`.
    pub fn new(hidden_LD: &Tensor) -> Scan {
        let num_targets = hidden_LD.size()[0];
        match hidden_LD.device() {
            Device::Cpu => Scan::Fused(ScoreScan::new(num_targets)),
            device => Scan::plain(num_targets, device),
        }
    }

    fn plain(num_targets: i64, device: Device) -> Scan {
        let full = |value: f64| Tensor::full([num_targets], value, (Kind::Float, device));
        Scan::Plain { norm_L: full(f64::NEG_INFINITY), label_score_L: full(0.0) }
    }

    /// Takes the scores `[L, C]` of the entries `chunk`; `labels_L` `[L]` are int64.
    pub fn add(&mut self, scores_LC: &Tensor, labels_L: &Tensor, chunk: &Range<i64>) {
        match self {
            Scan::Fused(scan) => scan.add(scores_LC, labels_L, chunk.start),
            Scan::Plain { norm_L, label_score_L } => {
                *norm_L = norm_L.logaddexp(&log_sum_exp(scores_LC));
                let (at_L1, here_L1) = places(labels_L, chunk);
                *label_score_L += (scores_LC.gather(1, &at_L1, false) * here_L1).squeeze_dim(1);
            }
        }
    }

    /// Returns the logarithm of every target's sum of exponentials, and its label's score; `[L]`, float32.
    pub fn finish(self) -> (Tensor, Tensor) {
        match self {
            Scan::Fused(scan) => scan.finish(),
            Scan::Plain { norm_L, label_score_L } => (norm_L, label_score_L),
        }
    }
}

/// Returns the float32 `logsumexp` of scores `[L, C]` of any kind, of which there is no copy in float32 but the exponentials. `[L]`.
fn log_sum_exp(scores_LC: &Tensor) -> Tensor {
    // A row of -∞ alone has that sum: its greatest must not be taken from itself.
    let greatest_L1 = scores_LC.amax(1i64, true).to_kind(Kind::Float).clamp_min(f64::from(f32::MIN));
    let sum_L = (scores_LC - &greatest_L1).exp_().sum_dim_intlist(1, false, Kind::Float);
    sum_L.log() + greatest_L1.squeeze_dim(1)
}

/// Returns the scores' gradient by libtorch's operators, in their place: probabilities, less one at the label, times `factor`, a float32
/// scalar. `scores_LC` is `[L, C]`, `labels_L` and `norm_L` are `[L]`.
pub(super) fn to_gradient(
    scores_LC: Tensor,
    labels_L: &Tensor,
    chunk: &Range<i64>,
    norm_L: &Tensor,
    factor: &Tensor,
) -> Tensor {
    let probabilities_LC = (&scores_LC - norm_L.unsqueeze(1)).exp_();
    let are_few = scores_LC.numel() <= FEW_SCORES;
    without_labels(probabilities_LC, labels_L, chunk, are_few).mul_out(&scores_LC, factor)
}

/// Takes one from the labels' probabilities, in place: in a pass over all where they `are_few`, else at their places. `[L, C]`.
fn without_labels(mut probabilities_LC: Tensor, labels_L: &Tensor, chunk: &Range<i64>, are_few: bool) -> Tensor {
    if are_few {
        let entries_C = Tensor::arange_start(chunk.start, chunk.end, (Kind::Int64, labels_L.device()));
        let is_label_LC = labels_L.unsqueeze(1).eq_tensor(&entries_C);
        return probabilities_LC.g_sub_(&is_label_LC.view_dtype(Kind::Uint8));
    }
    let (at_L1, here_L1) = places(labels_L, chunk);
    probabilities_LC.scatter_add_(1, &at_L1, &-here_L1)
}

/// Returns where in the chunk each label is, and whether it is there: 1 or 0; `[L, 1]`.
pub(super) fn places(labels_L: &Tensor, chunk: &Range<i64>) -> (Tensor, Tensor) {
    let wanted_L1 = (labels_L - chunk.start).unsqueeze(1);
    let at_L1 = wanted_L1.clamp(0, chunk.end - chunk.start - 1);
    let here_L1 = at_L1.eq_tensor(&wanted_L1).to_kind(Kind::Float);
    (at_L1, here_L1)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use tch::{Device, Kind, Tensor};

    use super::{Scan, log_sum_exp, places, to_gradient, without_labels};
    use crate::native::{ScoreScan, scores_to_gradient};

    /// Returns nine targets, two chunks, and labels in both.
    fn scores(kind: Kind) -> ([(Tensor, Range<i64>); 2], Tensor) {
        tch::manual_seed(4);
        let chunk = |entries: Range<i64>| {
            let scores = Tensor::randn([9, entries.end - entries.start], (Kind::Float, Device::Cpu)) * 4.0;
            (scores.to_kind(kind), entries)
        };
        ([chunk(0..7), chunk(7..12)], Tensor::from_slice(&[0i64, 6, 7, 11, 3, 8, 8, 0, 10]))
    }

    /// libtorch's operators, which GPUs use, compute what the passes of CPUs do.
    #[test]
    fn plain_operators_equal_the_fused_passes() {
        for (kind, tolerance) in [(Kind::Float, 1e-6), (Kind::BFloat16, 1e-2)] {
            let (chunks, labels) = scores(kind);
            let mut scans = [Scan::Fused(ScoreScan::new(9)), Scan::plain(9, Device::Cpu)];
            for (scores, chunk) in &chunks {
                scans.iter_mut().for_each(|scan| scan.add(scores, &labels, chunk));
            }
            let [(norm, of_label), (plain_norm, plain_of_label)] = scans.map(Scan::finish);
            assert!(plain_norm.allclose(&norm, 1e-6, 1e-6, false), "{kind:?}: {plain_norm:?} and {norm:?}");
            assert_eq!(plain_of_label, of_label, "{kind:?}");
            for (scores, chunk) in chunks {
                let (fused, factor) = (scores.copy(), Tensor::from(0.3f32));
                scores_to_gradient(&fused, &labels, chunk.start, &norm, f64::from(0.3f32));
                let address = scores.data_ptr();
                let plain = to_gradient(scores, &labels, &chunk, &norm, &factor);
                assert_eq!((plain.kind(), plain.data_ptr()), (kind, address));
                assert!(plain.allclose(&fused, tolerance, 1e-6, false), "{kind:?}, {chunk:?}");
            }
        }
    }

    #[test]
    fn labels_are_taken_from_few_and_from_many_scores_alike() {
        let (chunks, labels) = scores(Kind::Float);
        for (scores, chunk) in chunks {
            let [few, many] = [true, false].map(|are_few| without_labels(scores.copy(), &labels, &chunk, are_few));
            assert_eq!(few, many);
            let taken = (scores - few).sum(Kind::Float).double_value(&[]);
            assert!((taken - if chunk.start == 0 { 4.0 } else { 5.0 }).abs() < 1e-4, "{taken}");
        }
    }

    #[test]
    fn scores_are_shifted_before_they_are_added_up() {
        let infinite = f32::NEG_INFINITY;
        let scores = Tensor::from_slice(&[infinite, infinite, 900.0, 901.0, infinite, -2.0]).view([3, 2]);
        let found = Vec::<f32>::try_from(log_sum_exp(&scores)).unwrap();
        assert_eq!((found[0], found[2]), (infinite, -2.0));
        assert!((f64::from(found[1]) - 901.31326).abs() < 1e-3, "{found:?}");
    }

    #[test]
    fn labels_are_found_in_their_chunk_alone() {
        let (at, here) = places(&Tensor::from_slice(&[2i64, 3, 6, 7]), &(3..7));
        assert_eq!(at.view([-1]), Tensor::from_slice(&[0i64, 0, 3, 3]));
        assert_eq!(here.view([-1]), Tensor::from_slice(&[0f32, 1.0, 1.0, 0.0]));
    }
}
