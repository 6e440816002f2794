//! Samples that a trainer holds out, and when it evaluates them.

use super::sheet::Sheet;

const COMPARED: &str =
    "train.preference is evaluated only during the run: drop `eval` and `data.val_size` to do without";

impl Sheet {
    /// Holds out the fraction of samples under `share`, and evaluates them every 100 steps unless a key that is read later says when.
    pub fn held_out(&mut self, share: &str) {
        self.with(share, "data.val_size", |value| match value.as_f64() {
            Some(share) if share < 1.0 => Ok(value.clone()),
            _ => Err("data.val_size must be a fraction below 1"),
        });
        if self.set_number("data.val_size").is_some_and(|share| share > 0.0) {
            self.set("eval.every_steps", 100);
        }
    }

    /// Returns whether any samples are held out.
    pub fn has_held_out(&self) -> bool {
        let has_files = self.has_set("eval.path") || self.has_set("eval.sets");
        has_files || self.set_number("data.val_size").is_some_and(|share| share > 0.0)
    }

    /// Translates the strategy `no`: what is held out is evaluated after the run.
    pub fn no_evaluation(&mut self) {
        if !self.is("eval_strategy", "no") {
            return;
        }
        let is_compared = self.has_set("train.preference") && self.has_held_out();
        let (every, why) = match is_compared {
            true => (100, COMPARED),
            false => (0, "nothing is evaluated during the run"),
        };
        if self.has_held_out() {
            self.set("eval.every_steps", every);
        }
        self.settled(why, &["eval_strategy", "eval_steps"]);
    }

    /// Evaluates answers that are compared every 100 steps where no key has said when: it is not done after the run. To be read after the
    /// keys that say when.
    pub fn compared_answers(&mut self) {
        if self.has_set("train.preference") && self.has_held_out() && !self.evaluates() {
            self.set("eval.every_steps", 100);
            self.note(COMPARED);
        }
    }

    /// Returns whether the run evaluates before its end.
    fn evaluates(&self) -> bool {
        let counts_steps = self.has_set("eval.every_steps") && self.set_number("eval.every_steps") != Some(0.0);
        counts_steps || self.has_set("eval.every_epochs")
    }

    /// Translates the number of evaluations without a lower loss after which a run ends. It is to be read after the keys that say when a
    /// run evaluates.
    pub fn patience(&mut self, key: &str) {
        match self.evaluates() {
            true => self.copy(key, "eval.patience"),
            false => self.missing("eval.patience counts evaluations during the run, of which there are none", &[key]),
        }
    }
}
