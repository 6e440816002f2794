//! `eval.jsonl`: what was found of a set of held-out samples, one JSON object for each set and evaluation.

use super::error::ObserveError;
use super::error_rate::ErrorRate;
use super::score::{ScoredAnswer, Scores, Scoring};
use crate::files::if_there;
use crate::text::{grouped, plural};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// The targets of a loss that prefers answers to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judged {
    /// Pairs, whose chosen answer should have the higher reward.
    Pairs,
    /// Single answers, which are good or bad.
    Answers,
}

/// One evaluation of one set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EvalRecord {
    /// Steps that were done: the parameters are those with which this step begins.
    pub step: u64,
    pub set: String,
    /// Mean loss of a target, of tokens the cross-entropy in nats; `None`: no sample was scored, or it is not finite.
    pub loss: Option<f64>,
    pub perplexity: Option<f64>,
    /// The loss at each noise level, of a diffusion model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<(f64, f64)>,
    /// Part of the targets that greedy decoding would take, or of the answers that are judged right, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Tokens, samples of a diffusion model, values of a policy's actions, or what is `judged`, that count in the loss.
    pub targets: u64,
    /// The kind of targets where a preference is learned: the loss has no perplexity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judged: Option<Judged>,
    /// Targets are values of actions: the loss has no perplexity.
    #[serde(skip_serializing_if = "is_false")]
    pub of_actions: bool,
    /// Mean absolute errors on recorded episodes, of a policy's actions and of those that need no policy, by what they are of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub action_errors: Vec<(String, f64)>,
    pub samples: u64,
    /// Samples that could not be used.
    pub bad_samples: u64,
    /// The loss that decides is the lowest so far, and it is this one.
    pub best: bool,
    /// Part of the generated answers that are exactly the expected ones, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact: Option<f64>,
    #[serde(flatten)]
    pub scores: Scores,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<ScoredAnswer>,
}

impl EvalRecord {
    /// Sets the mean of a sum of cross-entropies over `targets`.
    pub fn with_loss(mut self, loss_sum: f64, targets: u64) -> Self {
        let loss = Some(loss_sum / targets as f64).filter(|loss| targets > 0 && loss.is_finite());
        self.perplexity = loss.map(f64::exp).filter(|perplexity| perplexity.is_finite());
        (self.loss, self.targets) = (loss, targets);
        self
    }

    /// Adds the mean losses at noise levels, of a diffusion model.
    pub fn with_levels(self, levels: Vec<(f64, f64)>) -> Self {
        let perplexity = self.perplexity.filter(|_| levels.is_empty());
        Self { levels, perplexity, ..self }
    }

    /// Says that the targets are values of actions, if they are.
    pub fn with_actions(self, of_actions: bool) -> Self {
        let perplexity = self.perplexity.filter(|_| !of_actions);
        Self { of_actions, perplexity, ..self }
    }

    /// Sets the kind of judged targets, if the targets are such; the loss then has no perplexity.
    pub fn with_judged(self, judged: Option<Judged>) -> Self {
        let perplexity = self.perplexity.filter(|_| judged.is_none());
        Self { judged, perplexity, ..self }
    }

    /// Adds the errors of a policy's actions.
    pub fn with_action_errors(self, action_errors: Vec<(String, f64)>) -> Self {
        Self { action_errors, ..self }
    }

    /// Adds generated answers and their scores.
    pub fn with_answers(mut self, answers: Vec<ScoredAnswer>, scoring: &Scoring) -> Self {
        let correct = answers.iter().filter(|answer| answer.correct).count();
        self.exact = (!answers.is_empty()).then(|| correct as f64 / answers.len() as f64);
        self.scores = Scores::of(&answers, scoring);
        self.answers = answers;
        self
    }

