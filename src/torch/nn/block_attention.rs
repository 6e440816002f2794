//! Attention over packed documents whose tokens see blocks ([`super::Mask::Prefix`]): each segment of queries meets the keys
//! up to its end, or those of them that its window has, so that few scores are computed that the mask would hide.
//!
//! Shapes: T tokens, H query heads, K key and value heads, C width of a head's queries and keys, V of its values, B segments
//! of one shape, L queries of each, S keys.

use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor};

use super::attend::{Scores, attend, take_rows};
use super::mask::{Segment, WindowCut, segments};
use crate::device::upload;

/// Describes how the segments of one packed row are batched.
pub(super) struct BlockAttention {
    batches: Vec<SegmentBatch>,
    /// The row of each token in the batches; `None` where the batches are the row itself.
    rows: Option<Tensor>,
}

/// Segments with as many queries and keys as each other.
struct SegmentBatch {
    num: i64,
    queries: Rows,
    keys: Rows,
    /// `[1, 1, L, S]`, bool: true where a query sees a key; `None`: the operator's own mask is enough.
    seen: Option<Tensor>,
    causal: bool,
}

/// Rows of a tensor of tokens.
enum Rows {
    Range(i64, i64),
    Index(Tensor),
}

impl Rows {
    fn new(rows: &[i64], device: Device) -> Rows {
        match rows.windows(2).all(|two| two[1] == two[0] + 1) {
            true => Rows::Range(rows[0], rows.len() as i64),
            false => Rows::Index(upload(&Tensor::from_slice(rows), device)),
        }
    }

    /// Maps `x` `[T, heads, width]` to `[num, rows, heads, width]`.
    fn take(&self, x: &Tensor, num: i64) -> Tensor {
        let size = x.size();
        let taken = match self {
            Rows::Range(start, len) => x.narrow(0, *start, *len),
            Rows::Index(index) => take_rows(&x.flatten(1, 2), index).view([-1, size[1], size[2]]),
        };
        taken.unflatten(0, [num, -1])
    }
}

impl BlockAttention {
    /// Blocks begin where `begins` `[T]` says; documents end at `cu_seqlens` `[0, …, T]`. With a `window` a token sees nothing
    /// that is so many tokens or more before it, but for its own block where that is spared; what the blocks let it see behind
    /// itself stays.
    pub fn new(cu_seqlens: &[usize], begins: &[bool], window: Option<WindowCut>, device: Device) -> BlockAttention {
        assert_eq!(cu_seqlens.last().copied().unwrap_or(0), begins.len(), "a mask for the tokens of the row");
        // By keys before the first query, queries and whether these are causal: the rows where their keys begin.
        let mut by_shape = BTreeMap::<(usize, usize, bool), Vec<usize>>::new();
        for Segment { document, queries, causal } in segments(cu_seqlens, begins) {
            let before = window.map_or(queries.start, |window| queries.start.min(window.len - 1));
            let shape = (before, queries.len(), causal);
            by_shape.entry(shape).or_default().push(document + queries.start - before);
        }
        let (mut batches, mut order) = (Vec::new(), Vec::<i64>::new());
        for ((before, len, causal), starts) in by_shape {
            let rows = |from: usize| starts.iter().flat_map(move |at| at + from..at + before + len).map(|at| at as i64);
            let (queries, keys): (Vec<i64>, Vec<i64>) = (rows(before).collect(), rows(0).collect());
            // The last query has the most keys before itself. Neighboring blocks of one token are no block.
            let spares = |window: &WindowCut| window.spares_block && !causal;
            let window = window.filter(|window| before + len > window.len && !(spares(window) && before == 0));
            let mask = || {
                let shape = [1, 1, len as i64, (before + len) as i64];
                let all = Tensor::ones(shape, (Kind::Bool, device));
                let seen = if causal { all.tril(before as i64) } else { all };
                let Some(window) = window else { return seen };
                let near = seen.triu(before as i64 - window.len as i64 + 1);
                if spares(&window) {
                    let _ = near.narrow(3, before as i64, len as i64).fill_(1);
                }
                near
            };
            let cuts = causal && before > 0 && len > 1;
            batches.push(SegmentBatch {
                num: starts.len() as i64,
                queries: Rows::new(&queries, device),
                keys: Rows::new(&keys, device),
                seen: (cuts || window.is_some()).then(mask),
                causal: causal && before == 0 && window.is_none(),
            });
            order.extend(queries);
        }
        let mut rows = vec![0i64; order.len()];
        (0..).zip(&order).for_each(|(row, token)| rows[*token as usize] = row);
        let in_order = rows.is_sorted();
        BlockAttention { batches, rows: (!in_order).then(|| upload(&Tensor::from_slice(&rows), device)) }
    }

