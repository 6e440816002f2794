//! The measures of answers that are learned from, beside their loss.

use tch::Tensor;

/// The number of measures of a tape, in the order of the fields of [`Measures`].
pub const NUM_MEASURES: i64 = 9;

/// Float64 scalars. Of two numbers the first is of chosen answers or good ones, the second of rejected or bad ones.
pub struct Measures {
    /// Pairs, or single answers.
    pub answers: Tensor,
    /// Pairs with the chosen answer before the rejected one; single answers on the right side.
    pub right: Tensor,
    /// Sums.
    pub rewards: [Tensor; 2],
    pub logps: [Tensor; 2],
    /// Answers of each kind.
    pub counts: [Tensor; 2],
    /// The sum over single answers of the divergence from the reference that their loss took.
    pub divergence: Tensor,
}

impl Measures {
    /// Returns the measures as one tensor `[9]`, float64.
    pub fn stacked(&self) -> Tensor {
        let Measures { answers, right, rewards: [chosen, rejected], logps, counts, divergence } = self;
        let all = [answers, right, chosen, rejected, &logps[0], &logps[1], &counts[0], &counts[1], divergence];
        Tensor::stack(&all, 0)
    }
}
