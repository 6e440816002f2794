//! Where the rows of a micro-batch's samples lie in both streams.
//!
//! A sample has its tokens, and maybe a state, in the prefix, and a group of rows for each draw of noise in the stream of actions.
//! Positions of a group go on where those of its prefix end.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::config::{PolicyConfig, StateToken};
use crate::nn::{JointAttention, Mask, PackedAttention, Rope};

/// What all layers read of a micro-batch beside their rows.
pub(super) struct Layout {
    /// Prefixes attend to themselves.
    pub prefix: PackedAttention,
    pub joint: JointAttention,
    /// Turn rows of the prefix and of actions.
    pub ropes: [Rope; 2],
    /// For each row of the prefix its row among all tokens and, behind them, states; `None`: that is the order.
    pub order: Option<Tensor>,
    /// True if gradients of actions end at the keys and values of the prefix.
    pub insulate: bool,
}

impl Layout {
    /// Samples' tokens end at `cu_seqlens` `[0, …, T]`; each has `num_draws` groups of actions.
    pub fn new(config: &PolicyConfig, cu_seqlens: &[usize], num_draws: usize, kind: Kind, device: Device) -> Layout {
        let num_tokens = *cu_seqlens.last().unwrap_or(&0) as i64;
        let with_state = config.state == StateToken::Prefix;
        let (mut ends, mut order, mut positions) = (vec![0usize], Vec::new(), Vec::new());
        let (mut groups, mut own) = (Vec::<Range<i64>>::new(), Vec::new());
        for (sample, tokens) in (0..).zip(cu_seqlens.windows(2)) {
            let begin = order.len() as i64;
            order.extend((tokens[0] as i64..tokens[1] as i64).chain(with_state.then_some(num_tokens + sample)));
            let len = order.len() as i64 - begin;
            ends.push(order.len());
            positions.extend(0..len);
            for _ in 0..num_draws {
                groups.push(begin..begin + len);
                own.extend(len..len + config.num_rows());
            }
        }
        let rope =
            |positions: &[i64]| Rope::new(&config.rope(), &Tensor::from_slice(positions).to_device(device), kind);
        Layout {
            prefix: PackedAttention::new(&ends, Mask::Full, device),
            joint: JointAttention::new(&groups, order.len() as i64, &config.levels(), device),
            ropes: [rope(&positions), rope(&own)],
            order: with_state.then(|| Tensor::from_slice(&order).to_device(device)),
            insulate: false,
        }
    }
}