    /// Maps `q_THC`, `k_TKC`, `v_TKV` to `[T, H·V]`.
    pub fn forward(&self, [q_THC, k_TKC, v_TKV]: [&Tensor; 3], scores: Scores) -> Tensor {
        let of_batch = |batch: &SegmentBatch| {
            let SegmentBatch { num, queries, keys, seen, causal } = batch;
            let (q, k, v) = (queries.take(q_THC, *num), keys.take(k_TKC, *num), keys.take(v_TKV, *num));
            attend(&q, &k, &v, seen.as_ref(), *causal, scores).flatten(0, 1)
        };
        let outputs: Vec<Tensor> = self.batches.iter().map(of_batch).collect();
        if outputs.is_empty() {
            return v_TKV.new_zeros([0, q_THC.size()[1] * v_TKV.size()[2]], (v_TKV.kind(), v_TKV.device()));
        }
        let y = Tensor::cat(&outputs, 0);
        match &self.rows {
            Some(rows) => take_rows(&y, rows),
            None => y,
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use crate::native::grad;
    use crate::nn::window::attend_window;
    use crate::nn::{Mask, PackedAttention, Scores};

    /// Returns the mask that openpi's `make_att_2d_masks` defines, for the whole row: `[T, T]`, true where a query sees a key.
    fn seen(cu_seqlens: &[usize], begins: &[bool]) -> Tensor {
        let ends =
            Tensor::from_slice(&begins.iter().map(|begin| i64::from(*begin)).collect::<Vec<_>>()).cumsum(0, None);
        let document = cu_seqlens.windows(2).zip(0i64..).flat_map(|(ends, at)| (ends[0]..ends[1]).map(move |_| at));
        let document = Tensor::from_slice(&document.collect::<Vec<i64>>());
        let earlier = ends.unsqueeze(0).le_tensor(&ends.unsqueeze(1));
        earlier.logical_and(&document.unsqueeze(0).eq_tensor(&document.unsqueeze(1)))
    }

    fn check(cu_seqlens: &[usize], begins: &[bool], kv_heads: i64, values: i64, soft_cap: Option<f64>) {
        // Windows that every document fits, that some do, and that none does.
        for window in [None, Some(100_000), Some(8), Some(3), Some(1)] {
            for mask in [Mask::Prefix(begins.to_vec()), Mask::Runs(begins.to_vec())] {
                check_windowed(cu_seqlens, (begins, mask), (kv_heads, values), soft_cap, window);
            }
        }
    }

    fn check_windowed(
        cu_seqlens: &[usize],
        (begins, mask): (&[bool], Mask),
        (kv_heads, values): (i64, i64),
        soft_cap: Option<f64>,
        window: Option<i64>,
    ) {
        let tokens = begins.len() as i64;
        let random = |heads: i64, width: i64| {
            Tensor::randn([tokens, heads, width], (Kind::Float, Device::Cpu)).set_requires_grad(true)
        };
        let (q, k, v) = (random(4, 6), random(kv_heads, 6), random(kv_heads, values));
        let wide = |x: &Tensor| x.repeat_interleave_self_int(4 / kv_heads, 1, None);
        let scores = Tensor::einsum("qhc,shc->hqs", &[&q, &wide(&k)], None::<&[i64]>) * 0.3;
        let scores = soft_cap.map_or(scores.shallow_clone(), |cap| (scores / cap).tanh() * cap);
        let at = Tensor::arange(tokens, (Kind::Int64, Device::Cpu));
        let distance = at.unsqueeze(1) - at.unsqueeze(0);
        let near = window.map_or(distance.ones_like().to_kind(Kind::Bool), |window| distance.lt(window));
        // Each sees the other: they are of one block.
        let both = seen(cu_seqlens, begins).logical_and(&seen(cu_seqlens, begins).transpose(0, 1));
        let near = if matches!(mask, Mask::Prefix(_)) { near.logical_or(&both) } else { near };
        let hidden = seen(cu_seqlens, begins).logical_and(&near).logical_not();
        let weights = scores.masked_fill(&hidden, f64::NEG_INFINITY).softmax(-1, Kind::Float);
        let expected = Tensor::einsum("hqs,shc->qhc", &[&weights, &wide(&v)], None::<&[i64]>).flatten(1, 2);
        let documents = PackedAttention::new(cu_seqlens, mask.clone(), Device::Cpu);
        let scores = Scores { scale: Some(0.3), soft_cap };
        let found = match window {
            Some(window) => attend_window(&documents, [&q, &k, &v], window, scores, None),
            None => documents.forward_with(&q, &k, &v, scores),
        };
        let seed = Tensor::randn(found.size(), (Kind::Float, Device::Cpu));
        let with_grads = |y: &Tensor| {
            let grads = grad(&[y], &[&seed], &[&q, &k, &v]).unwrap().into_iter().flatten();
            std::iter::once(y.detach()).chain(grads).collect::<Vec<_>>()
        };
        let (found, expected) = (with_grads(&found), with_grads(&expected));
        assert_eq!(found.len(), 4);
        for (found, expected) in found.iter().zip(&expected) {
            assert!(found.allclose(expected, 1e-4, 1e-5, false), "{cu_seqlens:?} {mask:?} {window:?}");
        }
    }

    /// Blocks of every length, by chance; documents of one token and of none.
    #[test]
    fn blocks_equal_the_dense_mask() {
        tch::manual_seed(6);
        for case in 0..12 {
            let lens = Vec::<i64>::try_from(Tensor::randint(9, [5], (Kind::Int64, Device::Cpu))).unwrap();
            let mut cu_seqlens = vec![0usize];
            lens.iter().for_each(|len| cu_seqlens.push(cu_seqlens[cu_seqlens.len() - 1] + *len as usize));
            let tokens = *cu_seqlens.last().unwrap() as i64;
            let begins = Tensor::rand([tokens], (Kind::Float, Device::Cpu)).lt(f64::from(case % 4) * 0.3 + 0.1);
            let begins = Vec::<bool>::try_from(begins).unwrap();
            let (kv_heads, values) = [(4, 6), (2, 5), (1, 8)][case as usize % 3];
            check(&cu_seqlens, &begins, kv_heads, values, (case % 2 == 1).then_some(0.4));
        }
    }

    #[test]
    fn prefixes_of_like_documents_are_one_batch() {
        tch::manual_seed(7);
        let ends = [0, 20, 40, 52];
        let Mask::Prefix(begins) = Mask::prefixes(&ends, &[8, 8, 12]) else { unreachable!("prefixes") };
        check(&ends, &begins, 2, 6, None);
        // Longer than the mask of one causal segment.
        let Mask::Prefix(begins) = Mask::prefixes(&[0, 1100], &[30]) else { unreachable!("prefixes") };
        check(&[0, 1100], &begins, 1, 6, None);
        // No prefixes are causal, whole ones are full.
        let random = |heads: i64| Tensor::randn([52, heads, 6], (Kind::Float, Device::Cpu));
        let (q, k, v) = (random(4), random(2), random(2));
        for (lens, mask) in [([0, 0, 0], Mask::Causal), ([20, 20, 12], Mask::Full)] {
            let [found, expected] = [Mask::prefixes(&ends, &lens), mask]
                .map(|mask| PackedAttention::new(&ends, mask, Device::Cpu).forward(&q, &k, &v));
            assert!(found.allclose(&expected, 1e-5, 1e-6, false));
        }
    }
}
