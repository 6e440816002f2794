//! Fits a cost model to measured times during a run.

use super::{CostModel, Work};
use serde::{Deserialize, Serialize};

/// Least squares with forgetting: `seconds ≈ a · pairs + b · tokens + c · count`, no coefficient below 0.
///
/// Errors are relative, as noise is: a step that hung ten times as long counts little.
///
/// Kept as moments (the information form of recursive least squares), so that an observation is a rank-one update and the non-negative
/// solution is exact: the best over the eight sets of coefficients that are free. The shape of the prior decides between terms that the
/// observations do not tell apart, such as tokens and sequences where all packs are alike: it weighs as much as the times are noisy. The
/// state is part of a checkpoint, so a resumed run fits the same numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    prior: CostModel,
    /// Factor by which an observation's weight falls with each new one.
    forgetting: f64,
    num_observations: u64,
    /// `Σ x xᵀ` and `Σ x`, `x` being work over seconds, forgotten alike.
    square: [[f64; 3]; 3],
    cross: [f64; 3],
    /// `Σ 1`, forgotten alike.
    weight: f64,
}

/// Number of observations before which the prior is used.
const MIN_OBSERVATIONS: u64 = 8;
/// Minimum relative variance assumed for times.
const MIN_VARIANCE: f64 = 1e-8;

impl Fit {
    /// Creates a fit; `half_life` is the number of observations after which the weight of one is halved.
    pub fn new(prior: CostModel, half_life: f64) -> Self {
        let forgetting = 0.5_f64.powf(1.0 / half_life.max(1.0));
        let (square, cross) = ([[0.0; 3]; 3], [0.0; 3]);
        Self { prior, forgetting, num_observations: 0, square, cross, weight: 0.0 }
    }

    /// Adds one replica's work and its time. Times that are not positive numbers are ignored.
    pub fn observe(&mut self, work: Work, seconds: f64) {
        if !(seconds.is_finite() && seconds > 0.0) || work == Work::default() {
            return;
        }
        let x = values(work).map(|value| value / seconds);
        for i in 0..3 {
            for j in 0..3 {
                self.square[i][j] = self.forgetting * self.square[i][j] + x[i] * x[j];
            }
            self.cross[i] = self.forgetting * self.cross[i] + x[i];
        }
        self.weight = self.forgetting * self.weight + 1.0;
        self.num_observations += 1;
    }

    /// Returns how many observations the fit is based on, however old.
    pub fn num_observations(&self) -> u64 {
        self.num_observations
    }

    /// Returns the fitted model, in picoseconds, or the prior, in its own units, before there are enough observations.
    pub fn model(&self) -> CostModel {
        match self.solve() {
            Some(seconds) => {
                let [a, b, c] = seconds.map(|coefficient| coefficient * CostModel::PER_SECOND);
                CostModel::new(a, b, c).with_window(self.prior.window)
            }
            None => self.prior,
        }
    }

    /// Returns the predicted time; `None` before there are enough observations.
    pub fn seconds(&self, work: Work) -> Option<f64> {
        let x = values(work);
        Some(self.solve()?.iter().zip(x).map(|(coefficient, x)| coefficient * x).sum())
    }

    /// Returns the coefficients in seconds.
    fn solve(&self) -> Option<[f64; 3]> {
        if self.num_observations < MIN_OBSERVATIONS {
            return None;
        }
        // In relative terms everywhere: pairs are millions of times as many as sequences. By Bayes' rule a prior that
        // may be off by 100 % weighs as the variance of the times over their number.
        let scale: [f64; 3] = std::array::from_fn(|i| self.square[i][i].max(f64::MIN_POSITIVE).sqrt());
        let free = self.ridge(&scale, MIN_VARIANCE / self.weight);
        let explained: f64 = (0..3).map(|i| self.cross[i] * free[i]).sum();
        let variance = (1.0 - explained / self.weight).max(MIN_VARIANCE);
        Some(self.ridge(&scale, variance / self.weight))
    }

    /// Minimizes the squared errors plus `weight` times the squared distance from the prior, each coefficient by its `scale`.
    fn ridge(&self, scale: &[f64; 3], weight: f64) -> [f64; 3] {
        let prior = self.scaled_prior();
        let mut square = [[0.0; 3]; 3];
        let mut cross = [0.0; 3];
        for i in 0..3 {
            for j in 0..3 {
                square[i][j] = self.square[i][j] / (scale[i] * scale[j]);
            }
            square[i][i] += weight;
            cross[i] = self.cross[i] / scale[i] + weight * prior[i] * scale[i];
        }
        let best = least_squares(&square, &cross);
        std::array::from_fn(|i| best[i] / scale[i])
    }

