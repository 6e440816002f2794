//! What an optimizer keeps of each parameter, and where: one tensor for all parameters of a rule, one parameter behind the other.

use super::rule::{Method, Rule};
use crate::native::{MOMENT_BLOCK, Purpose, QuantizedMoment, allocated_for};
use crate::params::{ParamId, ParamStore};
use std::ops::Range;
use tch::{Kind, Tensor};

/// The state of what this rank's optimizer changes, without masters and averages.
pub(super) struct Moments {
    /// AdamW's, float32. Where AdamW is the only rule they are laid out as the rank's elements are, gaps included.
    pub exp_avg: Tensor,
    pub exp_avg_sq: Tensor,
    /// AdamW's in bytes.
    pub bytes: [QuantizedMoment; 2],
    /// Muon's, float32.
    pub momentum: Tensor,
    /// Of each trained parameter, in the store's order.
    places: Vec<Place>,
}

/// Where the state of this rank's part of a parameter begins among the tensors of its rule.
#[derive(Clone, Copy)]
struct Place {
    rule: Rule,
    at: i64,
}

/// A tensor of the state, and where the part of a parameter that this rank has begins in it.
#[derive(Clone, Copy)]
pub struct StateSlice<'a> {
    pub tensor: &'a Tensor,
    pub at: i64,
    /// Elements of the parameter for each of the tensor's.
    pub block: i64,
}

impl<'a> StateSlice<'a> {
    /// Of a tensor that has one element for each of the parameter's.
    pub fn of(tensor: &'a Tensor, at: i64) -> Self {
        Self { tensor, at, block: 1 }
    }

    /// The tensor's elements for these of the parameter, counted from its first.
    pub(super) fn range(&self, part: &Range<i64>) -> Range<i64> {
        let start = part.start / self.block;
        start..start + (part.end - part.start + self.block - 1) / self.block
    }

    /// The shape of the tensor of a whole parameter of this `shape`.
    pub(super) fn shape(&self, shape: &[i64]) -> Vec<i64> {
        match self.block {
            1 => shape.to_vec(),
            block => vec![(shape.iter().product::<i64>() + block - 1) / block],
        }
    }
}

impl Moments {
    /// Zeros for the parameters of a store.
    pub fn new(params: &ParamStore, method: Method) -> Self {
        let (mut adamw, mut bytes, mut muon) = (0, 0, 0);
        let place = |id: ParamId| {
            let (part, at) = params.owned_range(id);
            let len = part.end - part.start;
            let rule = method.rule(params.spec(id));
            let is_cut = rule == Rule::AdamW8bit && part.start % MOMENT_BLOCK != 0;
            assert!(!is_cut, "{}: a block of its moments is cut at {}", params.spec(id).name, part.start);
            let end = match rule {
                Rule::AdamW => &mut adamw,
                Rule::AdamW8bit => &mut bytes,
                Rule::Muon(_) => &mut muon,
            };
            let start = *end;
            *end += if rule == Rule::AdamW8bit { num_blocks(len) * MOMENT_BLOCK } else { len };
            Place { rule, at: if method == Method::AdamW { at } else { start } }
        };
        let places = params.trained_ids().map(place).collect();
        if method == Method::AdamW {
            adamw = params.num_owned();
        }
        let zeros =
            |len: i64, kind| allocated_for(Purpose::Optimizer, || Tensor::zeros([len], (kind, params.flat().device())));
        let moment =
            || QuantizedMoment { codes: zeros(bytes, Kind::Uint8), maxima: zeros(num_blocks(bytes), Kind::Float) };
        Self {
            exp_avg: zeros(adamw, Kind::Float),
            exp_avg_sq: zeros(adamw, Kind::Float),
            bytes: [moment(), moment()],
            momentum: zeros(muon, Kind::Float),
            places,
        }
    }

    /// All tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let bytes = self.bytes.iter().flat_map(|moment| [&moment.codes, &moment.maxima]);
        [&self.exp_avg, &self.exp_avg_sq, &self.momentum].into_iter().chain(bytes)
    }

    pub fn rule(&self, index: usize) -> Rule {
        self.places[index].rule
    }

    /// The state of the trained parameter of this index by what its tensors are called in files.
    pub fn of(&self, index: usize) -> Vec<(&'static str, StateSlice<'_>)> {
        let Place { rule, at } = self.places[index];
        let slice = |tensor| StateSlice { tensor, at, block: 1 };
        let maxima = |tensor| StateSlice { tensor, at: at / MOMENT_BLOCK, block: MOMENT_BLOCK };
        let [mean, square] = &self.bytes;
        match rule {
            Rule::AdamW => vec![("exp_avg", slice(&self.exp_avg)), ("exp_avg_sq", slice(&self.exp_avg_sq))],
            Rule::AdamW8bit => vec![
                ("exp_avg", slice(&mean.codes)),
                ("exp_avg_absmax", maxima(&mean.maxima)),
                ("exp_avg_sq", slice(&square.codes)),
                ("exp_avg_sq_absmax", maxima(&square.maxima)),
            ],
            Rule::Muon(_) => vec![("momentum_buffer", slice(&self.momentum))],
        }
    }

    /// AdamW's moments of `len` elements of a parameter.
    pub fn adamw(&self, index: usize, len: i64) -> [Tensor; 2] {
        [&self.exp_avg, &self.exp_avg_sq].map(|tensor| tensor.narrow(0, self.places[index].at, len))
    }

    /// Works like [`Moments::adamw`] for those in bytes.
    pub fn adamw_8bit(&self, index: usize, len: i64) -> [QuantizedMoment; 2] {
        let at = self.places[index].at;
        self.bytes.each_ref().map(|moment| QuantizedMoment {
            codes: moment.codes.narrow(0, at, len),
            maxima: moment.maxima.narrow(0, at / MOMENT_BLOCK, num_blocks(len)),
        })
    }

    /// Works like [`Moments::adamw`] for Muon's momentum.
    pub fn muon(&self, index: usize, len: i64) -> Tensor {
        self.momentum.narrow(0, self.places[index].at, len)
    }
}

/// Blocks of so many elements.
pub(super) fn num_blocks(elements: i64) -> i64 {
    (elements + MOMENT_BLOCK - 1) / MOMENT_BLOCK
}
