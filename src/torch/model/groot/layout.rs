//! The rows of a micro-batch's samples that see each other.
//!
//! A sample has its tokens, and a group of rows for each draw of noise: its state and its actions. Rows of a group see each other,
//! and in turn the tokens of text and those of pictures of their sample.
//!
//! Shapes: T tokens of all samples, S draws of all samples, L rows of a draw.

use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use super::config::GrootConfig;
use crate::device::upload;
use crate::nn::{CrossAttention, DocumentKeys, Dropout, Mask, PackedAttention};

/// The attentions and dropouts of a micro-batch that all layers read.
pub(super) struct Layout {
    /// Tokens of a sample see each other.
    pub tokens: PackedAttention,
    /// Rows of a draw see each other.
    pub rows: PackedAttention,
    /// The tokens of text that rows see, and those of pictures.
    pub text: Seen,
    pub pictures: Seen,
    /// The dropouts of tokens, and of rows.
    pub dropout: [Dropout; 2],
}

/// The tokens of a kind, as rows see them.
pub(super) struct Seen {
    /// The numbers of the tokens of all samples, int64.
    pub tokens: Rc<Tensor>,
    cross: CrossAttention,
    /// 1 for each row whose sample has such a token and 0 for others, `[S·L, 1]`, float32; `None`: all have one.
    has: Option<Tensor>,
}

impl Layout {
    /// Samples' tokens `ids` end at `cu_seqlens` `[0, …, T]`; each sample has `num_draws` groups of rows. `dropout` has the keys
    /// of tokens and of rows.
    pub fn new(
        config: &GrootConfig,
        (ids, cu_seqlens): (&[i64], &[usize]),
        num_draws: usize,
        dropout: [Option<Tensor>; 2],
        device: Device,
    ) -> Layout {
        let num_groups = (cu_seqlens.len() - 1) * num_draws;
        let len = config.num_rows() as usize;
        let ends: Vec<usize> = (0..=num_groups).map(|group| group * len).collect();
        let seen = |pictures: bool| {
            let is_seen = |token: &usize| config.input.placeholders.contains(&ids[*token]) == pictures;
            Seen::new(cu_seqlens, is_seen, &ends, num_draws, device)
        };
        let on_device = |keys: Option<Tensor>| Dropout::new(keys.map(|keys| upload(&keys, device)));
        Layout {
            tokens: PackedAttention::new(cu_seqlens, Mask::Full, device),
            rows: PackedAttention::new(&ends, Mask::Full, device),
            text: seen(false),
            pictures: seen(true),
            dropout: dropout.map(on_device),
        }
    }
}

impl Seen {
    fn new(
        cu_seqlens: &[usize],
        is_seen: impl Fn(&usize) -> bool,
        ends: &[usize],
        num_draws: usize,
        device: Device,
    ) -> Seen {
        let (mut tokens, mut keys, mut has) = (Vec::new(), Vec::new(), Vec::new());
        for sample in cu_seqlens.windows(2) {
            let begin = tokens.len() as i64;
            tokens.extend((sample[0]..sample[1]).filter(&is_seen).map(|token| token as i64));
            has.push(tokens.len() as i64 > begin);
            if !has[has.len() - 1] {
                // Attention needs a key; what it finds there is multiplied by 0.
                tokens.push(sample[0] as i64);
            }
            let own = DocumentKeys { rows: begin..tokens.len() as i64, extra: None };
            keys.extend(std::iter::repeat_n(own, num_draws));
        }
        let len = ends.get(1).copied().unwrap_or(0) * num_draws;
        let of_rows = || {
            let values: Vec<f32> = has.iter().flat_map(|&has| vec![f32::from(u8::from(has)); len]).collect();
            upload(&Tensor::from_slice(&values), device).unsqueeze(1)
        };
        Seen {
            cross: CrossAttention::new(ends, &keys, tokens.len() as i64, device),
            has: has.contains(&false).then(of_rows),
            tokens: Rc::new(upload(&Tensor::from_slice(&tokens).to_kind(Kind::Int64), device)),
        }
    }

    /// Maps queries of all rows to what they find, `[S·L, H·C]`; zeros where their sample has no such token.
    pub fn attend(&self, [q, k, v]: [Tensor; 3]) -> Tensor {
        let y = self.cross.forward(&q, &k, &v);
        match &self.has {
            Some(has) => &y * has.to_kind(y.kind()),
            None => y,
        }
    }
}
