//! Cost of sequences and of media items: `a · Σ l² + b · Σ l + c · n`. Fixed point, so that sums do not depend on their order.

use crate::message::{ItemMeta, SampleMeta, Tower};
use serde::{Deserialize, Serialize};
use std::iter::Sum;
use std::ops::AddAssign;

/// Fractional bits of a coefficient.
const FRACTION: u32 = 16;
/// Maximum cost of a piece of work, so that sums of many do not overflow a `u64`.
const MOST: u128 = 1 << 56;

/// Cost of `n` sequences of `l` tokens each: `a · Σ l · min(l, window) + b · Σ l + c · n`.
///
/// The coefficients are in relative units if derived from a model's shape, and in picoseconds if fitted: costs of two models are not
/// comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostModel {
    a: u64,
    b: u64,
    c: u64,
    /// Cost of a batch in addition to its content, in tokens.
    #[serde(default)]
    batch_tokens: u64,
    /// Maximum number of tokens (patches of an item) that attend to each other; `None`: the whole sequence (frame).
    pub window: Option<u32>,
}

/// The quantities in which cost is linear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// `Σ l · min(l, window)`: pairs that attend to each other, not halved for causal masks.
    pub pairs: u64,
    /// `Σ l`.
    pub tokens: u64,
    /// Number of sequences, or of an encoder's items.
    pub count: u64,
}

/// Approximate number of values per patch of published vision towers: 588 (14 × 14 pixels) to 1,536 (two frames of 16 × 16).
const VALUES_A_PATCH: u64 = 1024;

impl CostModel {
    /// Units of cost per second, for fitted models.
    pub const PER_SECOND: f64 = 1e12;

    /// Creates a model. Negative coefficients count as 0; the resolution is 2⁻¹⁶.
    pub fn new(a: f64, b: f64, c: f64) -> Self {
        let fixed = |value: f64| (value * f64::from(1 << FRACTION)).round() as u64;
        Self { a: fixed(a), b: fixed(b), c: fixed(c), batch_tokens: 0, window: None }
    }

    /// Returns the cost model of a decoder's samples by shape: `n² + 12 · hidden_size · n`.
    ///
    /// A layer spends about `24 · hidden_size²` operations a token in its matrices and `2 · hidden_size · n` in causal
    /// attention over a sample of `n` tokens (Kaplan et al. 2020, appendix B): their ratio is `n / (12 · hidden_size)`.
    pub fn decoder(hidden_size: u64) -> Self {
        Self::transformer(12 * hidden_size)
    }

    /// Returns the cost model of samples by the length at which attention costs as much as the matrix products.
    pub fn transformer(even_length: u64) -> Self {
        Self::new(1.0, even_length as f64, 0.0)
    }

    /// Returns the cost model of an encoder's items by their rows alone ([`Tower::rows`]).
    pub fn rows() -> Self {
        Self::new(0.0, 1.0, 0.0)
    }

    /// Sets the cost of a batch in addition to its items, in tokens.
    pub fn with_batch(self, batch_tokens: u64) -> Self {
        Self { batch_tokens, ..self }
    }

    /// Returns the cost of a batch in addition to its items: at least what an item costs in addition to its tokens.
    pub fn batch(self) -> u64 {
        self.cost(Work { tokens: self.batch_tokens, count: 1, pairs: 0 })
    }

    /// Limits attention to a window of this many tokens; `None`: all tokens attend.
    pub fn with_window(self, window: Option<u32>) -> Self {
        Self { window, ..self }
    }

    /// Returns `a`, `b` and `c`.
    pub fn coefficients(self) -> [f64; 3] {
        [self.a, self.b, self.c].map(|fixed| fixed as f64 / f64::from(1 << FRACTION))
    }

    /// Returns the cost of work, in units of the model; at most 2⁵⁶, so that sums fit.
    pub fn cost(self, work: Work) -> u64 {
        let terms = [(self.a, work.pairs), (self.b, work.tokens), (self.c, work.count)];
        let sum: u128 = terms.iter().map(|&(factor, amount)| u128::from(factor) * u128::from(amount)).sum();
        (sum >> FRACTION).min(MOST) as u64
    }

    /// Returns the cost of one sample, by its documents. Packing adds nothing: documents do not attend to each other.
    pub fn sample(self, sample: &SampleMeta) -> u64 {
        self.cost(self.sample_work(sample))
    }

    /// Returns the cost of a sequence of that many tokens; an empty one costs as much as one token.
    pub fn sequence(self, num_tokens: u32) -> u64 {
        self.cost(self.sequence_work(num_tokens))
    }

    /// Returns the cost of one media item: frames of a video do not attend to each other, nor do an encoder's windows.
    pub fn item(self, item: &ItemMeta) -> u64 {
        self.cost(self.item_work(item))
    }

    /// Returns the work of a sample: its documents do not attend to each other.
    pub fn sample_work(self, sample: &SampleMeta) -> Work {
        sample.document_lens().iter().map(|&len| self.sequence_work(len)).sum()
    }

