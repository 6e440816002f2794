//! Attention over packed sequences: each document attends to itself only, and nothing is padded in the packed row.
//!
//! Documents of like length are computed together, as one batch of the fused operator: one call for each document
//! costs more than its arithmetic where documents are short. A causal batch may be padded at its end, since no real
//! token attends to what comes after it.
//!
//! Shapes: T tokens, H query heads, K key and value heads, C width of a head, B documents of a batch, L its length.

use tch::{Device, Tensor};

/// A causal batch's longest document is at most this much longer than its shortest: `shortest * 5 / 4 + 4`.
fn longest_beside(shortest: usize) -> usize {
    shortest * 5 / 4 + 4
}

struct Batch {
    num_docs: i64,
    len: i64,
}

/// How the documents of one packed row are batched; made once a micro-batch, for all layers.
pub struct PackedAttention {
    causal: bool,
    batches: Vec<Batch>,
    /// `None` where the batches are the row itself, one after the other.
    order: Option<Order>,
}

struct Order {
    /// For each row of the batches, its token.
    tokens: Tensor,
    /// For each token, its row in the batches.
    rows: Tensor,
}

impl PackedAttention {
    /// Documents end at `cu_seqlens` `[0, …, T]`. `causal` is for text; otherwise every token of a document attends
    /// to all of it, as patches of a picture do.
    pub fn new(cu_seqlens: &[usize], causal: bool, device: Device) -> PackedAttention {
        let mut docs: Vec<(usize, usize)> = cu_seqlens.windows(2).map(|ends| (ends[1] - ends[0], ends[0])).collect();
        docs.retain(|(len, _)| *len > 0);
        docs.sort_unstable();
        let (mut batches, mut tokens) = (Vec::new(), Vec::new());
        let mut rows = vec![0i64; cu_seqlens.last().copied().unwrap_or(0)];
        let mut rest = docs.as_slice();
        while let Some(&(shortest, _)) = rest.first() {
            let limit = if causal { longest_beside(shortest) } else { shortest };
            let (batch, others) = rest.split_at(rest.partition_point(|(len, _)| *len <= limit));
            let len = batch[batch.len() - 1].0;
            for &(doc_len, start) in batch {
                // Padding repeats the last token; what it gives is never read and its gradient is zero.
                for at in 0..len {
                    let token = start + at.min(doc_len - 1);
                    if at < doc_len {
                        rows[token] = tokens.len() as i64;
                    }
                    tokens.push(token as i64);
                }
            }
            batches.push(Batch { num_docs: batch.len() as i64, len: len as i64 });
            rest = others;
        }
        let in_order = tokens.iter().enumerate().all(|(row, token)| row as i64 == *token);
        let index = |values: &[i64]| Tensor::from_slice(values).to_device(device);
        let order = (!in_order).then(|| Order { tokens: index(&tokens), rows: index(&rows) });
        PackedAttention { causal, batches, order }
    }

    /// `q_THC`, `k_TKC`, `v_TKC` with H a multiple of K (grouped queries); returns `[T, H·C]`.
    pub fn forward(&self, q_THC: &Tensor, k_TKC: &Tensor, v_TKC: &Tensor) -> Tensor {
        let (q, k, v) = (self.batched(q_THC), self.batched(k_TKC), self.batched(v_TKC));
        let grouped = q_THC.size()[1] != k_TKC.size()[1];
        let mut start = 0;
        let mut outputs = Vec::with_capacity(self.batches.len());
        for batch in &self.batches {
            let heads = |x: &Tensor| {
                let size = x.size();
                let rows = x.narrow(0, start, batch.num_docs * batch.len);
                rows.view([batch.num_docs, batch.len, size[1], size[2]]).transpose(1, 2)
            };
            let (q, k, v) = (heads(&q), heads(&k), heads(&v));
            let y = Tensor::scaled_dot_product_attention(&q, &k, &v, None::<Tensor>, 0.0, self.causal, None, grouped);
            outputs.push(y.transpose(1, 2).flatten(2, 3).flatten(0, 1));
            start += batch.num_docs * batch.len;
        }
        let y = match outputs.len() {
            0 => q.flatten(1, 2),
            1 => outputs.remove(0),
            _ => Tensor::cat(&outputs, 0),
        };
        match &self.order {
            Some(order) => take_rows(&y, &order.rows),
            None => y,
        }
    }

    fn batched(&self, x: &Tensor) -> Tensor {
        match &self.order {
            Some(order) => {
                let size = x.size();
                take_rows(&x.flatten(1, 2), &order.tokens).view([-1, size[1], size[2]])
            }
            None => x.contiguous(),
        }
    }
}

/// `x[index]`. An embedding look-up computes the same as `index_select`, and its backward on a CPU is many times
/// faster: it adds rows, where `index_add` sets up an operator for each.
fn take_rows(x: &Tensor, index: &Tensor) -> Tensor {
    if x.device() == Device::Cpu { Tensor::embedding(x, index, -1, false, false) } else { x.index_select(0, index) }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::PackedAttention;
    use crate::native::grad;

    /// One document at a time, from the definition.
    fn reference(q: &Tensor, k: &Tensor, v: &Tensor, cu_seqlens: &[usize], causal: bool) -> Tensor {
        let heads = |x: &Tensor, start: i64, len: i64| x.narrow(0, start, len).transpose(0, 1);
        let docs = cu_seqlens.windows(2).map(|ends| {
            let (start, len) = (ends[0] as i64, (ends[1] - ends[0]) as i64);
            let (q, groups) = (heads(q, start, len), q.size()[1] / k.size()[1]);
            let wide = |x: &Tensor| heads(x, start, len).repeat_interleave_self_int(groups, 0, None);
            let mut scores = q.matmul(&wide(k).transpose(1, 2)) / (q.size()[2] as f64).sqrt();
            if causal {
                let later = Tensor::ones([len, len], (Kind::Bool, Device::Cpu)).triu(1);
                scores = scores.masked_fill(&later, f64::NEG_INFINITY);
            }
            scores.softmax(-1, Kind::Float).matmul(&wide(v)).transpose(0, 1).flatten(1, 2)
        });
        Tensor::cat(&docs.collect::<Vec<_>>(), 0)
    }

    fn check(cu_seqlens: &[usize], causal: bool, kv_heads: i64) {
        tch::manual_seed(5);
        let tokens = *cu_seqlens.last().unwrap() as i64;
        let random = |heads: i64| Tensor::randn([tokens, heads, 8], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let (q, k, v) = (random(4), random(kv_heads), random(kv_heads));
        let expected = reference(&q, &k, &v, cu_seqlens, causal);
        let found = PackedAttention::new(cu_seqlens, causal, Device::Cpu).forward(&q, &k, &v);
        let seed = Tensor::randn([tokens, 32], (Kind::Float, Device::Cpu));
        let gradients = |y: &Tensor| grad(&[y], &[&seed], &[&q, &k, &v]).unwrap().into_iter().flatten();
        assert!(found.allclose(&expected, 1e-4, 1e-5, false));
        for (found, expected) in gradients(&found).zip(gradients(&expected)) {
            assert!(found.allclose(&expected, 1e-4, 1e-5, false));
        }
    }

    #[test]
    fn documents_of_any_length_equal_the_definition() {
        for causal in [true, false] {
            check(&[0, 7], causal, 4);
            check(&[0, 5, 10, 15], causal, 2);
            check(&[0, 1, 31, 33, 62, 90, 93], causal, 1);
            check(&[0, 12, 12, 40], causal, 2);
        }
    }
}