    /// Names and values of its curves.
    pub fn scalars(&self) -> Vec<(String, f64)> {
        let rate = |rate: Option<ErrorRate>| rate.and_then(|rate| rate.rate());
        let values = [
            ("loss", self.loss),
            ("accuracy", self.accuracy),
            ("exact", self.exact),
            ("wer", rate(self.scores.wer)),
            ("cer", rate(self.scores.cer)),
            ("bleu", self.scores.bleu.map(|bleu| bleu.score)),
            ("rouge1", self.scores.rouge.map(|rouge| rouge.rouge1)),
            ("rouge2", self.scores.rouge.map(|rouge| rouge.rouge2)),
            ("rougeL", self.scores.rouge.map(|rouge| rouge.rouge_l)),
        ];
        let named = values.into_iter().filter_map(|(name, value)| Some((format!("eval/{}/{name}", self.set), value?)));
        let at = |(sigma, loss): &(f64, f64)| (format!("eval/{}/loss_at_{sigma}", self.set), *loss);
        let error = self.action_errors.first().map(|(_, error)| (format!("eval/{}/action_error", self.set), *error));
        named.chain(self.levels.iter().map(at)).chain(error).collect()
    }

    /// `loss 0.4120 (perplexity 1.51) over 12,345 tokens; 12 of 16 answers correct (75.0 %)`; of what has no answers how
    /// many tokens are predicted.
    pub fn text(&self) -> String {
        let mut parts = Vec::new();
        let many = |count: u64, noun: &str| format!("{} {}", grouped(count), plural(noun, count));
        if let Some(loss) = self.loss.filter(|_| !self.levels.is_empty()) {
            let at = |(sigma, loss): &(f64, f64)| format!("{loss:.4} at {sigma}");
            let levels = self.levels.iter().map(at).collect::<Vec<_>>().join(", ");
            parts.push(format!("loss {loss:.4} of {} at noise levels: {levels}", many(self.samples, "sample")));
        } else if let Some(loss) = self.loss.filter(|_| self.of_actions) {
            parts.push(format!("loss {loss:.4} over {} values of actions", grouped(self.targets)));
        } else if let Some((loss, judged)) = self.loss.zip(self.judged) {
            let (what, right) = match judged {
                Judged::Pairs => ("pair", "ranked right"),
                Judged::Answers => ("answer", "judged right"),
            };
            let right = self.accuracy.map(|accuracy| format!(", {:.1} % of them {right}", 100.0 * accuracy));
            parts.push(format!("loss {loss:.4} over {}{}", many(self.targets, what), right.unwrap_or_default()));
        } else if let Some(loss) = self.loss {
            let perplexity = match loss.exp() {
                large if large >= 1e4 => format!("{large:.2e}"),
                small => format!("{small:.2}"),
            };
            let accuracy = self.accuracy.filter(|_| self.exact.is_none());
            let predicted = accuracy.map(|accuracy| format!(", {:.1} % of them predicted", 100.0 * accuracy));
            let tokens = many(self.targets, "token");
            let predicted = predicted.unwrap_or_default();
            parts.push(format!("loss {loss:.4} (perplexity {perplexity}) over {tokens}{predicted}"));
        } else if self.targets > 0 {
            parts.push("the loss is not finite".to_owned());
        }
        if let Some(exact) = self.exact {
            let (correct, all) = (self.answers.iter().filter(|answer| answer.correct).count(), self.answers.len());
            parts.push(format!("{correct} of {all} answers correct ({:.1} %)", 100.0 * exact));
        }
        parts.extend(self.scores.texts());
        if !self.action_errors.is_empty() {
            let errors = self.action_errors.iter().map(|(what, error)| format!("{what} {error:.5}"));
            parts.push(format!("mean absolute error of actions: {}", errors.collect::<Vec<_>>().join(", ")));
        }
        if self.bad_samples > 0 {
            parts.push(many(self.bad_samples, "bad sample"));
        }
        if parts.is_empty() { "no sample can be used".to_owned() } else { parts.join("; ") }
    }
}

