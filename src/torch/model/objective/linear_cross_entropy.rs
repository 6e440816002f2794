//! The head and the cross-entropy as one operation, in chunks of the vocabulary, so that the scores never lie in memory
//! whole (the idea is Liger's fused linear cross-entropy; its chunks are of tokens, and sum a gradient of the head for
//! each).
//!
//! Shapes: L counted targets, D hidden size, V vocabulary, C a chunk's entries.

use std::cell::LazyCell;
use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::score_passes::{Scan, places, to_gradient};
use super::smoothing::Smoothing;
use crate::native::{add_product, linear, scores_to_gradient};
use crate::tape::{Custom, Needs, ParamGrads};

/// Entries of a chunk.
const CHUNK: i64 = 4096;
/// Scores kept for the backward; those of further chunks are computed again.
const KEPT_BYTES: usize = 256 << 20;

/// Reads hidden states `[L, D]`, writes the sum of the cross-entropies times `scale`, a float64 scalar. Scores have the
/// kind of the hidden states; what is computed of them is float32.
pub struct LinearCrossEntropy {
    head_VD: Tensor,
    bias_V: Option<Tensor>,
    /// Head and bias.
    trained: [bool; 2],
    labels_L: Tensor,
    scale: f64,
    /// Divides the scores, before the cap.
    divisor: Option<f64>,
    /// Scores s become `cap · tanh(s / cap)`.
    soft_cap: Option<f64>,
    smoothing: Option<Smoothing>,
    chunk: i64,
    kept_bytes: usize,
}

impl LinearCrossEntropy {
    /// `labels_L` are int64, all counted. Panics where one is not of the vocabulary.
    /// `head_VD` is `[V, D]`, `bias_V` `[V]`, `labels_L` `[L]`.
    pub fn new(head_VD: Tensor, bias_V: Option<Tensor>, labels_L: Tensor, scale: f64) -> LinearCrossEntropy {
        let trained = [head_VD.requires_grad(), bias_V.as_ref().is_some_and(Tensor::requires_grad)];
        let (head_VD, bias_V) = (head_VD.detach(), bias_V.map(|bias_V| bias_V.detach()));
        let (chunk, kept_bytes) = (CHUNK, KEPT_BYTES);
        let (divisor, soft_cap, smoothing) = (None, None, None);
        LinearCrossEntropy {
            head_VD,
            bias_V,
            trained,
            labels_L,
            scale,
            divisor,
            soft_cap,
            smoothing,
            chunk,
            kept_bytes,
        }
    }

    /// Returns the same loss, of scores divided by this where it is given.
    pub fn with_divisor(self, divisor: Option<f64>) -> LinearCrossEntropy {
        LinearCrossEntropy { divisor, ..self }
    }

    /// Returns the same loss, of scores with this soft cap where there is one.
    pub fn with_soft_cap(self, soft_cap: Option<f64>) -> LinearCrossEntropy {
        LinearCrossEntropy { soft_cap, ..self }
    }

    /// Returns the same loss with smoothed labels where there is smoothing; predictions stay the same.
    pub fn with_smoothing(self, smoothing: Option<Smoothing>) -> LinearCrossEntropy {
        LinearCrossEntropy { smoothing, ..self }
    }

    pub(super) fn labels(&self) -> &Tensor {
        &self.labels_L
    }

    pub(super) fn smoothing(&self) -> Option<Smoothing> {
        self.smoothing
    }

    fn chunks(&self) -> impl Iterator<Item = Range<i64>> + use<> {
        let (entries, chunk) = (self.head_VD.size()[0], self.chunk);
        (0..entries).step_by(chunk as usize).map(move |first| first..entries.min(first + chunk))
    }

    fn head(&self, chunk: &Range<i64>) -> Tensor {
        self.head_VD.narrow(0, chunk.start, chunk.end - chunk.start)
    }

