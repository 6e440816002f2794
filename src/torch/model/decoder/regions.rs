//! Describes where the layers of a decoder are shared among ranks: into and out of what is split.
//!
//! On one rank there are no regions, and nothing here records anything.

use std::ops::Range;
use std::rc::Rc;

use tch::Tensor;

use super::branch::{Branch, Entered};
use super::recording::Recording;
use super::rows::index;
use crate::native::embedding;
use crate::params::ParallelRank;
use crate::tape::{Slot, Tape};

impl Recording {
    /// Into a region: all tokens.
    pub fn enter_region(&self, tape: &mut Tape, x: Slot) -> Slot {
        match self.parallel {
            ParallelRank { tp: 1, .. } => x,
            ParallelRank { sequence: true, .. } => tape.gather_to_region(x, self.num_tokens),
            _ => tape.copy_to_region(x),
        }
    }

    /// Records the way out of a region: the ranks' sum.
    pub fn leave_region(&self, tape: &mut Tape, y: Slot) -> Slot {
        match self.parallel {
            ParallelRank { tp: 1, .. } => y,
            ParallelRank { sequence: true, .. } => tape.reduce_scatter_from_region(y, self.num_tokens),
            _ => tape.reduce_from_region(y),
        }
    }

    /// Takes this rank's rows of `y`, the output of a branch that all ranks computed alike.
    pub fn split_rows(&self, tape: &mut Tape, y: Slot) -> Slot {
        tape.set_alike(false);
        if self.splits_tokens() { tape.split_rows(y, self.num_tokens) } else { y }
    }

    /// Returns whether tokens are split among ranks outside of regions.
    pub fn splits_tokens(&self) -> bool {
        self.parallel.tp > 1 && self.parallel.sequence
    }

    /// Returns the tokens that this rank has outside of regions.
    pub fn tokens(&self) -> Range<i64> {
        if self.splits_tokens() { self.parallel.part(self.num_tokens) } else { 0..self.num_tokens }
    }

    /// With `alike`, records that all ranks compute what follows alike, outside of regions, where they do.
    pub fn set_alike(&self, tape: &mut Tape, alike: bool) {
        tape.set_alike(alike && self.parallel.tp > 1 && !self.parallel.sequence);
    }
}

impl<T: ?Sized + 'static> Branch<T> {
    /// Enters a region with the branch's input; in sequence parallelism its norm comes first, on the rank's own tokens.
    pub fn enter(self: &Rc<Self>, tape: &mut Tape, name: &str, x: Slot, recording: &Recording) -> Entered {
        if !recording.splits_tokens() || self.norm.is_none() {
            let ids = [self.norm_ids.as_slice(), &self.ids].concat();
            return Entered { x: recording.enter_region(tape, x), is_normed: false, ids };
        }
        let branch = self.clone();
        let forward = move |reads: &[Tensor]| vec![branch.input(&reads[0])];
        let x = tape.run(format!("{name} norm"), &self.norm_ids, recording.policy, &[x], 1, forward)[0];
        Entered { x: recording.enter_region(tape, x), is_normed: true, ids: self.ids.clone() }
    }

    /// Gathers all tokens of `x` for a branch that all ranks compute alike.
    pub fn collect(&self, tape: &mut Tape, x: Slot, recording: &Recording) -> Entered {
        let x = if recording.splits_tokens() { tape.gather_rows(x, recording.num_tokens) } else { x };
        tape.set_alike(recording.parallel.tp > 1);
        Entered { x, is_normed: false, ids: [self.norm_ids.as_slice(), &self.ids].concat() }
    }

    /// Returns the module's input: `[T, D]` to `[T, D]`.
    pub fn normed(&self, x: &Tensor, is_normed: bool) -> Tensor {
        if is_normed { x.shallow_clone() } else { self.input(x) }
    }
}

/// Describes which rows encoders' features replace, among the tokens that a rank has outside of regions.
pub(super) struct FeatureRows {
    rows: Rc<Tensor>,
    /// The features of these rows; `None`: all.
    chosen: Option<Rc<Tensor>>,
}

impl FeatureRows {
    /// Puts the rows that features replace on `device`: of ranks that split the tokens, those that this rank holds.
    pub fn new(rows: &[i64], recording: &Recording, device: tch::Device) -> FeatureRows {
        if !recording.splits_tokens() {
            return FeatureRows { rows: index(rows, device), chosen: None };
        }
        let held = recording.tokens();
        let (own, chosen): (Vec<i64>, Vec<i64>) =
            rows.iter().zip(0..).filter(|(row, _)| held.contains(row)).map(|(row, at)| (row - held.start, at)).unzip();
        FeatureRows { rows: index(&own, device), chosen: Some(index(&chosen, device)) }
    }

    /// Records that features take the place of these rows of `x` `[T, D]`.
    pub fn put(&self, tape: &mut Tape, x: Slot, features: Slot) -> Slot {
        let features = self.own(tape, features);
        tape.put_rows(x, self.rows.clone(), features)
    }

    /// Records that features are added to these rows of `x` `[T, D]`, as DeepStack does it.
    pub fn add(&self, tape: &mut Tape, x: Slot, features: Slot) -> Slot {
        let features = self.own(tape, features);
        tape.add_rows(x, self.rows.clone(), features)
    }

    fn own(&self, tape: &mut Tape, features: Slot) -> Slot {
        match &self.chosen {
            Some(chosen) => {
                let features = tape.copy_to_region(features);
                tape.take_rows(features, chosen.clone())
            }
            None => features,
        }
    }
}

/// A table of tokens, or a part of it.
pub(super) struct TokenTable {
    pub table: Tensor,
    /// The token of its first row.
    pub first: i64,
    /// The token whose row gets no gradient, or -1.
    pub padding: i64,
    pub is_part: bool,
    /// Multiplies the rows.
    pub scale: Option<f64>,
}

impl TokenTable {
    /// Returns the rows of these tokens; of a part, zeros for tokens that others have. `ids` `[T]`, int64, to `[T, D]`.
    pub fn look_up(&self, ids: &Tensor) -> Tensor {
        let rows = self.rows(ids);
        match self.scale {
            Some(scale) => rows * scale,
            None => rows,
        }
    }

    fn rows(&self, ids: &Tensor) -> Tensor {
        if !self.is_part {
            return embedding(&self.table, ids, self.padding);
        }
        let last = self.table.size()[0] - 1;
        let own = ids - self.first;
        let is_own = own.ge(0).logical_and(&own.le(last)).unsqueeze(-1).to_kind(self.table.kind());
        let padding = self.padding - self.first;
        embedding(&self.table, &own.clamp(0, last), if (0..=last).contains(&padding) { padding } else { -1 }) * is_own
    }
}
