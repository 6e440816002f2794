//! Causal attention of a piece of a packed row, whose first document began in earlier pieces: its tokens also attend to
//! those documents' keys and values, which come from outside.
//!
//! Shapes: T tokens of the piece, P earlier tokens of its first document, L tokens of that document in the piece, H query
//! heads, K key and value heads, C width of a head.

use tch::{Device, Kind, Tensor};

use super::attend::{Scores, attend_sinking};
use super::attention::PackedAttention;
use super::mask::Mask;

/// Describes how a piece is attended; made once a piece, for all layers.
pub struct PieceAttention {
    /// The length of the first document, here and before.
    len: i64,
    past: i64,
    /// The other documents, or all where nothing came before.
    rest: PackedAttention,
}

impl PieceAttention {
    /// Documents end at `cu_seqlens` `[0, …, T]` within the piece; the first has `past` tokens before.
    pub fn new(cu_seqlens: &[usize], past: usize, device: Device) -> PieceAttention {
        if past == 0 {
            let rest = PackedAttention::new(cu_seqlens, Mask::Causal, device);
            return PieceAttention { len: 0, past: 0, rest };
        }
        let first = cu_seqlens.get(1).copied().unwrap_or(0);
        let ends: Vec<usize> = cu_seqlens.iter().skip(1).map(|end| end - first).collect();
        let rest = PackedAttention::new(&ends, Mask::Causal, device);
        PieceAttention { len: first as i64, past: past as i64, rest }
    }

    /// Returns the number of earlier tokens of the first document.
    pub fn past(&self) -> i64 {
        self.past
    }

    /// `q_THC`, `k_TKC`, `v_TKC` of the piece and keys and values `[P, K, C]` from before; returns `[T, H·C]`. Every query also
    /// sees a key without a value whose score is the head's of `sinks_H`, where they are given.
    pub fn forward(
        &self,
        [q_THC, k_TKC, v_TKC]: [&Tensor; 3],
        past: Option<[&Tensor; 2]>,
        scores: Scores,
        sinks_H: Option<&Tensor>,
    ) -> Tensor {
        let Some([past_k, past_v]) = past else {
            return self.rest.forward_sinking([q_THC, k_TKC, v_TKC], scores, sinks_H);
        };
        // Not kept: over a row's pieces masks would grow with the square of its length.
        let mask_LS = Tensor::ones([self.len, self.past + self.len], (Kind::Bool, q_THC.device())).tril(self.past);
        let mask = mask_LS.view([1, 1, self.len, self.past + self.len]);
        let after = |past: &Tensor, x: &Tensor| Tensor::cat(&[past, &x.narrow(0, 0, self.len)], 0).unsqueeze(0);
        let (k, v) = (after(past_k, k_TKC), after(past_v, v_TKC));
        let q = q_THC.narrow(0, 0, self.len).unsqueeze(0);
        let first = attend_sinking(&q, &k, &v, Some(&mask), false, scores, sinks_H).squeeze_dim(0);
        let num_rest = q_THC.size()[0] - self.len;
        if num_rest == 0 {
            return first;
        }
        let behind = |x: &Tensor| x.narrow(0, self.len, num_rest);
        let rest = [q_THC, k_TKC, v_TKC].map(behind);
        Tensor::cat(&[first, self.rest.forward_sinking(rest.each_ref(), scores, sinks_H)], 0)
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::PieceAttention;
    use crate::nn::{Mask, PackedAttention, Scores};

    #[test]
    fn pieces_equal_the_whole_row() {
        tch::manual_seed(2);
        let random = |heads: i64| Tensor::randn([30, heads, 8], (Kind::Float, Device::Cpu));
        let (q, k, v) = (random(4), random(2), random(2));
        let sinks = Tensor::randn([4], (Kind::Float, Device::Cpu));
        check([&q, &k, &v], None);
        check([&q, &k, &v], Some(&sinks));
    }

    fn check([q, k, v]: [&Tensor; 3], sinks: Option<&Tensor>) {
        let whole = PackedAttention::new(&[0, 3, 22, 30], Mask::Causal, Device::Cpu);
        let whole = whole.forward_sinking([q, k, v], Scores::default(), sinks);
        // Cuts at 10 and 20, within the second document, which begins at 3.
        let pieces = [(0, 10, vec![0, 3, 10], 0), (10, 10, vec![0, 10], 7), (20, 10, vec![0, 2, 10], 17)];
        for (start, len, cu_seqlens, past) in pieces {
            let attention = PieceAttention::new(&cu_seqlens, past, Device::Cpu);
            let here = |x: &Tensor| x.narrow(0, start, len);
            let before = |x: &Tensor| x.narrow(0, start - past as i64, past as i64);
            let (past_k, past_v) = (before(k), before(v));
            let past = (past > 0).then_some([&past_k, &past_v]);
            let found = attention.forward([&here(q), &here(k), &here(v)], past, Scores::default(), sinks);
            assert!(found.allclose(&here(&whole), 1e-5, 1e-6, false), "piece at {start}");
        }
    }
}