    fn scores(&self, hidden_LD: &Tensor, chunk: &Range<i64>) -> Tensor {
        let bias = self.bias_V.as_ref().map(|bias_V| bias_V.narrow(0, chunk.start, chunk.end - chunk.start));
        let scores_LC = linear(hidden_LD, &self.head(chunk), bias.as_ref());
        let scores_LC = match self.divisor {
            Some(divisor) => scores_LC / divisor,
            None => scores_LC,
        };
        match self.soft_cap {
            Some(cap) => soft_capped(&scores_LC, cap),
            None => scores_LC,
        }
    }

    /// Returns for every target the logarithm of its scores' sum of exponentials and its label's score, `[L]`, float32,
    /// with smoothing the mean score by the smoothed label; and with `keep` the scores of the first chunks.
    pub(super) fn scan(&self, hidden_LD: &Tensor, keep: bool) -> (Tensor, Tensor, Vec<Tensor>) {
        let mut kept = Vec::new();
        let mut bytes = 0;
        let mut sum_L = None;
        let (norm_L, label_score_L) = self.scan_with(hidden_LD, |scores_LC, _| {
            if self.smoothing.is_some() {
                let part_L = scores_LC.sum_dim_intlist(1, false, Kind::Float);
                sum_L = Some(sum_L.take().map_or_else(|| part_L.shallow_clone(), |sum_L: Tensor| sum_L + &part_L));
            }
            bytes += scores_LC.numel() * scores_LC.kind().elt_size_in_bytes();
            if keep && bytes <= self.kept_bytes {
                kept.push(scores_LC);
            }
        });
        match (self.smoothing, sum_L) {
            (Some(smoothing), Some(sum_L)) => (norm_L, smoothing.mean(&label_score_L, &sum_L), kept),
            _ => (norm_L, label_score_L, kept),
        }
    }

    /// Works like [`LinearCrossEntropy::scan`]; `also` gets the scores of each chunk.
    fn scan_with(&self, hidden_LD: &Tensor, mut also: impl FnMut(Tensor, Range<i64>)) -> (Tensor, Tensor) {
        let mut scan = Scan::new(hidden_LD);
        for chunk in self.chunks() {
            let scores_LC = self.scores(hidden_LD, &chunk);
            scan.add(&scores_LC, &self.labels_L, &chunk);
            also(scores_LC, chunk);
        }
        scan.finish()
    }

    /// Returns for each target its cross-entropy, `[L]`, float32, and the entry with the highest score there (of equal ones
    /// the first), `[L]`, int64.
    pub fn of_each(&self, hidden_LD: &Tensor) -> (Tensor, Tensor) {
        let mut best = Best::new(hidden_LD);
        let (norm_L, label_score_L) = self.scan_with(hidden_LD, |scores_LC, chunk| best.add(&scores_LC, &chunk));
        (norm_L - label_score_L, best.entry_L)
    }

    /// Returns for each target the highest score, `[L]`, float32, and its entry (of equal ones the first), `[L]`,
    /// int64.
    pub(super) fn best(&self, hidden_LD: &Tensor) -> (Tensor, Tensor) {
        let mut best = Best::new(hidden_LD);
        self.chunks().for_each(|chunk| best.add(&self.scores(hidden_LD, &chunk), &chunk));
        (best.score_L, best.entry_L)
    }

