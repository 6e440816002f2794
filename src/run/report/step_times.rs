//! The times that steps took, and the time that a run was active.

use loongforge_core::schedule::StepSummary;
use std::time::Instant;

/// Fewer steps say nothing of the slow ones.
const MIN_STEPS: usize = 20;

/// Holds the times of a run's steps.
pub(super) struct StepTimes {
    begun: Instant,
    /// Seconds that earlier starts of the run were active.
    active_before: f64,
    last_step: Instant,
    /// Seconds of every step but the first, which waits for the run's beginning.
    seconds: Vec<f64>,
    num_steps: usize,
}

impl StepTimes {
    /// Begins now; `active_before`: seconds that earlier starts of the run were active.
    pub fn new(active_before: f64) -> Self {
        let now = Instant::now();
        Self { begun: now, active_before, last_step: now, seconds: Vec::new(), num_steps: 0 }
    }

    /// Returns the seconds of a step that ends now; the first one's time begins when its engines were ready.
    pub fn ended(&mut self, summary: &StepSummary) -> f64 {
        let mut seconds = self.last_step.elapsed().as_secs_f64();
        if self.num_steps == 0 {
            // Engines were built before.
            seconds = seconds.min(since_ready(summary));
        }
        self.last_step = Instant::now();
        if self.num_steps > 0 {
            self.seconds.push(seconds);
        }
        self.num_steps += 1;
        seconds
    }

    /// Lets the next step begin now.
    pub fn restart(&mut self) {
        self.last_step = Instant::now();
    }

    /// Returns for how many seconds the run was active, earlier starts included.
    pub fn active(&self) -> f64 {
        self.active_before + self.begun.elapsed().as_secs_f64()
    }

    /// Returns how long steps took: the median, and what the slowest of twenty took at least.
    pub fn text(&mut self) -> Option<String> {
        durations(&mut self.seconds)
    }
}

/// Returns the seconds since the first engine was ready, of a start's first step; endless where no engine says.
fn since_ready(summary: &StepSummary) -> f64 {
    let whole = summary.timings.iter().map(|(_, timings)| timings.busy + timings.idle);
    whole.filter(|&whole| whole > 0.0).reduce(f64::max).unwrap_or(f64::INFINITY)
}

fn durations(seconds: &mut [f64]) -> Option<String> {
    if seconds.len() < MIN_STEPS {
        return None;
    }
    seconds.sort_by(f64::total_cmp);
    let at = |part: usize| 1e3 * seconds[(seconds.len() * part / 100).min(seconds.len() - 1)];
    Some(format!("median step {:.0} ms, slowest 5 % over {:.0} ms", at(50), at(95)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_steps_are_told_apart_from_the_median() {
        assert_eq!(durations(&mut [1.0; 5]), None);
        let mut seconds = [0.044; 40];
        seconds[3..6].fill(0.31);
        assert_eq!(durations(&mut seconds).unwrap(), "median step 44 ms, slowest 5 % over 310 ms");
    }
}
