//! Attention of some queries to some keys, with what is needed to join it with that to other keys: the logarithm of the
//! sum of exponentials of each query (Milakov and Gimelshein 2018; Dao et al. 2022).
//!
//! Shapes: B documents, L queries of each, S keys, H heads of queries, K of keys, G = H / K, C width of queries and keys,
//! V of values.

use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor};

use super::split::Block;
use crate::device::upload;

/// Blocks of one size, computed at once.
pub(super) struct Batch {
    queries: Rows,
    keys: Rows,
    num_documents: i64,
    causal: bool,
}

enum Rows {
    Range(i64, i64),
    Index(Tensor),
}

impl Rows {
    fn new(ranges: &[(usize, usize)], device: Device) -> Rows {
        match ranges {
            [(start, end)] => Rows::Range(*start as i64, (end - start) as i64),
            _ => {
                let rows: Vec<i64> = ranges.iter().flat_map(|&(start, end)| start as i64..end as i64).collect();
                Rows::Index(upload(&Tensor::from_slice(&rows), device))
            }
        }
    }

    fn take(&self, x: &Tensor) -> Tensor {
        match self {
            Rows::Range(start, len) => x.narrow(0, *start, *len),
            Rows::Index(rows) => x.index_select(0, rows),
        }
    }

    fn put(&self, x: &Tensor, values: &Tensor) {
        match self {
            Rows::Range(start, len) => x.narrow(0, *start, *len).copy_(values),
            Rows::Index(rows) => {
                let _ = x.shallow_clone().index_copy_(0, rows, values);
            }
        }
    }

    fn add(&self, x: &Tensor, values: &Tensor) {
        match self {
            Rows::Range(start, len) => {
                let _ = x.narrow(0, *start, *len).g_add_(values);
            }
            Rows::Index(rows) => {
                let _ = x.shallow_clone().index_add_(0, rows, &values.to_kind(x.kind()));
            }
        }
    }
}

/// Returns the blocks by their sizes.
pub(super) fn batches(blocks: &[Block], device: Device) -> Vec<Batch> {
    let mut by_size: BTreeMap<(usize, usize, bool), Vec<&Block>> = BTreeMap::new();
    for block in blocks {
        by_size.entry((block.queries.len(), block.keys.len(), block.causal)).or_default().push(block);
    }
    let batch = |((_, _, causal), blocks): (_, Vec<&Block>)| {
        let queries: Vec<_> = blocks.iter().map(|block| (block.queries.start, block.queries.end)).collect();
        let keys: Vec<_> = blocks.iter().map(|block| (block.keys.start, block.keys.end)).collect();
        Batch {
            queries: Rows::new(&queries, device),
            keys: Rows::new(&keys, device),
            num_documents: blocks.len() as i64,
            causal,
        }
    };
    by_size.into_iter().map(batch).collect()
}

/// The attention of queries to the keys so far: `y_THV` and `lse_TH`, in the kind in which sums are made.
pub(super) struct Sums {
    pub y_THV: Tensor,
    pub lse_TH: Tensor,
}

impl Sums {
    /// Makes the sums of queries that have seen nothing. `q_THC` is `[T, H, C]`; values have the width `values`.
    pub fn new(q_THC: &Tensor, values: i64) -> Sums {
        let (tokens, heads) = (q_THC.size()[0], q_THC.size()[1]);
        let options = (sum_kind(q_THC), q_THC.device());
        Sums {
            y_THV: Tensor::zeros([tokens, heads, values], options),
            lse_TH: Tensor::full([tokens, heads], f64::NEG_INFINITY, options),
        }
    }

    /// Lets queries see these keys, too. Queries are `[T, H, C]`, keys `[T, K, C]`, values `[T, K, V]`.
    pub fn see(&self, batch: &Batch, [q, k, v]: [&Tensor; 3], scale: f64) {
        let (y, lse) = forward(batch.documents([q, k, v]), batch.causal, scale);
        let (y, lse) = (y.flatten(0, 1).to_kind(self.y_THV.kind()), lse.flatten(0, 1).to_kind(self.lse_TH.kind()));
        let (former_y, former) = (batch.queries.take(&self.y_THV), batch.queries.take(&self.lse_TH));
        let all = former.logaddexp(&lse);
        let share = |lse: &Tensor| (lse - &all).exp().unsqueeze(-1);
        batch.queries.put(&self.y_THV, &(former_y * share(&former) + y * share(&lse)));
        batch.queries.put(&self.lse_TH, &all);
    }
}