    /// Returns the gradients of the hidden states, and of the head and its bias into `params`, chunk by chunk. `saved` are hidden states,
    /// norms and what `scan` kept; `to_gradient` makes the scores' gradient of scores and norms.
    pub(super) fn differentiate(
        &self,
        saved: Vec<Tensor>,
        needs: &Needs,
        params: Option<&ParamGrads<'_>>,
        to_gradient: impl Fn(Tensor, &Tensor, &Range<i64>) -> Tensor,
    ) -> Vec<Option<Tensor>> {
        let mut saved = saved.into_iter();
        let [hidden_LD, norm_L] = [(); 2].map(|()| saved.next().expect("the forward saved hidden states and norms"));
        let float = (Kind::Float, hidden_LD.device());
        let of_hidden = needs.reads[0].then(|| Tensor::zeros(hidden_LD.size(), float));
        for chunk in self.chunks() {
            let scores_LC = saved.next().unwrap_or_else(|| self.scores(&hidden_LD, &chunk));
            let slope_LC = self.soft_cap.map(|cap| 1.0 - (&scores_LC / cap).square());
            let of_scores_LC = match slope_LC {
                Some(slope_LC) => to_gradient(scores_LC, &norm_L, &chunk) * slope_LC,
                None => to_gradient(scores_LC, &norm_L, &chunk),
            };
            let of_scores_LC = match self.divisor {
                Some(divisor) => of_scores_LC / divisor,
                None => of_scores_LC,
            };
            if let Some(of_hidden) = &of_hidden {
                add_product(of_hidden, &of_scores_LC, false, &self.head(&chunk));
            }
            if let Some(params) = params {
                let of_chunk = |index: usize| params.sum(index).narrow(0, chunk.start, chunk.end - chunk.start);
                if self.trained[0] {
                    add_product(&of_chunk(0), &of_scores_LC, true, &hidden_LD);
                }
                if self.trained[1] {
                    let _ = of_chunk(1).g_add_(&of_scores_LC.sum_dim_intlist(0, false, Kind::Float));
                }
            }
        }
        vec![of_hidden.map(|of_hidden| of_hidden.to_kind(hidden_LD.kind()))]
    }
}

impl Custom for LinearCrossEntropy {
    fn forward(&self, reads: &[Tensor], needs: Option<&Needs>) -> (Vec<Tensor>, Vec<Tensor>) {
        let hidden_LD = &reads[0];
        let (norm_L, label_score_L, kept) = self.scan(hidden_LD, needs.is_some());
        let loss = (&norm_L - label_score_L).sum(Kind::Double) * self.scale;
        let mut saved = Vec::new();
        if needs.is_some() {
            saved.extend([hidden_LD.shallow_clone(), norm_L]);
            saved.extend(kept);
        }
        (vec![loss], saved)
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        grads: &[Option<Tensor>],
        needs: &Needs,
        params: Option<&ParamGrads<'_>>,
    ) -> Vec<Option<Tensor>> {
        let gradient = grads[0].as_ref().expect("a loss has one output");
        // Of a GPU it is not read, which would wait for the device.
        let factor = LazyCell::new(|| gradient.to_kind(Kind::Float) * self.scale);
        self.differentiate(saved, needs, params, |scores_LC, norm_L, chunk| match self.smoothing {
            None if scores_LC.device() == Device::Cpu => {
                let factor = self.scale * gradient.double_value(&[]);
                scores_to_gradient(&scores_LC, &self.labels_L, chunk.start, norm_L, factor);
                scores_LC
            }
            None => to_gradient(scores_LC, &self.labels_L, chunk, norm_L, &factor),
            Some(smoothing) => {
                let probabilities = (&scores_LC - norm_L.unsqueeze(1)).exp_();
                let of_scores_LC = smoothing.taken_from(probabilities, &places(&self.labels_L, chunk), None);
                (of_scores_LC * &*factor).to_kind(scores_LC.kind())
            }
        })
    }
}

/// Returns `cap · tanh(scores / cap)`: nearly the scores where they are small, and never beyond ± `cap` (Gemma 2). Scores may have any
/// shape and type, which stay.
pub fn soft_capped(scores: &Tensor, cap: f64) -> Tensor {
    (scores / cap).tanh() * cap
}

/// The highest score so far, and its entry.
struct Best {
    score_L: Tensor,
    entry_L: Tensor,
}

impl Best {
    fn new(hidden_LD: &Tensor) -> Best {
        let full = |value: f64, kind| Tensor::full([hidden_LD.size()[0]], value, (kind, hidden_LD.device()));
        Best { score_L: full(f64::NEG_INFINITY, Kind::Float), entry_L: full(-1.0, Kind::Int64) }
    }

