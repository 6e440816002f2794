//! Goodput, the same for the page, `top`, Prometheus, `compare` and a run's last line: the share of the time that a run was active in
//! which it computed useful steps.

use super::metrics::StepMetrics;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes at the end of a metrics file in which its last line is looked for.
const TAIL: u64 = 1 << 20;

/// The times that goodput is computed from, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Goodput {
    /// Spent on steps that were applied and are part of the run: steps that were computed again count once.
    useful: f64,
    /// The time from each start of the run to the last step that it computed: building engines, evaluations, checkpoints that the run
    /// waited for, steps that were skipped or computed again. The time between a run's end and its next start does not count.
    active: f64,
}

impl Goodput {
    /// Adds up the steps of a run, as `metrics.jsonl` has them.
    pub fn of(steps: &[StepMetrics]) -> Self {
        let mut goodput = Self::default();
        steps.iter().for_each(|step| goodput.add(step));
        goodput
    }

    /// Counts one more step.
    pub fn add(&mut self, step: &StepMetrics) {
        if !step.skipped {
            self.useful += step.step_ms / 1e3;
        }
        self.active = step.active_s;
    }

    /// Returns the goodput from 0 to 1; `None` where no step says how long the run was active.
    pub fn share(&self) -> Option<f64> {
        (self.active > 0.0).then(|| (self.useful / self.active).min(1.0))
    }

    /// Formats the goodput as `goodput 93 %: useful steps took 12.3 s of 13.2 s`.
    pub fn text(&self) -> Option<String> {
        let share = self.share()?;
        let (useful, active) = (self.useful, self.active);
        Some(format!("goodput {:.0} %: useful steps took {useful:.1} s of {active:.1} s", 100.0 * share))
    }
}

/// Returns how long a run was active that left this metrics file, also where its last steps are computed again: zero where there is no
/// such file.
pub fn active_before(path: &Path) -> f64 {
    let tail = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let tail = tail().unwrap_or_default();
    let last = tail.lines().rev().find_map(|line| serde_json::from_str::<StepMetrics>(line).ok());
    last.map_or(0.0, |step| step.active_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64, step_ms: f64, active_s: f64) -> StepMetrics {
        StepMetrics { step, step_ms, active_s, ..StepMetrics::default() }
    }

    #[test]
    fn steps_that_were_computed_again_and_skipped_ones_are_lost_time() {
        // Two steps of a second after a second of building; then a restart that computes the second one again.
        let first = [step(0, 1e3, 2.0), step(1, 1e3, 3.0)];
        assert_eq!(Goodput::of(&first).share(), Some(2.0 / 3.0));
        let skipped = StepMetrics { skipped: true, ..step(2, 1e3, 6.0) };
        let all = [first[0].clone(), step(1, 1e3, 5.0), skipped];
        assert_eq!(Goodput::of(&all).text().unwrap(), "goodput 33 %: useful steps took 2.0 s of 6.0 s");
        assert_eq!(Goodput::of(&[step(0, 1e3, 0.0)]).share(), None);
    }

    #[test]
    fn the_last_whole_line_says_how_long_a_run_was_active() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        assert_eq!(active_before(&path), 0.0);
        let line = |at| serde_json::to_string(&step(0, 1.0, at)).unwrap();
        std::fs::write(&path, format!("{}\n{}\n{{\"step\":2,\"act", line(1.0), line(2.5))).unwrap();
        assert_eq!(active_before(&path), 2.5);
    }
}
