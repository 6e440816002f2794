//! Attention from a packed row to another: the queries of a document attend to keys of their own, which lie anywhere in
//! a row of theirs. Nothing is padded in either row.
//!
//! Shapes: T queries and K keys of all documents, H heads, C width of a head, B documents of a batch, S keys of its longest.

use std::ops::Range;

use tch::{Device, Tensor};

use super::attend::{Scores, attend, take_rows};
use super::attention::PackedAttention;
use super::mask::Mask;
use crate::device::upload;

/// The keys of a document.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentKeys {
    pub rows: Range<i64>,
    /// One more key: its row, and what is added to its scores. A key that stands for n equal ones has ln n.
    pub extra: Option<(i64, f64)>,
}

/// Describes which queries meet which keys; made once a micro-batch, for all layers.
pub struct CrossAttention {
    /// Batches of documents with as many queries each.
    queries: PackedAttention,
    keys: Vec<KeyBatch>,
}

/// The keys of a batch of documents.
struct KeyBatch {
    /// `[B · S]`; `None`: all rows in their order.
    rows: Option<Tensor>,
    num_documents: i64,
    /// Added to scores, `[B, 1, 1, S]`, float32; `None`: nothing.
    bias: Option<Tensor>,
    /// True of documents without keys, `[B, 1, 1]`, bool; `None`: each has some.
    blind: Option<Tensor>,
}

impl CrossAttention {
    /// Documents' queries end at `cu_seqlens` `[0, …, T]`; `keys` are theirs, of `num_keys`. What a document without keys attends to are
    /// zeros. Panics where there are queries, but no keys at all.
    pub fn new(cu_seqlens: &[usize], keys: &[DocumentKeys], num_keys: i64, device: Device) -> CrossAttention {
        assert_eq!(cu_seqlens.len(), keys.len() + 1, "keys for each document");
        let queries = PackedAttention::new(cu_seqlens, Mask::Full, device);
        let batch = |documents: &[usize]| {
            let of: Vec<&DocumentKeys> = documents.iter().map(|number| &keys[*number]).collect();
            KeyBatch::new(&of, num_keys, device)
        };
        let keys = queries.batches().iter().map(|it| batch(&it.documents)).collect();
        CrossAttention { queries, keys }
    }

    /// Maps `q_THC`, `k_KHC` and `v_KHC` to `[T, H·C]`.
    pub fn forward(&self, q_THC: &Tensor, k_KHC: &Tensor, v_KHC: &Tensor) -> Tensor {
        if self.keys.is_empty() {
            return q_THC.flatten(1, 2);
        }
        let queries = self.queries.split(q_THC);
        let attended = queries.iter().zip(&self.keys).map(|(q_BLHC, keys)| {
            let (k, v) = (keys.take(k_KHC), keys.take(v_KHC));
            let y = attend(q_BLHC, &k, &v, keys.bias.as_ref(), false, Scores::default());
            keys.blind.as_ref().map_or_else(|| y.shallow_clone(), |blind| y.masked_fill(blind, 0.0))
        });
        self.queries.join(attended.collect())
    }
}