    /// An answer that a reference model reads behind pictures, and a text whose grid tells its tokens, are sequences of as many tokens as
    /// the grid has rows, and their values are mostly those of patches: `VALUES_A_PATCH` of them are about one, which costs about a token.
    pub fn item_work(self, item: &ItemMeta) -> Work {
        let has_patches = match item.tower {
            Tower::Reference => item.grid.t > 1,
            Tower::Text => item.grid.h > 1,
            _ => false,
        };
        if has_patches {
            let patches = item.grid.num_cells() as u64 / VALUES_A_PATCH;
            let sequence = self.sequence_work(item.grid.h);
            return Work { tokens: sequence.tokens + patches, ..sequence };
        }
        let frame = u64::from(item.grid.h) * u64::from(item.grid.w);
        let tokens = item.grid.num_cells() as u64;
        Work { pairs: tokens.saturating_mul(self.reach(frame)), tokens, count: 1 }
    }

    fn sequence_work(self, num_tokens: u32) -> Work {
        let tokens = u64::from(num_tokens.max(1));
        Work { pairs: tokens * self.reach(tokens), tokens, count: 1 }
    }

    fn reach(self, length: u64) -> u64 {
        self.window.map_or(length, |window| length.min(u64::from(window.max(1))))
    }
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.pairs = self.pairs.saturating_add(other.pairs);
        self.tokens += other.tokens;
        self.count += other.count;
    }
}

impl Sum for Work {
    fn sum<I: Iterator<Item = Self>>(works: I) -> Self {
        works.fold(Self::default(), |mut sum, work| {
            sum += work;
            sum
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Grid, SampleId};

    #[test]
    fn attention_makes_one_long_sample_dearer_than_two_halves() {
        let cost = CostModel::decoder(64);
        assert_eq!(cost.sequence(2000), 2000 * 2000 + 12 * 64 * 2000);
        assert!(cost.sequence(2000) > 2 * cost.sequence(1000));
        assert_eq!(cost.sequence(0), cost.sequence(1));
        assert!(cost.sequence(u32::MAX) >= cost.sequence(1 << 20));
    }

    #[test]
    fn beyond_the_window_cost_is_linear() {
        let cost = CostModel::decoder(64).with_window(Some(100));
        assert_eq!(cost.sequence(100), CostModel::decoder(64).sequence(100));
        assert_eq!(cost.sequence(3000) - cost.sequence(2000), cost.sequence(2000) - cost.sequence(1000));
    }

    #[test]
    fn frames_and_windows_do_not_attend_to_each_other() {
        let item = |t, h, w| ItemMeta { tower: Tower::Vision, grid: Grid { t, h, w }, num_features: 1 };
        let cost = CostModel::new(1.0, 0.0, 0.0);
        assert_eq!(cost.item(&item(1, 20, 10)), 200 * 200);
        assert_eq!(cost.item(&item(3, 20, 10)), 3 * 200 * 200);
        assert_eq!(cost.with_window(Some(64)).item(&item(3, 20, 10)), 3 * 200 * 64);
        assert_eq!(CostModel::rows().item(&item(3, 20, 10)), 600);
    }

    #[test]
    fn an_answer_behind_pictures_costs_its_tokens_and_about_its_patches() {
        let item = |t| ItemMeta { tower: Tower::Reference, grid: Grid { t, h: 500, w: 1 }, num_features: 1 };
        let cost = CostModel::new(0.0, 1.0, 0.0);
        assert_eq!(cost.item(&item(1)), 500);
        assert_eq!(cost.item(&item(6)), 502);
        // 1,024 patches of 1,176 values.
        assert_eq!(cost.item(&item(2414)), 500 + 1178);
        assert_eq!(CostModel::new(1.0, 0.0, 0.0).item(&item(2414)), 500 * 500);
    }

    #[test]
    fn a_text_whose_grid_tells_its_tokens_costs_those_and_about_its_patches() {
        let item = |t, h| ItemMeta { tower: Tower::Text, grid: Grid { t, h, w: 1 }, num_features: 1 };
        let cost = CostModel::new(0.0, 1.0, 0.0);
        assert_eq!([cost.item(&item(500, 1)), cost.item(&item(2414, 500))], [500, 500 + 1178]);
    }

    #[test]
    fn a_sample_costs_what_its_documents_cost() {
        let cost = CostModel::new(0.5, 3.0, 7.0);
        let sample = |documents: &[u32]| {
            let num_tokens = documents.iter().sum();
            let documents = if documents.len() > 1 { documents.to_vec() } else { Vec::new() };
            SampleMeta { documents, ..SampleMeta::of_tokens(SampleId(0), num_tokens, 1) }
        };
        assert_eq!(cost.sample(&sample(&[30])), cost.sequence(30));
        assert_eq!(cost.sample(&sample(&[10, 20])), cost.sequence(10) + cost.sequence(20));
    }

    #[test]
    fn the_cost_of_a_sum_is_the_sum_of_costs() {
        let cost = CostModel::new(0.5, 3.0, 7.0);
        let work: Work = [10, 20, 30].map(|tokens| cost.sequence_work(tokens)).into_iter().sum();
        assert_eq!(work, Work { pairs: 1400, tokens: 60, count: 3 });
        assert_eq!(cost.cost(work), 700 + 180 + 21);
    }
}
