//! One micro-batch of packed samples, as an engine gives it to a foundation.

use std::rc::Rc;

use loongforge_core::message::{ItemMeta, SampleId, SampleMeta, Target, TowerSet};
use tch::{Device, Tensor};

use super::columns::{Column, Columns, INPUT_IDS, TARGETS};
use super::objective::NoisePurpose;
use crate::tape::{ContextShard, Slot, Tape};

/// Packed samples of one micro-batch, `T` tokens in all.
pub struct MicroBatch {
    /// The samples in the family's columns. Those of a language model are the ids of tokens, their positions, which restart with each
    /// sample (and with its answer, where a decoder of its own reads that), and the token to predict at each position, or -100.
    pub columns: Columns,
    /// The places where samples begin, and `T` at the end.
    pub cu_seqlens: Vec<usize>,
    /// The samples in their order, where the plan is known; models of tokens need nothing of them.
    pub samples: Rc<[SampleRow]>,
    /// Factor of the summed loss: one over the target tokens of the whole step.
    pub loss_scale: f64,
    /// Rows of features, over all items, by input of the foundation.
    pub num_features: Vec<i64>,
    /// True if some encoder wants gradients.
    pub feature_grads: bool,
    /// The towers whose encoders want none where others do: their features are constants.
    pub constant_features: TowerSet,
    /// The share of a row, where these are some tokens of a row that other ranks share.
    pub row: Option<Rc<ContextShard>>,
    /// The features of the whole row, by input, that are of these tokens, in their order, where the batch has some tokens of a shared
    /// row.
    pub shared_features: Vec<Vec<i64>>,
    /// The number of tokens of its first document that came in earlier pieces, where the batch is a piece of a longer row.
    pub past: Option<usize>,
    /// Forward only: the tape is to end with [`FoundationTape::predicted`], and with the sum of the targets' cross-entropies
    /// alone for its loss.
    pub evaluates: bool,
}

/// Describes one sample of a micro-batch, as planned.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleRow {
    pub id: SampleId,
    pub num_tokens: usize,
    /// The number of target tokens that count in the loss, or 1 where the loss is a mean over samples; 0 for a sample that has lost the
    /// features of an item.
    pub num_targets: u32,
    /// The latent that a diffusion model makes of it.
    pub target: Option<Target>,
    /// The sample's items, of all towers, in the order of the sample.
    pub items: Vec<ItemMeta>,
    /// The purpose of its noise.
    pub purpose: NoisePurpose,
}

impl SampleRow {
    /// Returns the row of a planned sample that has all of its features.
    pub fn new(sample: &SampleMeta, purpose: NoisePurpose) -> SampleRow {
        SampleRow {
            id: sample.id,
            num_tokens: sample.num_tokens as usize,
            num_targets: sample.num_targets,
            target: sample.target,
            items: sample.items.clone(),
            purpose,
        }
    }

    /// Returns the same row without a weight in the loss: its sample has lost the features of an item.
    pub fn without_targets(self) -> SampleRow {
        SampleRow { num_targets: 0, ..self }
    }
}

impl MicroBatch {
    /// This rank's tokens of a whole row, with places for `features` of its features.
    pub fn share(&self, row: Rc<ContextShard>, features: Vec<Vec<i64>>) -> MicroBatch {
        let rows = Tensor::from_slice(&row.split().rows(row.rank()));
        MicroBatch {
            columns: self.columns.share(&rows),
            cu_seqlens: row.split().cu_seqlens(row.rank()),
            num_features: features.iter().map(|rows| rows.len() as i64).collect(),
            row: Some(row),
            shared_features: features,
            samples: self.samples.clone(),
            ..*self
        }
    }

    /// Returns whether there are features of this input of the foundation.
    pub fn has_features(&self, input: usize) -> bool {
        self.num_features.get(input).is_some_and(|count| *count > 0)
    }

    /// Adds an input to the tape for the features of this input, where there are any, and returns its slot.
    pub fn feature_slot(&self, tape: &mut Tape, input: usize) -> Option<Slot> {
        self.has_features(input).then(|| tape.input(self.feature_grads))
    }

    /// Makes a batch of one sample that counts for nothing: what a rank computes to take part where others have one micro-batch more.
    pub fn filler(columns: &Rc<[Column]>, device: Device) -> MicroBatch {
        MicroBatch {
            columns: Columns::filler(columns, device),
            cu_seqlens: vec![0, 1],
            samples: Rc::new([]),
            loss_scale: 0.0,
            num_features: Vec::new(),
            feature_grads: false,
            constant_features: TowerSet::default(),
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates: false,
        }
    }

    /// Returns the row cut after every `chunk_tokens` tokens. `counts` tells how many features lie in a range of tokens, by input.
    pub fn pieces(&self, chunk_tokens: usize, counts: impl Fn(&[i64]) -> Vec<i64>) -> Vec<MicroBatch> {
        let (len, ids) = (self.num_tokens() as usize, self.input_ids());
        let piece = |start: usize| {
            let end = len.min(start + chunk_tokens);
            // The last document that begins at or before the cut.
            let first = self.cu_seqlens.iter().rposition(|begin| *begin <= start).unwrap_or(0);
            let ends = self.cu_seqlens.iter().filter(|&&at| at > start && at < end).map(|at| at - start);
            let cut = |x: &Tensor, axis: i64| x.narrow(axis, start as i64, (end - start) as i64);
            MicroBatch {
                columns: self.columns.map(cut),
                cu_seqlens: std::iter::once(0).chain(ends).chain([end - start]).collect(),
                num_features: counts(&ids[start..end]),
                row: None,
                shared_features: Vec::new(),
                past: Some(start - self.cu_seqlens[first]),
                samples: self.samples.clone(),
                ..*self
            }
        };
        (0..len).step_by(chunk_tokens).map(piece).collect()
    }

    /// Returns how many tokens it has.
    pub fn num_tokens(&self) -> i64 {
        self.cu_seqlens.last().copied().unwrap_or(0) as i64
    }

    /// Returns the tokens of a language model on the host.
    pub fn input_ids(&self) -> Vec<i64> {
        host(self.columns.get_on_host(INPUT_IDS))
    }

    /// Returns the targets of a language model on the host.
    pub fn targets(&self) -> Vec<i64> {
        host(self.columns.get_on_host(TARGETS))
    }
}

fn host(tensor: &Tensor) -> Vec<i64> {
    Vec::try_from(tensor).expect("a row of integers")
}
