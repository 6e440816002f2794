//! The tensors that an optimizer keeps of parameters, and their places: one tensor for all parameters of a rule, one parameter behind the
//! other.

use super::placed::{Places, StateSlice, StateTensor};
use super::rule::{OptimizerMethod, Rule};
use crate::native::{MOMENT_BLOCK, NativeError, QuantizedMoment};
use crate::params::{ParamId, ParamStore};
use tch::{Kind, Tensor};

/// The state of what this rank's optimizer changes, without masters and averages.
pub(super) struct Moments {
    /// AdamW's, float32. Where AdamW is the only rule they are laid out as the rank's elements are, gaps included.
    exp_avg: StateTensor,
    exp_avg_sq: StateTensor,
    /// AdamW's in bytes.
    bytes: [Bytes; 2],
    /// Muon's, float32.
    momentum: StateTensor,
    /// The place of the state of each trained parameter, in the store's order.
    places: Vec<StateOffset>,
}

/// A moment in bytes of all parameters that have it.
struct Bytes {
    codes: StateTensor,
    maxima: StateTensor,
}

/// The place at which the state of this rank's part of a parameter begins among the tensors of its rule.
#[derive(Clone, Copy)]
struct StateOffset {
    rule: Rule,
    at: i64,
}

impl Moments {
    /// Returns zeros for the parameters of a store.
    ///
    /// # Errors
    /// There is no place for them.
    pub fn new(params: &ParamStore, method: OptimizerMethod, where_to: &Places) -> Result<Self, NativeError> {
        let (mut adamw, mut bytes, mut muon) = (0, 0, 0);
        // What of each lies away.
        let mut away = [0; 3];
        let place = |(index, id): (usize, ParamId)| {
            if index <= where_to.num_away {
                away = [adamw, bytes, muon];
            }
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
            StateOffset { rule, at: if method == OptimizerMethod::AdamW { at } else { start } }
        };
        let places: Vec<StateOffset> = params.trained_ids().enumerate().map(place).collect();
        if where_to.num_away == places.len() {
            away = [adamw, bytes, muon];
        }
        let [mut adamw_away, bytes_away, muon_away] = away;
        if method == OptimizerMethod::AdamW {
            (adamw, adamw_away) = (params.num_owned(), where_to.elements_away);
        }
        let moment = || -> Result<Bytes, NativeError> {
            Ok(Bytes {
                codes: where_to.zeros(bytes, bytes_away, Kind::Uint8)?,
                maxima: where_to.zeros(num_blocks(bytes), num_blocks(bytes_away), Kind::Float)?,
            })
        };
        Ok(Self {
            exp_avg: where_to.zeros(adamw, adamw_away, Kind::Float)?,
            exp_avg_sq: where_to.zeros(adamw, adamw_away, Kind::Float)?,
            bytes: [moment()?, moment()?],
            momentum: where_to.zeros(muon, muon_away, Kind::Float)?,
            places,
        })
    }

    /// Returns all tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &StateTensor> {
        let bytes = self.bytes.iter().flat_map(|moment| [&moment.codes, &moment.maxima]);
        [&self.exp_avg, &self.exp_avg_sq, &self.momentum].into_iter().chain(bytes)
    }

    /// Returns the rule by which the parameter at `index` is changed.
    pub fn rule(&self, index: usize) -> Rule {
        self.places[index].rule
    }

    /// Returns the state of the trained parameter of this index by what its tensors are called in files.
    pub fn of(&self, index: usize) -> Vec<(&'static str, StateSlice<'_>)> {
        let StateOffset { rule, at } = self.places[index];
        let maxima = |number: usize| self.bytes[number].maxima.slice(at / MOMENT_BLOCK, MOMENT_BLOCK);
        let [mean, square] = &self.bytes;
        match rule {
            Rule::AdamW => vec![("exp_avg", self.exp_avg.slice(at, 1)), ("exp_avg_sq", self.exp_avg_sq.slice(at, 1))],
            Rule::AdamW8bit => vec![
                ("exp_avg", mean.codes.slice(at, 1)),
                ("exp_avg_absmax", maxima(0)),
                ("exp_avg_sq", square.codes.slice(at, 1)),
                ("exp_avg_sq_absmax", maxima(1)),
            ],
            Rule::Muon(_) => vec![("momentum_buffer", self.momentum.slice(at, 1))],
        }
    }

    /// Returns AdamW's moments, exp_avg and exp_avg_sq, `[len]` each, float32, of the `len` elements from `at` on, where AdamW is the
    /// only rule.
    pub fn adamw_at(&self, at: i64, len: i64) -> [Tensor; 2] {
        [&self.exp_avg, &self.exp_avg_sq].map(|tensor| tensor.narrow(at, len))
    }

    /// Returns AdamW's moments, exp_avg and exp_avg_sq, `[len]` each, float32, of the first `len` elements of this rank's part of a
    /// parameter.
    pub fn adamw(&self, index: usize, len: i64) -> [Tensor; 2] {
        self.adamw_at(self.places[index].at, len)
    }

    /// Works like [`Moments::adamw`] for those in bytes.
    pub fn adamw_8bit(&self, index: usize, len: i64) -> [QuantizedMoment; 2] {
        let at = self.places[index].at;
        self.bytes.each_ref().map(|moment| QuantizedMoment {
            codes: moment.codes.narrow(at, len),
            maxima: moment.maxima.narrow(at / MOMENT_BLOCK, num_blocks(len)),
        })
    }

    /// Works like [`Moments::adamw`] for Muon's momentum, `[len]`, float32.
    pub fn muon(&self, index: usize, len: i64) -> Tensor {
        self.momentum.narrow(self.places[index].at, len)
    }
}

/// Returns the number of blocks of so many elements.
pub(super) fn num_blocks(elements: i64) -> i64 {
    (elements + MOMENT_BLOCK - 1) / MOMENT_BLOCK
}