    /// Returns the prior's coefficients in seconds: times the factor that explains the times best.
    fn scaled_prior(&self) -> [f64; 3] {
        let prior = self.prior.coefficients();
        let crossed: f64 = (0..3).map(|i| prior[i] * self.cross[i]).sum();
        let squared: f64 = (0..3)
            .flat_map(|i| (0..3).map(move |j| (i, j)))
            .map(|(i, j)| prior[i] * self.square[i][j] * prior[j])
            .sum();
        let factor = if squared > 0.0 { crossed / squared } else { 0.0 };
        prior.map(|coefficient| coefficient * factor)
    }
}

fn values(work: Work) -> [f64; 3] {
    [work.pairs as f64, work.tokens as f64, work.count as f64]
}

/// Returns the non-negative `x` that minimizes `½ xᵀ S x − rᵀ x`; `S` is positive definite with ones (or more) on its diagonal.
fn least_squares(square: &[[f64; 3]; 3], cross: &[f64; 3]) -> [f64; 3] {
    let mut best = ([0.0; 3], 0.0);
    for free in 1_usize..8 {
        let Some(x) = solve_free(square, cross, free) else { continue };
        if x.iter().any(|&value| value < 0.0) {
            continue;
        }
        // At the solution of the free coefficients the objective is −½ rᵀ x.
        let objective: f64 = -(0..3).map(|i| cross[i] * x[i]).sum::<f64>();
        if objective < best.1 {
            best = (x, objective);
        }
    }
    best.0
}

