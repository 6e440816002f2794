//! Describes how far a run is: a bar in a terminal, plain lines elsewhere.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::console::Console;
use super::figures::compact;
use super::metrics::{PairMetrics, StepMetrics};

/// Figures are means over this many steps.
const WINDOW: usize = 20;
/// Plain lines come no more often.
const LINE_INTERVAL: Duration = Duration::from_secs(2);

/// Shows steps as they are done.
pub struct Progress {
    console: Console,
    bar: Option<ProgressBar>,
    recent: Recent,
    every_steps: u64,
    last_line: Option<Instant>,
}

impl Progress {
    /// `first_step` of `num_steps` is the next; plain lines come every `every_steps` at most.
    pub fn start(console: &Console, first_step: u64, num_steps: u64, every_steps: u64) -> Self {
        let bar = console.is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:16.green/black.bright} {wide_msg}")
                .expect("the template is ours")
                .progress_chars("━╸━");
            let bar = console.bars().add(ProgressBar::new(num_steps).with_style(style));
            bar.set_position(first_step);
            bar
        });
        let recent = Recent { num_steps, epochs_per_step: None, steps: VecDeque::with_capacity(WINDOW) };
        Self { console: console.clone(), bar, recent, every_steps: every_steps.max(1), last_line: None }
    }

    /// Says how far the run is in its epochs, of which a step is this part; `None`: they are not known.
    pub fn in_epochs(mut self, per_step: Option<f64>) -> Self {
        self.recent.epochs_per_step = per_step;
        self
    }

    /// A step is done.
    pub fn step(&mut self, metrics: &StepMetrics) {
        let done = metrics.step + 1;
        self.recent.push(metrics.clone());
        if let Some(bar) = &self.bar {
            bar.set_message(self.recent.describe());
            bar.set_position(done);
        }
        let due = self.last_line.is_none_or(|last| last.elapsed() >= LINE_INTERVAL);
        if done == self.recent.num_steps || (done.is_multiple_of(self.every_steps) && due) {
            let text = self.recent.describe();
            match &self.bar {
                // The log file has the lines that the bar stands for.
                Some(_) => self.console.note(&text),
                None => self.console.line(&text),
            }
            self.last_line = Some(Instant::now());
        }
    }

    /// Leaves the last figures on the screen.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.abandon();
        }
    }
}

/// The last steps, and what is said of them.
struct Recent {
    num_steps: u64,
    epochs_per_step: Option<f64>,
    steps: VecDeque<StepMetrics>,
}

impl Recent {
    fn push(&mut self, metrics: StepMetrics) {
        if self.steps.len() == WINDOW {
            self.steps.pop_front();
        }
        self.steps.push_back(metrics);
    }

    fn mean(&self, value: impl Fn(&StepMetrics) -> f64) -> f64 {
        let finite = || self.steps.iter().map(&value).filter(|value| value.is_finite());
        // NaN of no value.
        finite().sum::<f64>() / finite().count() as f64
    }

    fn describe(&self) -> String {
        let Some(last) = self.steps.back() else { return String::new() };
        let done = last.step + 1;
        let step_s = self.mean(|step| step.step_ms) / 1e3;
        let rate = |count: f64| if step_s > 0.0 { count / step_s } else { 0.0 };
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        let epoch = self
            .epochs_per_step
            .map_or(String::new(), |epochs| format!("  epoch {}", hundredths(done as f64 * epochs)));
        let mut parts = vec![
            format!("step {done}/{}{epoch}", self.num_steps),
            format!("loss {:.4}", self.mean(|step| step.loss)),
            format!("{} tokens/s", compact(rate(self.mean(|step| step.tokens as f64)))),
            format!("ETA {}", clock(self.num_steps.saturating_sub(done) as f64 * step_s)),
            format!("grad {:.3}", self.mean(|step| step.grad_norm)),
            format!("lr {:.2e}", last.learning_rate),
        ];
        if last.pairs.is_some() {
            let mean = |value: fn(&PairMetrics) -> f64| self.mean(|step| step.pairs.as_ref().map_or(f64::NAN, value));
            parts.insert(2, format!("accuracy {}", percent(mean(|pairs| pairs.accuracy))));
            // Of answers that are all good, or all bad, there is none.
            let margin = mean(PairMetrics::margin);
            if margin.is_finite() {
                parts.insert(3, format!("margin {margin:.3}"));
            }
        }
        // Pictures, recordings, texts of a text tower: a language model has none.
        if self.steps.iter().any(|step| step.images > 0) {
            parts.push(format!("{} items/s", compact(rate(self.mean(|step| step.images as f64)))));
        }
        if self.steps.iter().any(|step| step.images > 0 || step.encoder_busy > 0.0) {
            parts.push(format!("encoder {}", percent(self.mean(|step| step.encoder_busy))));
        }
        parts.push(format!("foundation {}", percent(self.mean(|step| step.foundation_busy))));
        parts.extend(last.mfu.map(|_| format!("MFU {}", percent(self.mean(|step| step.mfu.unwrap_or(f64::NAN))))));
        if last.bad_samples > 0 {
            parts.push(format!("bad samples {}", last.bad_samples));
        }
        if last.too_long > 0 {
            parts.push(format!("too long {}", last.too_long));
        }
        parts.join("  ")
    }
}