    fn add(&mut self, scores_LC: &Tensor, chunk: &Range<i64>) {
        let (greatest_L, at_L) = scores_LC.max_dim(1, false);
        let greatest_L = greatest_L.to_kind(Kind::Float);
        let is_more_L = greatest_L.gt_tensor(&self.score_L);
        self.entry_L = (at_L + chunk.start).where_self(&is_more_L, &self.entry_L);
        self.score_L = greatest_L.where_self(&is_more_L, &self.score_L);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use tch::{Device, Kind, Tensor};

    use super::LinearCrossEntropy;
    use crate::model::objective::Smoothing;
    use crate::native::grad;
    use crate::params::{Init, ParamSpec, ParamStore};
    use crate::tape::{Execution, Tape};

    /// Returns the loss, gradient of the hidden states, of the head and of its bias.
    fn fused(
        hidden: &Tensor,
        head: &Tensor,
        bias: &Tensor,
        labels: &Tensor,
        change: impl FnOnce(&mut LinearCrossEntropy),
    ) -> (f64, [Tensor; 3]) {
        let specs = [("head", head), ("bias", bias)].map(|(name, x)| ParamSpec::new(name, &x.size(), Init::Zeros));
        let params = Rc::new(ParamStore::new(specs.into(), head.kind(), Device::Cpu));
        let ids = ["head", "bias"].map(|name| params.id(name));
        ids.iter().zip([head, bias]).for_each(|(id, x)| params.set(*id, x));
        let bias = Some(params.get("bias"));
        let mut loss = LinearCrossEntropy::new(params.get("head"), bias, labels.shallow_clone(), 0.25);
        change(&mut loss);
        let mut tape = Tape::new();
        let x = tape.input(true);
        let y = tape.custom("loss", &ids, &[x], 1, Box::new(loss))[0];
        let mut execution = Execution::new(Rc::new(tape), params.clone(), vec![(x, hidden.detach())]);
        execution.forward().unwrap();
        execution.seed(y, Tensor::from(2.0));
        let mut grads = params.new_grad();
        execution.backward(Some(&mut grads)).unwrap();
        let of_hidden = execution.input_grad(x).unwrap();
        let [of_head, of_bias] = ids.map(|id| grads.view(id).copy());
        (execution.value(y).double_value(&[]), [of_hidden, of_head, of_bias])
    }

    fn no_bias(entries: i64) -> Tensor {
        Tensor::zeros([entries], (Kind::Float, Device::Cpu))
    }

    #[test]
    fn chunks_equal_the_plain_loss_and_its_gradients() {
        tch::manual_seed(1);
        let random = |shape: [i64; 2]| Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
        let (hidden, head, bias) = (random([7, 5]), random([11, 5]), random([1, 11]).squeeze_dim(0));
        let labels = Tensor::from_slice(&[0i64, 10, 3, 3, 7, 1, 2]);
        // Scores of bfloat16 are rounded to its three digits.
        for (kind, tolerance) in [(Kind::Float, 1e-5), (Kind::BFloat16, 2e-2)] {
            let leaf = |x: &Tensor| x.to_kind(Kind::Float).set_requires_grad(true);
            let (x, w, b) = (leaf(&hidden), leaf(&head), leaf(&bias));
            let capped = |scores: Tensor, cap: Option<f64>| match cap {
                Some(cap) => (scores / cap).tanh() * cap,
                None => scores,
            };
            for (soft_cap, share) in [(None, 0.0), (Some(1.5), 0.0), (None, 0.2), (Some(1.5), 0.7)] {
                let divisor = (share > 0.0).then_some(3.0);
                let scores = capped(x.linear(&w, Some(&b)) / divisor.unwrap_or(1.0), soft_cap);
                let plain = scores.cross_entropy_loss::<Tensor>(&labels, None, tch::Reduction::Sum, -100, share) * 0.25;
                let expected = grad(&[&plain], &[&Tensor::from(2f32)], &[&x, &w, &b]).unwrap();
                for (chunk, kept_bytes) in [(1, 0), (3, usize::MAX), (3, 100), (11, 0), (100, 1 << 20)] {
                    let change = |loss: &mut LinearCrossEntropy| {
                        (loss.chunk, loss.kept_bytes) = (chunk, kept_bytes);
                        (loss.divisor, loss.soft_cap) = (divisor, soft_cap);
                        loss.smoothing = Smoothing::new(share, 11);
                    };
                    let [hidden, head, bias] = [&hidden, &head, &bias].map(|x| x.to_kind(kind));
                    let (loss, found) = fused(&hidden, &head, &bias, &labels, change);
                    assert!((loss / plain.double_value(&[]) - 1.0).abs() < tolerance, "{kind:?}, chunks of {chunk}");
                    for (found, expected) in found.iter().zip(&expected) {
                        let found = found.to_kind(Kind::Float);
                        assert!(found.allclose(expected.as_ref().unwrap(), tolerance, tolerance, false), "{kind:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn each_target_has_its_loss_and_the_best_entry_whatever_the_chunks() {
        tch::manual_seed(3);
        let random = |shape: [i64; 2]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let (hidden, head, bias) = (random([9, 5]), random([11, 5]), random([1, 11]).squeeze_dim(0));
        let scores = hidden.linear(&head, Some(&bias));
        let best = scores.argmax(-1, false);
        // The first five are correct.
        let labels = Tensor::cat(&[best.narrow(0, 0, 5), (best.narrow(0, 5, 4) + 1).remainder(11)], 0);
        let expected = scores.cross_entropy_loss::<Tensor>(&labels, None, tch::Reduction::None, -100, 0.0);
        for chunk in [1, 3, 11, 100] {
            let mut loss =
                LinearCrossEntropy::new(head.shallow_clone(), Some(bias.shallow_clone()), labels.shallow_clone(), 1.0);
            loss.chunk = chunk;
            let (losses, predicted) = loss.of_each(&hidden);
            assert!(losses.allclose(&expected, 1e-5, 1e-6, false), "chunks of {chunk}");
            let correct: Vec<bool> = predicted.eq_tensor(&labels).try_into().unwrap();
            assert_eq!(correct, (0..9).map(|at| at < 5).collect::<Vec<_>>(), "chunks of {chunk}");
        }
        // Of equal scores the first entry is taken, as `argmax` does.
        let loss = |label: i64| {
            let head = Tensor::ones([6, 2], (Kind::Float, Device::Cpu));
            let mut loss = LinearCrossEntropy::new(head, None, Tensor::from_slice(&[label]), 1.0);
            loss.chunk = 2;
            loss.of_each(&Tensor::ones([1, 2], (Kind::Float, Device::Cpu))).1.int64_value(&[0]) == label
        };
        assert!(loss(0) && !loss(1) && !loss(4));
    }

    #[test]
    fn scores_far_apart_stay_finite() {
        let head = Tensor::from_slice(&[1f32, -1.0, 0.0, 2.0]).view([4, 1]);
        let labels = Tensor::from_slice(&[3i64, 1]);
        let hidden = Tensor::from_slice(&[900f32, 400.0]).view([2, 1]);
        let change = |loss: &mut LinearCrossEntropy| loss.chunk = 2;
        let (loss, [of_hidden, of_head, _]) = fused(&hidden, &head, &no_bias(4), &labels, change);
        assert!((loss - 0.25 * 1200.0).abs() < 1e-3, "{loss}");
        assert!(of_hidden.allclose(&Tensor::from_slice(&[0f32, 1.5]).view([2, 1]), 1e-5, 1e-5, false));
        assert!(of_head.allclose(&Tensor::from_slice(&[0f32, -200.0, 0.0, 200.0]).view([4, 1]), 1e-5, 1e-5, false));
    }

    #[test]
    fn no_targets_is_no_loss() {
        let head = Tensor::ones([11, 5], (Kind::Float, Device::Cpu));
        let hidden = Tensor::zeros([0, 5], (Kind::Float, Device::Cpu));
        let (loss, [of_hidden, of_head, _]) =
            fused(&hidden, &head, &no_bias(11), &Tensor::from_slice::<i64>(&[]), |_| ());
        assert_eq!((loss, of_hidden.size(), of_head.abs().max().double_value(&[])), (0.0, vec![0, 5], 0.0));
    }
}