/// Returns the solution with the coefficients outside the set `free` at 0, by Cholesky; `None`: the set is not independent.
fn solve_free(square: &[[f64; 3]; 3], cross: &[f64; 3], free: usize) -> Option<[f64; 3]> {
    let indices: Vec<usize> = (0..3).filter(|i| free >> i & 1 == 1).collect();
    let n = indices.len();
    let mut lower = [[0.0; 3]; 3];
    let mut y = [0.0; 3];
    for row in 0..n {
        for column in 0..=row {
            let known: f64 = (0..column).map(|k| lower[row][k] * lower[column][k]).sum();
            let rest = square[indices[row]][indices[column]] - known;
            if row == column {
                if rest <= 0.0 {
                    return None;
                }
                lower[row][row] = rest.sqrt();
            } else {
                lower[row][column] = rest / lower[column][column];
            }
        }
        let known: f64 = (0..row).map(|k| lower[row][k] * y[k]).sum();
        y[row] = (cross[indices[row]] - known) / lower[row][row];
    }
    let mut x = [0.0; 3];
    for row in (0..n).rev() {
        let known: f64 = (row + 1..n).map(|k| lower[k][row] * x[indices[k]]).sum();
        x[indices[row]] = (y[row] - known) / lower[row][row];
    }
    Some(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRUE: [f64; 3] = [2e-9, 3e-6, 4e-5];

    fn seconds(work: Work, coefficients: [f64; 3]) -> f64 {
        values(work).iter().zip(coefficients).map(|(x, coefficient)| x * coefficient).sum()
    }

    /// Generates the work of steps: samples of many lengths.
    fn works() -> impl Strategy<Value = Vec<Work>> {
        let step = prop::collection::vec(10_u32..6000, 2..20).prop_map(|lengths| {
            let cost = CostModel::decoder(1);
            let of = |&num_tokens: &u32| {
                let tokens = u64::from(num_tokens);
                Work { pairs: tokens * tokens, tokens, count: 1 }
            };
            let work: Work = lengths.iter().map(of).sum();
            debug_assert_eq!(cost.cost(work), work.pairs + 12 * work.tokens);
            work
        });
        prop::collection::vec(step, 60..100)
    }

    fn fitted(works: &[Work], coefficients: [f64; 3], noise: &[f64]) -> Fit {
        let mut fit = Fit::new(CostModel::decoder(256), 50.0);
        for (work, noise) in works.iter().zip(noise.iter().cycle()) {
            fit.observe(*work, seconds(*work, coefficients) * (1.0 + noise));
        }
        fit
    }

    /// Returns the largest relative error of predictions.
    fn error(fit: &Fit, works: &[Work], coefficients: [f64; 3]) -> f64 {
        let of = |work: &Work| fit.seconds(*work).unwrap() / seconds(*work, coefficients) - 1.0;
        works.iter().map(|work| of(work).abs()).fold(0.0, f64::max)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn predicts_what_it_saw(works in works()) {
            prop_assert!(error(&fitted(&works, TRUE, &[0.0]), &works, TRUE) < 2e-3);
        }

        #[test]
        fn noise_averages_out(works in works(), noise in prop::collection::vec(-0.05_f64..0.05, 60..61)) {
            let fit = fitted(&works, TRUE, &noise);
            prop_assert!(error(&fit, &works, TRUE) < 0.15);
            prop_assert!(fit.solve().unwrap().iter().all(|&coefficient| coefficient >= 0.0));
        }

        #[test]
        fn what_has_changed_is_forgotten(works in works(), factor in 0.3_f64..3.0) {
            let now = TRUE.map(|coefficient| coefficient * factor);
            let mut fit = Fit::new(CostModel::decoder(256), 10.0);
            works.iter().for_each(|work| fit.observe(*work, seconds(*work, TRUE)));
            for _ in 0..2 {
                works.iter().for_each(|work| fit.observe(*work, seconds(*work, now)));
            }
            prop_assert!(error(&fit, &works, now) < 0.01);
        }

        #[test]
        fn no_other_coefficients_fit_better(
            rows in prop::collection::vec((prop::array::uniform3(0.1_f64..1.0), -1.0_f64..1.0), 3..12),
            other in prop::array::uniform3(0.0_f64..2.0),
        ) {
            let (mut square, mut cross) = ([[0.0; 3]; 3], [0.0; 3]);
            for (x, y) in &rows {
                for i in 0..3 {
                    for j in 0..3 {
                        square[i][j] += x[i] * x[j];
                    }
                    cross[i] += x[i] * y;
                }
            }
            (0..3).for_each(|i| square[i][i] += 0.01);
            let objective = |x: [f64; 3]| {
                let quadratic: f64 = (0..3).map(|i| (0..3).map(|j| x[i] * square[i][j] * x[j]).sum::<f64>()).sum();
                quadratic / 2.0 - (0..3).map(|i| cross[i] * x[i]).sum::<f64>()
            };
            let best = least_squares(&square, &cross);
            prop_assert!(best.iter().all(|&value| value >= 0.0));
            prop_assert!(objective(best) <= objective(other) + 1e-9);
            let near: [f64; 3] = std::array::from_fn(|i| (best[i] + (other[i] - 1.0) * 1e-3).max(0.0));
            prop_assert!(objective(best) <= objective(near) + 1e-9);
        }
    }

    #[test]
    fn where_packs_are_alike_the_prior_tells_tokens_from_sequences() {
        let work = Work { pairs: 8 << 20, tokens: 8 << 10, count: 8 };
        let mut fit = Fit::new(CostModel::new(1.0, 3000.0, 0.0), 50.0);
        (0..20).for_each(|_| fit.observe(work, 0.5));
        let [a, b, c] = fit.solve().unwrap();
        assert!((b / a / 3000.0 - 1.0).abs() < 0.01 && c < 1e-3 * 0.5 / 8.0, "{a} {b} {c}");
        assert!((fit.seconds(work).unwrap() - 0.5).abs() < 1e-3);
        let picoseconds = fit.model().cost(work) as f64;
        assert!((picoseconds / CostModel::PER_SECOND - 0.5).abs() < 2e-3, "{picoseconds}");
    }

    #[test]
    fn one_step_that_hung_changes_little() {
        let works: Vec<Work> =
            (1..60).map(|n| Work { pairs: n * n * 10_000, tokens: n * 100 + n * n % 7, count: 1 + n % 5 }).collect();
        let mut fit = fitted(&works, TRUE, &[0.0]);
        fit.observe(works[30], 10.0 * seconds(works[30], TRUE));
        assert!(error(&fit, &works[20..], TRUE) < 0.02);
    }

    #[test]
    fn the_prior_counts_until_enough_was_seen() {
        let prior = CostModel::decoder(64).with_window(Some(128));
        let mut fit = Fit::new(prior, 10.0);
        for tokens in 1..MIN_OBSERVATIONS {
            fit.observe(Work { pairs: tokens * tokens, tokens, count: 1 }, tokens as f64);
            assert_eq!(fit.model(), prior);
        }
        fit.observe(Work { pairs: 1, tokens: 1, count: 1 }, f64::NAN);
        fit.observe(Work { pairs: 1, tokens: 1, count: 1 }, 0.0);
        assert_eq!(fit.model(), prior);
        fit.observe(Work { pairs: 1, tokens: 1, count: 1 }, 1.0);
        assert_ne!(fit.model(), prior);
        assert_eq!(fit.model().window, prior.window);
    }
}