/// Writes how many epochs are done, rounded down: none is done before its last step.
fn hundredths(epochs: f64) -> String {
    // A product such as 27 * (8 / 270) may be a little below its true value.
    format!("{:.2}", (epochs * 100.0 + 1e-6).floor() / 100.0)
}

/// Writes seconds as 0:07, 12:34, 3:00:00.
pub fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_means_over_the_last_steps() {
        let mut recent = Recent { num_steps: 500, epochs_per_step: None, steps: VecDeque::new() };
        assert_eq!(recent.describe(), "");
        for step in 0..100 {
            let (loss, step_ms) = if step < 80 { (100.0, 9000.0) } else { (0.5, 100.0) };
            recent.push(StepMetrics {
                step,
                loss: if step == 99 { f64::NAN } else { loss },
                step_ms,
                tokens: 1234,
                images: 64,
                grad_norm: 0.25,
                learning_rate: 3e-4,
                encoder_busy: 0.71,
                foundation_busy: 0.88,
                ..Default::default()
            });
        }
        assert_eq!(
            recent.describe(),
            "step 100/500  loss 0.5000  12.3k tokens/s  ETA 0:40  grad 0.250  lr 3.00e-4  640 items/s  encoder 71%  \
             foundation 88%"
        );
    }

    #[test]
    fn a_run_of_epochs_says_how_many_are_done() {
        let mut recent = Recent { num_steps: 270, epochs_per_step: Some(8.0 / 270.0), steps: VecDeque::new() };
        recent.push(StepMetrics { step: 26, ..Default::default() });
        assert!(recent.describe().starts_with("step 27/270  epoch 0.80  loss "), "{}", recent.describe());
        // An epoch is done with its last step, and not before.
        for num_steps in [300, 7_777, 1_000_000] {
            let per_step = 3.0 / num_steps as f64;
            assert_eq!(hundredths((num_steps - 1) as f64 * per_step), "2.99", "{num_steps}");
            assert_eq!(hundredths(num_steps as f64 * per_step), "3.00", "{num_steps}");
        }
        assert!((1..=270).all(|done| hundredths(done as f64 * (27.0 / 270.0)) == format!("{:.2}", done as f64 / 10.0)));
    }

    #[test]
    fn what_no_step_has_is_no_zero() {
        let mut recent = Recent { num_steps: 5, epochs_per_step: None, steps: VecDeque::new() };
        let pairs = |rejected_reward| {
            Some(PairMetrics { chosen_reward: 1.0, accuracy: 0.5, rejected_reward, ..Default::default() })
        };
        recent.push(StepMetrics { loss: f64::NAN, pairs: pairs(f64::NAN), step_ms: 1.0, ..Default::default() });
        let said = recent.describe();
        assert!(said.contains("loss NaN  accuracy 50%  ") && !said.contains("margin"), "{said}");
        recent.push(StepMetrics { step: 1, loss: 0.5, pairs: pairs(0.5), step_ms: 1.0, ..Default::default() });
        let said = recent.describe();
        assert!(said.contains("loss 0.5000  accuracy 50%  margin 0.500"), "{said}");
    }

    #[test]
    fn times_are_written_as_on_a_clock() {
        assert_eq!([clock(7.2), clock(754.0), clock(10_800.0)], ["0:07", "12:34", "3:00:00"]);
    }

    #[test]
    fn steps_without_a_terminal_do_not_fail() {
        let mut progress = Progress::start(&Console::stderr(), 0, 3, 1);
        (0..3).for_each(|step| progress.step(&StepMetrics { step, step_ms: 1.0, ..Default::default() }));
        progress.finish();
    }
}
