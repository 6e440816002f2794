//! What a sample costs a foundation replica, in relative units. Integers, so that sums do not depend on their order.

/// Cost of a sequence of `n` tokens: `12 · hidden_size · n + n²`.
///
/// A decoder layer spends about `24 · hidden_size²` operations a token in its matrices and `2 · hidden_size · n` in
/// causal attention over a sample of `n` tokens (Kaplan et al. 2020, appendix B): their ratio is `n / (12 · hidden_size)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    pub hidden_size: u64,
}

impl CostModel {
    /// Cost of one sample. Packing adds nothing: samples do not attend to each other.
    pub fn sample(self, num_tokens: u32) -> u64 {
        let tokens = u64::from(num_tokens.max(1));
        tokens * (12 * self.hidden_size) + tokens * tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_makes_one_long_sample_dearer_than_two_halves() {
        let cost = CostModel { hidden_size: 64 };
        assert!(cost.sample(2000) > 2 * cost.sample(1000));
        assert_eq!(cost.sample(0), cost.sample(1));
    }
}
