//! Causal attention with a window: a token sees itself and a number of tokens before it. Queries go in chunks, which have
//! the keys of their windows alone: time and memory grow with the document, not with its square.
//!
//! Shapes: T tokens, H query heads, K key and value heads, C width of a head.

use tch::{Kind, Tensor};

use super::attend::{Scores, attend_sinking};
use super::attention::PackedAttention;

/// Queries of a chunk are at least so many.
pub(super) const MIN_CHUNK: i64 = 256;

/// Works like [`PackedAttention::forward_with`] of causal `documents`, where a token sees `window` tokens, the last of them
/// itself; and a key without a value whose score is the head's of `sinks_H`, where they are given. Documents may have a mask of
/// blocks, which the window cuts as the mask says. Panics where sinks meet one. Shapes as there; `sinks_H` is `[H]`.
pub fn attend_window(
    documents: &PackedAttention,
    [q_THC, k_TKC, v_TKC]: [&Tensor; 3],
    window: i64,
    scores: Scores,
    sinks_H: Option<&Tensor>,
) -> Tensor {
    if documents.batches().iter().all(|batch| batch.longest <= window) {
        return documents.forward_sinking([q_THC, k_TKC, v_TKC], scores, sinks_H);
    }
    if let Some(y) = documents.forward_windowed([q_THC, k_TKC, v_TKC], window, scores) {
        assert!(sinks_H.is_none(), "sinks beside a mask of blocks");
        return y;
    }
    if let Some(y) = sinks_H.is_none().then(|| documents.flash([q_THC, k_TKC, v_TKC], Some(window), scores)).flatten() {
        return y;
    }
    let (q, k, v) = (documents.split(q_THC), documents.split(k_TKC), documents.split(v_TKC));
    let batches = q.iter().zip(&k).zip(&v).map(|((q, k), v)| {
        let len = q.size()[1];
        let chunk = |first: i64| {
            let queries = window.max(MIN_CHUNK).min(len - first);
            let before = first.min(window - 1);
            let keys = |x: &Tensor| x.narrow(1, first - before, before + queries);
            let seen = Tensor::ones([queries, before + queries], (Kind::Bool, q.device()));
            let mask = seen.tril(before).triu(before - window + 1).unsqueeze(0).unsqueeze(0);
            attend_sinking(&q.narrow(1, first, queries), &keys(k), &keys(v), Some(&mask), false, scores, sinks_H)
        };
        let chunks: Vec<Tensor> = (0..len).step_by(window.max(MIN_CHUNK) as usize).map(chunk).collect();
        Tensor::cat(&chunks, 1)
    });
    documents.join(batches.collect())
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::attend_window;
    use crate::native::grad;
    use crate::nn::{Mask, PackedAttention, Scores};

    /// Documents shorter than the window, longer, and of several chunks.
    #[test]
    fn a_token_sees_the_last_of_its_document() {
        tch::manual_seed(4);
        let ends = [0usize, 3, 20, 720];
        let random = |heads: i64| Tensor::randn([720, heads, 6], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let (q, k, v) = (random(4), random(2), random(2));
        let documents = PackedAttention::new(&ends, Mask::Causal, Device::Cpu);
        let seed = Tensor::randn([720, 24], (Kind::Float, Device::Cpu));
        let sinks = Tensor::randn([4], (Kind::Float, Device::Cpu));
        let cases = [(1, None), (8, Some(0.7)), (300, None), (300, Some(0.7)), (1000, None), (8, None)];
        for (case, (window, soft_cap)) in cases.into_iter().enumerate() {
            let scores = Scores { soft_cap, ..Scores::default() };
            // The last two with sinks: documents within the window, and longer ones.
            let sinks = (case >= 4).then_some(&sinks);
            let found = attend_window(&documents, [&q, &k, &v], window, scores, sinks);
            let parts = ends.windows(2).map(|ends| {
                let (start, len) = (ends[0] as i64, (ends[1] - ends[0]) as i64);
                let part = |x: &Tensor| x.narrow(0, start, len);
                let wide = |x: &Tensor| part(x).repeat_interleave_self_int(2, 1, None);
                let scores = Tensor::einsum("qhc,shc->hqs", &[&part(&q), &wide(&k)], None::<&[i64]>) / 6f64.sqrt();
                let scores = soft_cap.map_or(scores.shallow_clone(), |cap| (scores / cap).tanh() * cap);
                let at = Tensor::arange(len, (Kind::Int64, Device::Cpu));
                let distance = at.unsqueeze(1) - at.unsqueeze(0);
                let hidden = distance.lt(0).logical_or(&distance.ge(window));
                let scores = scores.masked_fill(&hidden, f64::NEG_INFINITY);
                let scores = match sinks {
                    Some(sinks) => Tensor::cat(&[scores, sinks.view([4, 1, 1]).expand([4, len, 1], false)], -1),
                    None => scores,
                };
                let weights = scores.softmax(-1, Kind::Float).narrow(-1, 0, len);
                Tensor::einsum("hqs,shc->qhc", &[&weights, &wide(&v)], None::<&[i64]>).flatten(1, 2)
            });
            let expected = Tensor::cat(&parts.collect::<Vec<_>>(), 0);
            assert!(found.allclose(&expected, 1e-4, 1e-5, false), "window {window}");
            let gradients = |y: &Tensor| grad(&[y], &[&seed], &[&q, &k, &v]).unwrap().into_iter().flatten();
            for (found, expected) in gradients(&found).zip(gradients(&expected)) {
                assert!(found.allclose(&expected, 1e-4, 1e-5, false), "window {window}");
            }
        }
    }
}
