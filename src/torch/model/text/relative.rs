//! Attention whose scores have a learned bias by the distance of query and key (Raffel et al. 2020), among the tokens of one
//! text. Scores are not scaled.
//!
//! Shapes: S tokens of all texts, B texts of a batch, L tokens of each, H heads, C head size.

use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use crate::device::upload;
use crate::nn::{Mask, PackedAttention};

/// Distances fall into buckets: half of them for keys on the right of their query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistanceBuckets {
    pub num_buckets: i64,
    /// Distances of this and more fall into one bucket.
    pub max_distance: i64,
}

impl DistanceBuckets {
    /// Distances below this have a bucket of their own.
    pub(super) fn num_exact(self) -> i64 {
        self.num_buckets / 2 / 2
    }

    /// Returns the bucket of a key that is `offset` tokens behind its query. Rounded in float32 as in the reference.
    fn of(self, offset: i64) -> i64 {
        let (side, exact) = (self.num_buckets / 2, self.num_exact());
        let (start, distance) = (if offset > 0 { side } else { 0 }, offset.abs());
        if distance < exact {
            return start + distance;
        }
        let range = (self.max_distance as f64 / exact as f64).ln() as f32;
        let place = (distance as f32 / exact as f32).ln() / range * (side - exact) as f32;
        start + (exact + place as i64).min(side - 1)
    }

    /// Returns the buckets of all pairs of a query and a key of a text, `[L, L]`, int64.
    fn of_text(self, len: i64) -> Tensor {
        let by_offset: Vec<i64> = (1 - len..len).map(|offset| self.of(offset)).collect();
        let row = |query: i64| &by_offset[(len - 1 - query) as usize..(2 * len - 1 - query) as usize];
        let all: Vec<i64> = (0..len).flat_map(row).copied().collect();
        Tensor::from_slice(&all).view([len, len])
    }
}

/// The texts of a batch that are computed together, and the buckets of their pairs of tokens; made once, for all layers.
pub(super) struct RelativeAttention {
    texts: PackedAttention,
    /// The buckets of each batch of texts of one length, `[L, L]`.
    buckets: Vec<Tensor>,
}

impl RelativeAttention {
    /// Texts end at `ends` `[0, …, S]`.
    pub fn new(ends: &[usize], buckets: DistanceBuckets, device: Device) -> Rc<RelativeAttention> {
        let texts = PackedAttention::new(ends, Mask::Full, device);
        let of_batch = |len: i64| upload(&buckets.of_text(len), device);
        let buckets = texts.batches().iter().map(|batch| of_batch(batch.longest)).collect();
        Rc::new(RelativeAttention { texts, buckets })
    }

    /// Maps `[S, H, C]` each to `[S, H·C]`. `table` `[buckets, H]` has the biases.
    pub fn forward(&self, [q_SHC, k_SHC, v_SHC]: [&Tensor; 3], table: &Tensor) -> Tensor {
        if self.buckets.is_empty() {
            return v_SHC.flatten(1, 2);
        }
        let heads = |x_SHC: &Tensor| -> Vec<Tensor> {
            self.texts.split(x_SHC).iter().map(|x_BLHC| x_BLHC.transpose(1, 2)).collect()
        };
        let (q, k, v) = (heads(q_SHC), heads(k_SHC), heads(v_SHC));
        let of_batch = |number: usize| {
            let bias_HLL = Tensor::embedding(table, &self.buckets[number], -1, false, false).permute([2, 0, 1]);
            let scores = q[number].matmul(&k[number].transpose(2, 3)) + bias_HLL;
            let weights = scores.softmax(-1, Kind::Float).to_kind(v[number].kind());
            weights.matmul(&v[number]).transpose(1, 2).flatten(2, 3)
        };
        self.texts.join((0..q.len()).map(of_batch).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::DistanceBuckets;

    /// `T5Attention._relative_position_bucket` of transformers, of 32 buckets up to 128.
    #[test]
    fn distances_fall_into_the_references_buckets() {
        let buckets = DistanceBuckets { num_buckets: 32, max_distance: 128 };
        let begins = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91];
        for distance in 0..600 {
            let expected = begins.iter().rposition(|begin| *begin <= distance).unwrap() as i64;
            assert_eq!(buckets.of(-distance), expected, "{distance} to the left");
            assert_eq!(buckets.of(distance), expected + if distance > 0 { 16 } else { 0 }, "{distance} to the right");
        }
    }
}
