//! Answers to one prompt: the prompt is computed once for all of them.

use std::rc::Rc;

use tch::{Kind, Tensor};

use super::batch::TextBatch;
use super::config::{DecoderConfig, FeedForwardConfig, MixerConfig};
use crate::device::upload;
use crate::nn::{Mask, SharedRows};

impl DecoderConfig {
    /// Returns whether documents of a row may have the rows of a common beginning once. Then each row is a token's alone but for
    /// causal attention to whole documents. A router's balance counts tokens, so experts see all of them.
    fn shares_rows(&self) -> bool {
        let is_alone = |mixer: &MixerConfig| matches!(mixer, MixerConfig::Attention(it) if it.window.is_none());
        let is_dense = |it: &FeedForwardConfig| matches!(it, FeedForwardConfig::Dense { .. });
        let layers = || self.layers.iter().all(|layer| is_alone(&layer.mixer) && is_dense(&layer.feed_forward));
        !self.depends_on_length() && self.neftune.is_none() && self.mtp.is_none() && layers()
    }
}

impl TextBatch {
    /// Returns the same row and its labels, whose documents have beginnings in common once where `config` allows it. A beginning ends
    /// before the first target and before the first token that a feature replaces, since both belong to one document.
    pub fn sharing(self, labels: Vec<i64>, config: &DecoderConfig) -> (TextBatch, Vec<i64>) {
        let is_whole = self.row.is_none() && self.past.is_none() && self.shared.is_none();
        if !is_whole || self.mask != Mask::Causal || !config.shares_rows() {
            return (self, labels);
        }
        let ids = Vec::<i64>::try_from(&self.input_ids).expect("a row of integers");
        let positions = self.position_ids.to_kind(Kind::Float).flatten(0, -1);
        let positions = Vec::<f32>::try_from(&positions).expect("a row of numbers");
        let mut is_own: Vec<bool> = labels.iter().map(|label| *label >= 0).collect();
        self.feature_rows.iter().flatten().for_each(|row| is_own[*row as usize] = true);
        let are_alike = |a: usize, b: usize| {
            let same_place =
                || (0..positions.len()).step_by(ids.len()).all(|at| positions[at + a] == positions[at + b]);
            ids[a] == ids[b] && !is_own[a] && !is_own[b] && same_place()
        };
        let Some(shared) = SharedRows::find(&self.cu_seqlens, are_alike) else { return (self, labels) };
        let kept = upload(&Tensor::from_slice(shared.kept()), self.input_ids.device());
        let at = |row: &i64| shared.kept().binary_search(row).expect("a feature's row is its own") as i64;
        let batch = TextBatch {
            input_ids: self.input_ids.index_select(0, &kept),
            position_ids: self.position_ids.index_select(-1, &kept.to_device(self.position_ids.device())),
            feature_rows: self.feature_rows.iter().map(|rows| rows.iter().map(at).collect()).collect(),
            cu_seqlens: self.cu_seqlens,
            mask: self.mask,
            row: None,
            past: None,
            shared: None,
        };
        let labels = shared.of(&labels);
        (TextBatch { shared: Some(Rc::new(shared)), ..batch }, labels)
    }
}