/// Adds the gradients of one batch to `dq`, and those of its keys and values to `dk` and `dv`. `y` and `lse` are of all
/// keys that the queries see, here and elsewhere.
pub(super) fn add_gradients(
    batch: &Batch,
    [dq, dk, dv]: [&Tensor; 3],
    [q, k, v]: [&Tensor; 3],
    [dy, y, lse]: [&Tensor; 3],
    scale: f64,
) {
    let of_queries = [dy, y, lse].map(|x| batch.queries.take(x).unflatten(0, [batch.num_documents, -1]));
    let found = backward(batch.documents([q, k, v]), of_queries, batch.causal, scale);
    batch.queries.add(dq, &found[0].flatten(0, 1));
    batch.keys.add(dk, &found[1].flatten(0, 1));
    batch.keys.add(dv, &found[2].flatten(0, 1));
}

/// Returns the kind in which sums of `x` are computed: float64 where it is float64, else float32.
pub(super) fn sum_kind(x: &Tensor) -> Kind {
    if x.kind() == Kind::Double { Kind::Double } else { Kind::Float }
}

impl Batch {
    /// Returns the batch's queries `[B, L, H, C]`, keys `[B, S, K, C]` and values `[B, S, K, V]`, of those of all tokens.
    fn documents(&self, [q, k, v]: [&Tensor; 3]) -> [Tensor; 3] {
        let cut = |x: Tensor| x.unflatten(0, [self.num_documents, -1]);
        [cut(self.queries.take(q)), cut(self.keys.take(k)), cut(self.keys.take(v))]
    }
}

/// Describes how heads lie before the operator: `[B, heads, rows, width]`.
struct Heads {
    groups: i64,
    /// True if the G heads of queries that share keys are rows of one head, as without a mask; with one, keys are repeated.
    folded: bool,
    num_queries: i64,
    widths: [i64; 2],
}

impl Heads {
    fn new([q, k, v]: &[Tensor; 3], causal: bool) -> Heads {
        let groups = q.size()[2] / k.size()[2];
        Heads { groups, folded: groups > 1 && !causal, num_queries: q.size()[1], widths: [q.size()[3], v.size()[3]] }
    }

    /// The CPU's operator takes one width only.
    fn pad(&self, x: Tensor, device: Device) -> Tensor {
        let missing = self.widths[0].max(self.widths[1]) - x.size()[3];
        if missing > 0 && device == Device::Cpu { x.constant_pad_nd([0, missing]) } else { x }
    }

    /// Maps tensors of queries `[B, L, H, …]` to the operator's layout `[B, heads, rows, …]`.
    fn of_queries(&self, x: &Tensor) -> Tensor {
        let heads = x.transpose(1, 2);
        if self.folded { heads.unflatten(1, [-1, self.groups]).flatten(2, 3) } else { heads }
    }

    /// Maps tensors of keys `[B, S, K, …]` to the operator's layout `[B, heads, S, …]`.
    fn of_keys(&self, x: &Tensor) -> Tensor {
        let heads = x.transpose(1, 2);
        match self.groups > 1 && !self.folded {
            true => heads.repeat_interleave_self_int(self.groups, 1, None),
            false => heads,
        }
    }

    /// Maps rows back to `[B, L, H, …]`.
    fn to_queries(&self, x: &Tensor) -> Tensor {
        let heads = match self.folded {
            true => x.unflatten(2, [self.groups, self.num_queries]).flatten(1, 2),
            false => x.shallow_clone(),
        };
        heads.transpose(1, 2)
    }

    /// Returns the gradients back to `[B, S, K, …]`.
    fn to_keys(&self, x: &Tensor) -> Tensor {
        let heads = match self.groups > 1 && !self.folded {
            true => x.unflatten(1, [-1, self.groups]).sum_dim_intlist([2i64].as_slice(), false, sum_kind(x)),
            false => x.shallow_clone(),
        };
        heads.transpose(1, 2)
    }
}