/// Returns the evaluations in a file, in order; none where there is no file. Lines that are something else are left out.
///
/// # Errors
/// The file cannot be read.
pub fn read_evaluations(path: &Path) -> Result<Vec<EvalRecord>, ObserveError> {
    let bytes = if_there(fs::read(path)).map_err(|source| ObserveError::Read { path: path.to_path_buf(), source })?;
    // Half a line at the end may end within a letter.
    let lines = bytes.as_deref().unwrap_or_default().split(|&byte| byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_told_in_one_line() {
        let answer = |correct| ScoredAnswer { correct, ..ScoredAnswer::default() };
        let record = EvalRecord { set: "val".into(), accuracy: Some(0.832), ..EvalRecord::default() };
        let record = record
            .with_loss(0.412 * 12345.0, 12345)
            .with_answers(vec![answer(true), answer(false)], &Scoring::default());
        assert_eq!(record.text(), "loss 0.4120 (perplexity 1.51) over 12,345 tokens; 1 of 2 answers correct (50.0 %)");
        let texts = EvalRecord { exact: None, answers: Vec::new(), ..record.clone() }.text();
        assert_eq!(texts, "loss 0.4120 (perplexity 1.51) over 12,345 tokens, 83.2 % of them predicted");
        assert_eq!(record.scalars()[2], ("eval/val/exact".to_owned(), 0.5));
        let of = |sum, targets| EvalRecord { samples: 1, ..EvalRecord::default() }.with_loss(sum, targets).text();
        assert_eq!(of(24.0, 2), "loss 12.0000 (perplexity 1.63e5) over 2 tokens");
        assert_eq!(of(0.0, 1), "loss 0.0000 (perplexity 1.00) over 1 token");
        assert_eq!(of(f64::NAN, 2), "the loss is not finite");
        let noised = EvalRecord { set: "val".into(), samples: 8, ..EvalRecord::default() }.with_loss(4.0, 16);
        let noised = noised.with_levels(vec![(0.1, 0.4), (0.9, 0.1)]);
        assert_eq!(noised.text(), "loss 0.2500 of 8 samples at noise levels: 0.4000 at 0.1, 0.1000 at 0.9");
        assert!(noised.perplexity.is_none() && noised.scalars()[2] == ("eval/val/loss_at_0.9".to_owned(), 0.1));
        let acted = EvalRecord { set: "val".into(), ..EvalRecord::default() }.with_loss(6.0, 12).with_actions(true);
        let acted = EvalRecord { action_errors: vec![("the policy".into(), 0.25)], ..acted };
        let text = "loss 0.5000 over 12 values of actions; mean absolute error of actions: the policy 0.25000";
        assert_eq!((acted.text().as_str(), acted.perplexity), (text, None));
        assert_eq!(acted.scalars()[1], ("eval/val/action_error".to_owned(), 0.25));
        let preferred = EvalRecord { accuracy: Some(0.625), ..EvalRecord::default() }.with_loss(5.6, 8);
        let preferred = preferred.with_answers(vec![answer(true)], &Scoring::default());
        let pairs = preferred.clone().with_judged(Some(Judged::Pairs));
        let text = "loss 0.7000 over 8 pairs, 62.5 % of them ranked right; 1 of 1 answers correct (100.0 %)";
        assert_eq!((pairs.text().as_str(), pairs.perplexity), (text, None));
        let single = EvalRecord { accuracy: None, ..preferred.with_judged(Some(Judged::Answers)) };
        assert_eq!(single.text(), "loss 0.7000 over 8 answers; 1 of 1 answers correct (100.0 %)");
        assert_eq!(EvalRecord::default().text(), "no sample can be used");
        let read: EvalRecord = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
        assert_eq!(read, record);
    }

    #[test]
    fn half_a_line_that_ends_within_a_letter_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("eval.jsonl");
        let record = EvalRecord { step: 2, set: "val".into(), ..EvalRecord::default() };
        let mut bytes = serde_json::to_vec(&record).unwrap();
        bytes.extend(b"\n{\"step\":4,\"set\":\"\xc3");
        fs::write(&path, bytes).unwrap();
        assert_eq!(read_evaluations(&path).unwrap(), [record]);
    }
}
