//! Putting together what several data actors send for one batch.

use loongforge_core::engine::EngineError;
use std::collections::{BTreeMap, BTreeSet};
use tch::Tensor;

/// Tensors of one pack or unit by the data actor that sends them.
pub(super) struct Assembler {
    expected: BTreeSet<u32>,
    arrived: BTreeMap<u32, Vec<Tensor>>,
}

impl Assembler {
    /// Expects a part of each of these data actors.
    pub(super) fn new(owners: impl Iterator<Item = u32>) -> Self {
        Self { expected: owners.collect(), arrived: BTreeMap::new() }
    }

    /// Takes the part of `owner`.
    pub(super) fn insert(&mut self, owner: u32, tensors: Vec<Tensor>) -> Result<(), EngineError> {
        if !self.expected.contains(&owner) {
            return Err(format!("data/{owner} has no part of it").into());
        }
        match self.arrived.insert(owner, tensors) {
            None => Ok(()),
            Some(_) => Err(format!("data/{owner} sent it twice").into()),
        }
    }

    /// Returns the tensors that have arrived, in the shapes in which they were sent.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.arrived.values().flatten()
    }

    /// Forgets what was assembled.
    pub(super) fn clear(&mut self) {
        self.arrived.clear();
    }

    /// Returns whether all parts are here.
    pub(super) fn is_complete(&self) -> bool {
        self.arrived.len() == self.expected.len()
    }

    /// Returns tensor `index` of the whole, cut along `dim` into pieces of these owners and lengths in order.
    ///
    /// # Errors
    /// The lengths do not add up to what was sent.
    pub(super) fn assemble(&self, index: usize, dim: i64, pieces: &[(u32, i64)]) -> Result<Tensor, EngineError> {
        let mut taken: BTreeMap<u32, i64> = BTreeMap::new();
        let mut cut = Vec::new();
        for &(owner, len) in pieces {
            let tensor = self.arrived[&owner].get(index).ok_or_else(|| format!("data/{owner} sent too few tensors"))?;
            let start = taken.entry(owner).or_default();
            if *start + len > tensor.size()[dim as usize] {
                return Err(format!("data/{owner} sent {:?}, too short for its samples", tensor.size()).into());
            }
            cut.push(tensor.narrow(dim, *start, len));
            *start += len;
        }
        for (owner, len) in taken {
            let size = self.arrived[&owner][index].size();
            if size[dim as usize] != len {
                return Err(format!("data/{owner} sent {size:?}, but its samples need {len}").into());
            }
        }
        match (&self.arrived.values().next(), self.arrived.len()) {
            // One owner: its tensor is the whole already.
            (Some(only), 1) => Ok(only[index].shallow_clone()),
            _ => Ok(Tensor::cat(&cut, dim)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(values: &[i64]) -> Vec<Tensor> {
        vec![Tensor::from_slice(values)]
    }

    #[test]
    fn pieces_come_in_the_order_of_the_plan() {
        let mut parts = Assembler::new([0, 1, 0].into_iter());
        parts.insert(1, rows(&[10, 11])).unwrap();
        assert!(!parts.is_complete());
        parts.insert(0, rows(&[1, 2, 3])).unwrap();
        assert!(parts.is_complete());
        let whole = parts.assemble(0, 0, &[(0, 1), (1, 2), (0, 2)]).unwrap();
        assert_eq!(Vec::<i64>::try_from(whole).unwrap(), [1, 10, 11, 2, 3]);
    }

    #[test]
    fn wrong_lengths_and_doubles_are_errors() {
        let mut parts = Assembler::new([0].into_iter());
        assert!(parts.insert(1, rows(&[1])).is_err());
        parts.insert(0, rows(&[1, 2])).unwrap();
        assert!(parts.assemble(0, 0, &[(0, 3)]).is_err());
        assert!(parts.assemble(0, 0, &[(0, 1)]).is_err());
        assert!(parts.insert(0, rows(&[1, 2])).is_err());
    }
}
