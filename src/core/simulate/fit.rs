//! Costs of a pool from the steps of a real run: non-negative least squares of relative errors, twice, without outliers.

use super::RoleCosts;
use super::costs::{pack_size, unit_size};
use crate::message::{Pack, Unit};
use crate::numbers::median;

/// The work that a pool computed in one step, and the time that all its ranks together were busy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observation {
    pub squares: f64,
    pub tokens: f64,
    pub batches: f64,
    /// Ranks of the pool: each pays once a step.
    pub ranks: f64,
    pub seconds: f64,
}

impl Observation {
    /// Returns the work of encoders in a step whose units these are, without ranks and times.
    pub fn of_units<'a>(units: impl Iterator<Item = &'a Unit>) -> Self {
        Self::sum(units.map(unit_size))
    }

    /// Returns the work of the foundation in a step whose packs these are, without ranks and times.
    pub fn of_packs<'a>(packs: impl Iterator<Item = &'a Pack>) -> Self {
        Self::sum(packs.map(pack_size))
    }

    /// Returns the same of frozen encoders: their batches only go forward, and so they do in a simulation.
    pub fn forward_alone(self) -> Self {
        let share = RoleCosts::default().forward;
        Self { squares: share * self.squares, tokens: share * self.tokens, batches: share * self.batches, ..self }
    }

    fn sum(sizes: impl Iterator<Item = (f64, f64)>) -> Self {
        sizes.fold(Self::default(), |sum, (squares, tokens)| Self {
            squares: sum.squares + squares,
            tokens: sum.tokens + tokens,
            batches: sum.batches + 1.0,
            ..sum
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FitError {
    #[error("{found} steps with times are too few to calibrate from; at least {MIN_STEPS} are needed")]
    TooFew { found: usize },
    #[error("no costs explain the steps' times")]
    Degenerate,
}

const MIN_STEPS: usize = 8;
const NUM_TERMS: usize = 4;
/// The ridge of the fit, relative to the terms' own size: costs of terms that the steps do not tell apart stay bounded.
const RIDGE: f64 = 1e-6;
/// Median deviations beyond which a step is an outlier: something else ran on the machine.
const OUTLIER: f64 = 4.0;

/// Fits costs; also the median relative error that is left. A single kind of batch does not tell the terms apart, and
/// predicts others badly: observe batches of several sizes.
///
/// # Errors
/// There are too few steps, or all times are 0.
pub fn fit(observations: &[Observation]) -> Result<(RoleCosts, f64), FitError> {
    let mut kept: Vec<Observation> =
        observations.iter().filter(|seen| seen.seconds > 0.0 && seen.seconds.is_finite()).copied().collect();
    if kept.len() < MIN_STEPS {
        return Err(FitError::TooFew { found: kept.len() });
    }
    let mut costs = solve(&kept).ok_or(FitError::Degenerate)?;
    let limit = OUTLIER * median_error(&costs, &kept);
    kept.retain(|seen| error(&costs, seen).abs() <= limit.max(1e-9));
    if kept.len() >= MIN_STEPS {
        costs = solve(&kept).ok_or(FitError::Degenerate)?;
    }
    let left = median_error(&costs, &kept);
    let [per_square, per_token, per_batch, per_step] = costs;
    Ok((RoleCosts { per_square, per_token, per_batch, per_step, ..RoleCosts::default() }, left))
}

fn terms(seen: &Observation) -> [f64; NUM_TERMS] {
    [seen.squares, seen.tokens, seen.batches, seen.ranks]
}

/// Returns the relative error of a prediction.
fn error(costs: &[f64; NUM_TERMS], seen: &Observation) -> f64 {
    costs.iter().zip(terms(seen)).map(|(cost, term)| cost * term).sum::<f64>() / seen.seconds - 1.0
}

/// Returns the median of the relative errors without their signs.
fn median_error(costs: &[f64; NUM_TERMS], seen: &[Observation]) -> f64 {
    median(&mut seen.iter().map(|one| error(costs, one).abs()).collect::<Vec<f64>>())
}

/// Returns the best over the sets of terms that are free: few enough to try them all.
fn solve(seen: &[Observation]) -> Option<[f64; NUM_TERMS]> {
    let rows: Vec<[f64; NUM_TERMS]> = seen.iter().map(|one| terms(one).map(|term| term / one.seconds)).collect();
    let scale: [f64; NUM_TERMS] =
        std::array::from_fn(|i| (rows.iter().map(|row| row[i] * row[i]).sum::<f64>() / rows.len() as f64).sqrt());
    let mut best: Option<(f64, [f64; NUM_TERMS])> = None;
    for free in 1_usize..1 << NUM_TERMS {
        let terms: Vec<usize> = (0..NUM_TERMS).filter(|&i| free >> i & 1 == 1).collect();
        if terms.iter().any(|&i| scale[i] == 0.0) {
            continue;
        }
        let scaled = |row: &[f64; NUM_TERMS], i: usize| row[i] / scale[i];
        let mut square: Vec<Vec<f64>> = Vec::new();
        for (at, &i) in terms.iter().enumerate() {
            let mut line: Vec<f64> = terms
                .iter()
                .map(|&j| rows.iter().map(|row| scaled(row, i) * scaled(row, j)).sum::<f64>() / rows.len() as f64)
                .collect();
            line[at] += RIDGE;
            line.push(rows.iter().map(|row| scaled(row, i)).sum::<f64>() / rows.len() as f64);
            square.push(line);
        }
        let Some(found) = eliminate(square).filter(|found| found.iter().all(|&value| value >= 0.0)) else {
            continue;
        };
        let mut costs = [0.0; NUM_TERMS];
        terms.iter().zip(&found).for_each(|(&i, value)| costs[i] = value / scale[i]);
        let misfit: f64 = seen.iter().map(|one| error(&costs, one).powi(2)).sum::<f64>() / rows.len() as f64
            + RIDGE * found.iter().map(|value| value * value).sum::<f64>();
        if best.is_none_or(|(least, _)| misfit < least) {
            best = Some((misfit, costs));
        }
    }
    best.map(|(_, costs)| costs)
}

/// Returns the solution of the equations whose last column is the right side (Gauss, with pivots).
fn eliminate(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let n = rows.len();
    for column in 0..n {
        let pivot = (column..n).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()))?;
        rows.swap(column, pivot);
        if rows[column][column].abs() < 1e-300 {
            return None;
        }
        let line = rows[column].clone();
        for row in rows.iter_mut().skip(column + 1) {
            let factor = row[column] / line[column];
            row.iter_mut().zip(&line).for_each(|(value, above)| *value -= factor * above);
        }
    }
    let mut x = vec![0.0; n];
    for row in (0..n).rev() {
        let known: f64 = (row + 1..n).map(|column| rows[row][column] * x[column]).sum();
        x[row] = (rows[row][n] - known) / rows[row][row];
    }
    Some(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Vec<Observation> {
        let step = |at: u32| {
            let (batches, len) = (f64::from(1 + at % 7), f64::from(100 + at * 37 % 900));
            Observation { squares: batches * len * len, tokens: batches * len, batches, ranks: 1.0, seconds: 0.0 }
        };
        (0..60).map(step).collect()
    }

    fn timed(costs: [f64; 4]) -> Vec<Observation> {
        let seconds = |seen: &Observation| terms(seen).iter().zip(costs).map(|(term, cost)| term * cost).sum();
        steps().iter().map(|seen| Observation { seconds: seconds(seen), ..*seen }).collect()
    }

    #[test]
    fn finds_the_costs_that_made_the_times_and_ignores_a_step_that_hung() {
        let mut seen = timed([2e-9, 3e-6, 4e-4, 1e-3]);
        seen[17].seconds *= 30.0;
        let (costs, left) = fit(&seen).unwrap();
        let found = [costs.per_square, costs.per_token, costs.per_batch, costs.per_step];
        for (found, wanted) in found.into_iter().zip([2e-9, 3e-6, 4e-4, 1e-3]) {
            assert!((found / wanted - 1.0).abs() < 0.02, "{found} {wanted}");
        }
        assert!(left < 1e-3);
    }

    /// The costs that the fit finds are those of forward and backward; frozen encoders are simulated with the forward's share.
    #[test]
    fn costs_of_frozen_encoders_are_those_of_both_ways() {
        let made = [2e-9, 3e-6, 4e-4, 1e-3];
        let seconds = |seen: &Observation| terms(seen).iter().zip(made).map(|(term, cost)| term * cost).sum();
        let frozen = steps().into_iter().map(Observation::forward_alone);
        let seen: Vec<Observation> = frozen.map(|seen| Observation { seconds: seconds(&seen), ..seen }).collect();
        let (costs, _) = fit(&seen).unwrap();
        assert!((costs.per_token / made[1] - 1.0).abs() < 0.02 && (costs.per_step / made[3] - 1.0).abs() < 0.02);
        let (of_steps, of_frozen) = (steps()[0], seen[0]);
        let simulated = costs.batch(of_steps.squares, of_steps.tokens);
        let forward = costs.forward * (simulated + (of_steps.batches - 1.0) * costs.per_batch);
        assert!(((forward + costs.per_step) / of_frozen.seconds - 1.0).abs() < 0.02);
    }

    #[test]
    fn costs_are_never_negative() {
        // Times that fall with the squares.
        let seen: Vec<Observation> = timed([0.0, 3e-6, 0.0, 0.0])
            .iter()
            .map(|s| Observation { seconds: s.seconds - 1e-9 * s.squares, ..*s })
            .collect();
        let (costs, _) = fit(&seen).unwrap();
        assert_eq!(costs.per_square, 0.0);
        assert!(costs.per_token > 2e-6 && costs.per_token < 3e-6);
    }

    #[test]
    fn too_little_is_said() {
        assert!(matches!(fit(&timed([1.0; 4])[..5]), Err(FitError::TooFew { found: 5 })));
        assert!(matches!(fit(&steps()), Err(FitError::TooFew { found: 0 })));
    }
}