/// Returns the outputs `[B, L, H, V]` and logarithms `[B, L, H]`.
fn forward(qkv: [Tensor; 3], causal: bool, scale: f64) -> (Tensor, Tensor) {
    let (heads, device) = (Heads::new(&qkv, causal), qkv[0].device());
    let [q, k, v] = &qkv;
    let (q, k, v) = (heads.of_queries(q), heads.of_keys(k), heads.of_keys(v));
    let (y, lse) = if device == Device::Cpu {
        let (q, k, v) = (heads.pad(q, device), heads.pad(k, device), heads.pad(v, device));
        Tensor::internal_scaled_dot_product_flash_attention_for_cpu(&q, &k, &v, 0.0, causal, None::<Tensor>, scale)
    } else {
        forward_in_chunks([&q, &k.contiguous(), &v.contiguous()], causal, scale, MAX_SCORES)
    };
    let y = y.narrow(-1, 0, heads.widths[1]);
    (heads.to_queries(&y), heads.to_queries(&lse))
}

/// Returns the gradients `[B, L, H, C]`, `[B, S, K, C]` and `[B, S, K, V]`.
fn backward(qkv: [Tensor; 3], [dy, y, lse]: [Tensor; 3], causal: bool, scale: f64) -> [Tensor; 3] {
    let (heads, device) = (Heads::new(&qkv, causal), qkv[0].device());
    let [q, k, v] = &qkv;
    let (q, k, v) = (heads.of_queries(q), heads.of_keys(k), heads.of_keys(v));
    let (dy, y, lse) = (heads.of_queries(&dy), heads.of_queries(&y), heads.of_queries(&lse));
    let (dq, dk, dv) = if device == Device::Cpu {
        let (q, k, v) = (heads.pad(q, device), heads.pad(k, device), heads.pad(v, device));
        // As its forward lays them out.
        let laid = |x: Tensor| x.transpose(1, 2).contiguous().transpose(1, 2);
        let (dy, y, lse) = (laid(heads.pad(dy, device)), laid(heads.pad(y, device)), laid(lse));
        Tensor::internal_scaled_dot_product_flash_attention_for_cpu_backward(
            &dy,
            &q,
            &k,
            &v,
            &y,
            &lse,
            0.0,
            causal,
            None::<Tensor>,
            scale,
        )
    } else {
        backward_in_chunks([&q, &k.contiguous(), &v.contiguous()], [&dy, &y, &lse], causal, scale, MAX_SCORES)
    };
    let [width, values] = heads.widths;
    let dq = heads.to_queries(&dq.narrow(-1, 0, width));
    [dq, heads.to_keys(&dk.narrow(-1, 0, width)), heads.to_keys(&dv.narrow(-1, 0, values))]
}

/// A GPU holds so many scores of all documents and heads at once, 256 MiB in float32: those of a whole block are more than its memory
/// where documents are long.
const MAX_SCORES: i64 = 1 << 26;

/// Returns the rows of queries `[B, heads, rows, C]` whose scores are held at once, as first and number, with the keys that they see, of
/// `[B, heads, S, C]`.
fn chunks(q: &Tensor, k: &Tensor, causal: bool, max_scores: i64) -> impl Iterator<Item = (i64, i64, i64)> + use<> {
    let (size, num_keys) = (q.size(), k.size()[2]);
    let rows = size[2];
    let most = (max_scores / (size[0] * size[1] * num_keys).max(1)).max(1);
    (0..rows).step_by(most as usize).map(move |first| {
        let len = most.min(rows - first);
        (first, len, if causal { num_keys.min(first + len) } else { num_keys })
    })
}

/// Returns the outputs `[B, heads, rows, V]` and logarithms `[B, heads, rows]`, by plain operators.
fn forward_in_chunks([q, k, v]: [&Tensor; 3], causal: bool, scale: f64, max_scores: i64) -> (Tensor, Tensor) {
    let chunk = |(first, len, num_keys)| {
        let [k, v] = [k, v].map(|x| x.narrow(2, 0, num_keys));
        let scores = scores(&q.narrow(2, first, len), &k, causal.then_some(first), scale);
        let lse = scores.logsumexp([-1i64].as_slice(), false);
        let weights = (scores - lse.unsqueeze(-1)).exp();
        (weights.to_kind(v.kind()).matmul(&v), lse)
    };
    let (y, lse): (Vec<Tensor>, Vec<Tensor>) = chunks(q, k, causal, max_scores).map(chunk).unzip();
    (Tensor::cat(&y, 2), Tensor::cat(&lse, 2))
}

