//! The objectives of the answers of a row, which are pairs, or groups of single ones.

use tch::Tensor;

use super::kto::Groups;
use super::preference::Pairs;

/// The answers of a packed row.
#[derive(Clone, Debug)]
pub enum Answers {
    Pairs(Pairs),
    Groups(Groups),
}

impl Answers {
    /// Returns the number of pairs that count, or single answers.
    pub fn num_counted(&self) -> f64 {
        match self {
            Answers::Pairs(pairs) => pairs.num_counted(),
            Answers::Groups(groups) => groups.num_counted(),
        }
    }

    /// Returns whether the log-probabilities of a reference model are needed.
    pub fn needs_reference(&self) -> bool {
        match self {
            Answers::Pairs(pairs) => pairs.needs_reference(),
            Answers::Groups(groups) => groups.needs_reference(),
        }
    }

    /// Returns what [`Pairs::loss`] returns, in the same shapes. `losses_L` is `[L]`. Panics where the loss needs a reference, and there
    /// is none.
    pub fn loss(&self, losses_L: &Tensor, reference: Option<&Tensor>, scale: f64) -> [Tensor; 2] {
        match self {
            Answers::Pairs(pairs) => pairs.loss(losses_L, reference, scale),
            Answers::Groups(groups) => groups.loss(losses_L, reference, scale),
        }
    }
}
