//! The places of the rows of a micro-batch's samples in both streams.
//!
//! A sample has its tokens, and maybe a state, in the prefix, and a group of rows for each draw of noise in the stream of actions.
//! Positions of a group go on where those of its prefix end, but for layers in which it attends to nothing else: there they begin
//! anew. Tokens that are to be predicted lie behind all of that in the prefix's stream: each sees what is before it, and nothing
//! else sees them.

use std::ops::Range;

use tch::{Device, Kind, Tensor};

use super::config::{PolicyConfig, StateToken};
use crate::device::upload;
use crate::nn::{JointAttention, Mask, PackedAttention, Rope};

/// The tokens of a micro-batch that are predicted.
pub(super) struct Predicted {
    /// The rows behind which they are, and they.
    pub rows: Vec<i64>,
    pub labels: Vec<i64>,
    /// The sample of each.
    pub samples: Vec<usize>,
}

/// The attentions, ropes and indices of a micro-batch that all layers read beside their rows.
pub(super) struct Layout {
    /// Prefixes attend to themselves.
    pub prefix: PackedAttention,
    pub joint: JointAttention,
    /// Turn rows of the prefix and of actions.
    pub ropes: [Rope; 2],
    /// Turns rows of actions in layers where they attend to the prefix alone; `None`: there is no such layer.
    pub alone: Option<Rope>,
    /// The row among all tokens and, behind them, states of each row of the prefix; `None`: they are in that order.
    pub order: Option<Tensor>,
    /// The tokens that are predicted; none where the policy learns none.
    pub predicted: Predicted,
    /// True if gradients of actions end at the keys and values of the prefix.
    pub insulate: bool,
    /// The rows of the prefix that learn, where some do not.
    pub apart: Option<Apart>,
}

/// States, of which each is seen by itself and by actions, among tokens of which nothing is learned. No token's row depends on a state,
/// so that what a token makes of its gradient is of no use.
pub(super) struct Apart {
    /// Rows of tokens and of states, int64, and of each row its place among these and those.
    tokens: Tensor,
    states: Tensor,
    order: Tensor,
}

impl Layout {
    /// Samples' tokens end at `cu_seqlens` `[0, …, T]`; each has `num_draws` groups of actions. `targets` `[T]` says of each token the
    /// one to predict behind it, or is below 0; it is empty where the policy learns none.
    pub fn new(
        config: &PolicyConfig,
        cu_seqlens: &[usize],
        targets: &[i64],
        num_draws: usize,
        kind: Kind,
        device: Device,
    ) -> Layout {
        let num_tokens = *cu_seqlens.last().unwrap_or(&0) as i64;
        let with_state = config.state.is_in_prefix();
        let (mut ends, mut order, mut positions) = (vec![0usize], Vec::new(), Vec::new());
        let (mut groups, mut own, mut alone) = (Vec::<Range<i64>>::new(), Vec::new(), Vec::new());
        let mut predicted = Predicted { rows: Vec::new(), labels: Vec::new(), samples: Vec::new() };
        let mut seen = Vec::new();
        for (sample, tokens) in cu_seqlens.windows(2).enumerate() {
            let begin = order.len() as i64;
            // The last token of the prompt is the one behind which the first is predicted.
            let labels = targets.get(tokens[0]..tokens[1]).unwrap_or_default();
            let prompt = labels.iter().position(|target| *target >= 0).map_or(tokens[1], |at| tokens[0] + at + 1);
            let row = |token: usize| token as i64 - tokens[0] as i64 + begin + i64::from(with_state && token >= prompt);
            for (token, label) in (tokens[0]..).zip(labels).filter(|(_, label)| **label >= 0) {
                predicted.rows.push(row(token));
                predicted.labels.push(*label);
                predicted.samples.push(sample);
            }
            let state = with_state.then_some(num_tokens + sample as i64);
            order.extend((tokens[0] as i64..prompt as i64).chain(state));
            let len = order.len() as i64 - begin;
            seen.push(len as usize);
            order.extend(prompt as i64..tokens[1] as i64);
            ends.push(order.len());
            positions.extend(0..order.len() as i64 - begin);
            for _ in 0..num_draws {
                groups.push(begin..begin + len);
                own.extend(len..len + config.num_rows());
                alone.extend(0..config.num_rows());
            }
        }
        let rope = |positions: &[i64]| Rope::new(&config.rope(), &upload(&Tensor::from_slice(positions), device), kind);
        let mask = match config.state {
            StateToken::PrefixLevel => {
                let lens: Vec<usize> = ends.windows(2).map(|ends| ends[1] - ends[0] - 1).collect();
                Mask::prefixes(&ends, &lens)
            }
            _ if predicted.rows.is_empty() => Mask::Full,
            _ => Mask::prefixes(&ends, &seen),
        };
        let has_cross = (0..config.num_layers()).any(|number| config.is_cross(number));
        Layout {
            prefix: PackedAttention::new(&ends, mask, device),
            joint: JointAttention::new(&groups, order.len() as i64, &config.levels(), device),
            ropes: [rope(&positions), rope(&own)],
            alone: has_cross.then(|| rope(&alone)),
            order: with_state.then(|| upload(&Tensor::from_slice(&order), device)),
            predicted,
            insulate: false,
            apart: None,
        }
    }

    /// Makes a layout in which only the states of the prefix have gradients: nothing is learned from tokens, nor from what they are made
    /// from. It is for policies whose states no token sees.
    pub fn with_states_apart(mut self, num_states: usize) -> Layout {
        self.apart = self.order.as_ref().map(|order| {
            let (rows, num_states) = (order.argsort(0, false), num_states as i64);
            let num_tokens = order.size()[0] - num_states;
            let [tokens, states] = [(0, num_tokens), (num_tokens, num_states)].map(|(at, len)| rows.narrow(0, at, len));
            Apart { tokens, states, order: order.shallow_clone() }
        });
        self
    }

    /// Applies `map` to the rows of the prefix `[P, …]`, each by itself.
    pub fn each_row(&self, x: &Tensor, map: impl Fn(&Tensor) -> Vec<Tensor>) -> Vec<Tensor> {
        let Some(Apart { tokens, states, order }) = &self.apart else { return map(x) };
        let of_tokens = map(&x.detach().index_select(0, tokens));
        let of_states = map(&x.index_select(0, states));
        let both = |(tokens, states): (Tensor, Tensor)| Tensor::cat(&[tokens, states], 0).index_select(0, order);
        of_tokens.into_iter().zip(of_states).map(both).collect()
    }
}