/// Returns the gradients of `q`, `k` and `v`, those of keys and values in the kind of sums, by plain operators.
fn backward_in_chunks(
    [q, k, v]: [&Tensor; 3],
    [dy, y, lse]: [&Tensor; 3],
    causal: bool,
    scale: f64,
    max_scores: i64,
) -> (Tensor, Tensor, Tensor) {
    let sums = sum_kind(q);
    let [dk, dv] = [k, v].map(|x| Tensor::zeros(x.size(), (sums, x.device())));
    let chunk = |(first, len, num_keys)| {
        let [q, dy, y, lse] = [q, dy, y, lse].map(|x| x.narrow(2, first, len));
        let [k, v, dk, dv] = [k, v, &dk, &dv].map(|x| x.narrow(2, 0, num_keys));
        let weights = (scores(&q, &k, causal.then_some(first), scale) - lse.unsqueeze(-1)).exp();
        let share = (dy.to_kind(sums) * y.to_kind(sums)).sum_dim_intlist([-1i64].as_slice(), true, sums);
        let of_weights = dy.matmul(&v.transpose(-1, -2)).to_kind(sums);
        let of_scores = (&weights * (of_weights - share) * scale).to_kind(q.kind());
        let _ = dv.shallow_clone().g_add_(&weights.to_kind(dy.kind()).transpose(-1, -2).matmul(&dy));
        let _ = dk.shallow_clone().g_add_(&of_scores.transpose(-1, -2).matmul(&q));
        of_scores.matmul(&k)
    };
    let dq: Vec<Tensor> = chunks(q, k, causal, max_scores).map(chunk).collect();
    (Tensor::cat(&dq, 2), dk, dv)
}

/// Returns the scores `[B, heads, rows, S]`, in the kind of sums. Under a causal mask, `first` is the place of the first row's token
/// among those of the keys.
fn scores(q: &Tensor, k: &Tensor, first: Option<i64>, scale: f64) -> Tensor {
    let scores = q.matmul(&k.transpose(-1, -2)).to_kind(sum_kind(q)) * scale;
    let Some(first) = first else { return scores };
    let size = scores.size();
    let later = Tensor::ones([size[2], size[3]], (Kind::Bool, scores.device())).triu(first + 1);
    scores.masked_fill(&later, f64::NEG_INFINITY)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{backward, backward_in_chunks, forward, forward_in_chunks};

    /// Chunks of one row, of some and of all are compared with the CPU's operator.
    #[test]
    fn chunks_of_queries_give_what_all_at_once_give() {
        tch::manual_seed(3);
        let random = |rows: i64, heads: i64| Tensor::randn([2, rows, heads, 6], (Kind::Double, Device::Cpu));
        for (causal, rows, keys) in [(true, 7, 7), (false, 7, 5)] {
            let qkv = || {
                tch::manual_seed(4);
                [random(rows, 3), random(keys, 3), random(keys, 3)]
            };
            let (expected_y, expected_lse) = forward(qkv(), causal, 0.4);
            let dy = random(rows, 3);
            let of_queries = [&dy, &expected_y, &expected_lse].map(Tensor::shallow_clone);
            let expected = backward(qkv(), of_queries, causal, 0.4);
            let laid = |x: &Tensor| x.transpose(1, 2);
            let [q, k, v] = qkv().map(|x| laid(&x));
            for max_scores in [1, 2 * 3 * keys * 3, 1 << 20] {
                let (y, lse) = forward_in_chunks([&q, &k, &v], causal, 0.4, max_scores);
                let parts = [&dy, &expected_y, &expected_lse].map(laid);
                let (dq, dk, dv) = backward_in_chunks([&q, &k, &v], parts.each_ref(), causal, 0.4, max_scores);
                let found = [(&y, &expected_y), (&lse, &expected_lse)];
                let grads = [(&dq, &expected[0]), (&dk, &expected[1]), (&dv, &expected[2])];
                for (found, expected) in found.into_iter().chain(grads) {
                    assert!(laid(found).allclose(expected, 1e-9, 1e-11, false), "causal: {causal}, {max_scores}");
                }
            }
        }
    }
}