impl KeyBatch {
    fn new(documents: &[&DocumentKeys], num_keys: i64, device: Device) -> KeyBatch {
        let len = |keys: &DocumentKeys| (keys.rows.end - keys.rows.start) as usize + usize::from(keys.extra.is_some());
        assert!(num_keys > 0, "keys for queries");
        let longest = documents.iter().map(|keys| len(keys)).max().unwrap_or(0).max(1);
        let blind: Vec<bool> = documents.iter().map(|keys| len(keys) == 0).collect();
        let (mut rows, mut bias) = (Vec::new(), Vec::new());
        for keys in documents {
            let begin = rows.len();
            rows.extend(keys.rows.clone().chain(keys.extra.map(|(row, _)| row)));
            bias.extend(keys.rows.clone().map(|_| 0f32).chain(keys.extra.map(|(_, added)| added as f32)));
            if len(keys) == 0 {
                // A softmax needs a key: the first of all, which is not used.
                rows.push(0);
                bias.push(0.0);
            }
            // Padding repeats a key that nobody sees.
            rows.resize(begin + longest, rows[begin]);
            bias.resize(begin + longest, f32::NEG_INFINITY);
        }
        let in_order = rows.len() as i64 == num_keys && (0..).zip(&rows).all(|(at, row)| at == *row);
        let num_documents = documents.len() as i64;
        let is_biased = bias.iter().any(|added| *added != 0.0);
        let bias = || upload(&Tensor::from_slice(&bias), device).view([num_documents, 1, 1, longest as i64]);
        let is_blind = blind.contains(&true);
        let blind = || upload(&Tensor::from_slice(&blind), device).view([num_documents, 1, 1]);
        KeyBatch {
            num_documents,
            bias: is_biased.then(bias),
            blind: is_blind.then(blind),
            rows: (!in_order).then(|| upload(&Tensor::from_slice(&rows), device)),
        }
    }

    /// Maps `[K, H, C]` to `[B, S, H, C]`.
    fn take(&self, x_KHC: &Tensor) -> Tensor {
        let taken = match &self.rows {
            Some(rows) => {
                let size = x_KHC.size();
                take_rows(&x_KHC.flatten(1, -1), rows).view([-1, size[1], size[2]])
            }
            None => x_KHC.shallow_clone(),
        };
        taken.unflatten(0, [self.num_documents, -1])
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{CrossAttention, DocumentKeys};
    use crate::native::grad;

    /// Each document against the definition, outputs and gradients; the extra key as often as it stands for. One has no keys.
    #[test]
    fn documents_meet_their_own_keys() {
        tch::manual_seed(4);
        let random = |rows: i64| Tensor::randn([rows, 2, 6], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let (q, k, v) = (random(16), random(9), random(9));
        let keys = |rows: std::ops::Range<i64>, times: i64| DocumentKeys {
            rows,
            extra: (times > 0).then(|| (8, (times as f64).ln())),
        };
        let documents = [keys(0..3, 0), keys(3..4, 5), keys(4..4, 2), keys(4..8, 1), keys(8..8, 0)];
        let ends = [0, 4, 7, 8, 12, 16];
        let whole = |keys: &DocumentKeys, x: &Tensor| {
            let times = keys.extra.map_or(0, |(_, added)| added.exp().round() as i64);
            let own = x.narrow(0, keys.rows.start, keys.rows.end - keys.rows.start);
            Tensor::cat(&[own, x.narrow(0, 8, 1).repeat([times, 1, 1])], 0).transpose(0, 1)
        };
        let expected = documents.iter().zip(ends.windows(2)).map(|(keys, ends)| {
            let q = q.narrow(0, ends[0] as i64, (ends[1] - ends[0]) as i64).transpose(0, 1);
            if *keys == documents[4] {
                return q.zeros_like().transpose(0, 1).flatten(1, 2);
            }
            let scores = q.matmul(&whole(keys, &k).transpose(1, 2)) / 6f64.sqrt();
            scores.softmax(-1, Kind::Float).matmul(&whole(keys, &v)).transpose(0, 1).flatten(1, 2)
        });
        let expected = Tensor::cat(&expected.collect::<Vec<_>>(), 0);
        let found = CrossAttention::new(&ends, &documents, 9, Device::Cpu).forward(&q, &k, &v);
        assert!(found.allclose(&expected, 1e-5, 1e-6, false));
        let seed = Tensor::randn([16, 12], (Kind::Float, Device::Cpu));
        let grads = |y: &Tensor| grad(&[y], &[&seed], &[&q, &k, &v]).unwrap().into_iter().map(Option::unwrap);
        for (found, expected) in grads(&found).zip(grads(&expected)) {
            assert!(found.allclose(&expected, 1e-4, 1e-6, false));
        }
    }
}
