//! The places of the rows of a micro-batch's samples in both transformers.
//!
//! The encoder of language reads the features of a sample's first picture and then its text. The transformer reads, for each draw
//! of noise, actions, what the encoder has made, the features of the other pictures, and the prompts of the domain. A picture that a
//! sample lacks is rows of zeros.

use std::rc::Rc;

use tch::{Device, Tensor};

use super::config::XvlaConfig;
use crate::device::upload;
use crate::model::bart::Sequences;
use crate::nn::{Mask, PackedAttention};

/// The indices and ropes of a micro-batch that all layers read beside their rows.
pub(super) struct Layout {
    /// The encoder's rows among all tokens, behind which is a row of zeros.
    pub texts: Rc<Sequences>,
    /// Rows of the encoder of each sample.
    pub encoded_lens: Vec<i64>,
    /// The row among all tokens, behind which is a row of zeros, of each row of other pictures; `None`: samples have one picture.
    pub views: Option<Tensor>,
    /// Rows of other pictures of each sample.
    pub view_lens: Vec<i64>,
    /// The source of each row of the transformer, among the rows of all actions, of the encoder, of other pictures and of prompts, end to
    /// end.
    pub order: Tensor,
    /// Entries of the transformer's table of positions, behind which is a row of zeros.
    pub positions: Tensor,
    pub sequences: PackedAttention,
    /// The transformer's rows that are actions.
    pub actions: Tensor,
}

impl Layout {
    /// Samples' tokens `ids` end at `cu_seqlens` `[0, …, T]`; each has `num_draws` groups of actions.
    pub fn new(config: &XvlaConfig, ids: &[i64], cu_seqlens: &[usize], num_draws: usize, device: Device) -> Layout {
        let (of_view, num_views, zeros) = (config.view_features as usize, config.num_views as usize, ids.len() as i64);
        let (mut encoded, mut views) = (Vec::new(), Vec::new());
        let (mut text_ends, mut encoded_lens) = (vec![0], Vec::new());
        for ends in cu_seqlens.windows(2) {
            let rows = || ends[0] as i64..ends[1] as i64;
            let is_feature = |row: &i64| ids[*row as usize] == config.image_token;
            let features: Vec<i64> = rows().filter(is_feature).collect();
            let feature = |at: usize| features.get(at).copied().unwrap_or(zeros);
            let begin = encoded.len();
            encoded.extend((0..of_view).map(feature));
            encoded.extend(rows().filter(|row| !is_feature(row)));
            let len = (encoded.len() - begin) as i64;
            encoded_lens.push(len);
            text_ends.push(encoded.len());
            views.extend((of_view..of_view * num_views).map(feature));
        }
        let num_others = (of_view * (num_views - 1)) as i64;
        let num_samples = encoded_lens.len() as i64;
        let num_actions = num_samples * num_draws as i64 * config.horizon;
        let [of_views, of_prompts] = {
            let of_views = num_actions + encoded.len() as i64;
            [of_views, of_views + views.len() as i64]
        };
        let (mut order, mut positions, mut sequence_ends, mut actions) = (Vec::new(), Vec::new(), vec![0], Vec::new());
        for (sample, begin) in (0..num_samples).zip(&text_ends) {
            let begin = num_actions + *begin as i64;
            for draw in 0..num_draws as i64 {
                let first = (sample * num_draws as i64 + draw) * config.horizon;
                actions.extend(order.len() as i64..order.len() as i64 + config.horizon);
                let start = order.len();
                order.extend(first..first + config.horizon);
                order.extend(begin..begin + encoded_lens[sample as usize]);
                order.extend(of_views + sample * num_others..of_views + (sample + 1) * num_others);
                positions.extend(0..(order.len() - start) as i64);
                order.extend(of_prompts + sample * config.num_prompts..of_prompts + (sample + 1) * config.num_prompts);
                positions.extend(std::iter::repeat_n(config.max_rows, config.num_prompts as usize));
                sequence_ends.push(order.len());
            }
        }
        let index = |rows: &[i64]| upload(&Tensor::from_slice(rows), device);
        Layout {
            texts: Rc::new(Sequences::new(&encoded, &text_ends, Mask::Full, device)),
            encoded_lens,
            views: (num_others > 0).then(|| index(&views)),
            view_lens: vec![num_others; num_samples as usize],
            order: index(&order),
            positions: index(&positions),
            sequences: PackedAttention::new(&sequence_ends, Mask::Full, device),
            actions: index(&actions),
        }
    }
}
