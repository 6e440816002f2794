//! The reports of evaluations while a run goes on: a line in the terminal, `eval.jsonl`, TensorBoard, the page, and which checkpoint is
//! the best one.

use crate::eval::action_errors::ActionErrors;
use crate::eval::held_out_sets::{self, HeldOutSet};
use crate::model::folder::ModelFolder;
use loongforge_actors::checkpoint::mark_best;
use loongforge_core::config::{PreferenceLoss, RunConfig};
use loongforge_core::engine::WithHeldOut;
use loongforge_core::message::{EvaluationReport, SampleId, Sigma};
use loongforge_core::observe::{
    Console, EvalRecord, Judged, MetricsFile, ScoredAnswer, Scoring, read_evaluations, safe,
};
use loongforge_core::schedule::{Best, EvaluationSummary, SetResult};
use loongforge_core::text::counted;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The run's `eval.jsonl`.
pub const EVAL: &str = "eval.jsonl";

/// The sets of a run, and what was found of them.
pub struct EvalReport {
    console: Console,
    sets: Vec<HeldOutSet>,
    file: Option<MetricsFile>,
    /// The evaluations that the file has already: a resumed run may evaluate a step again.
    known: Vec<(u64, String)>,
    checkpoints: PathBuf,
    best: Option<Best>,
    judged: Option<Judged>,
    /// Answers that are shown.
    show: usize,
    /// A loss counts as improved if it is lower by more than this.
    min_delta: f64,
    /// The scoring of each set, by its name.
    scoring: BTreeMap<String, Scoring>,
}

impl EvalReport {
    /// Opens the report of evaluations; `None` where nothing is evaluated while the run goes on, which begins with `first_step`.
    ///
    /// # Errors
    /// The held-out samples cannot be opened, or the file not be written.
    pub fn new(
        config: &RunConfig,
        folder: &ModelFolder,
        first_step: u64,
        console: &Console,
    ) -> anyhow::Result<Option<Self>> {
        let Some(eval) = held_out_sets::during(config, folder) else { return Ok(None) };
        let path = config.run.dir.join(EVAL);
        // The evaluation before the first step may be one of an earlier life.
        let file = config.log.jsonl.then(|| MetricsFile::open(&path, first_step + 1)).transpose()?;
        let known = read_evaluations(&path)?.into_iter().map(|record| (record.step, record.set)).collect();
        let sets = held_out_sets::open(config, folder, None)?;
        Ok(Some(Self {
            console: console.clone(),
            scoring: sets.iter().map(|set| (set.name.clone(), Scoring::of(eval, &set.name))).collect(),
            sets,
            file,
            known,
            checkpoints: config.checkpoint.dir.clone(),
            best: None,
            judged: judged(config),
            show: eval.show,
            min_delta: eval.min_delta,
        }))
    }

    /// Tells of an evaluation; returns what is new of it.
    pub fn evaluated(&mut self, summary: &EvaluationSummary) -> Vec<EvalRecord> {
        self.best = summary.evaluated.best;
        let of_set = |(set, result): (usize, &SetResult)| self.record(summary, set, result);
        let records: Vec<EvalRecord> = summary.sets.iter().enumerate().map(of_set).collect();
        let is_new = |record: &EvalRecord| !self.known.contains(&(record.step, record.set.clone()));
        let records: Vec<EvalRecord> = records.into_iter().filter(is_new).collect();
        for record in &records {
            self.show(record);
            if let Some(Err(error)) = self.file.as_mut().map(|file| file.write(record)) {
                self.console.line(&format!("warning: {error}"));
            }
            self.known.push((record.step, record.set.clone()));
        }
        if summary.stops {
            let best = summary.evaluated.best.map_or(String::new(), |best| format!("; the best was {}", best.step));
            let count = summary.evaluated.without_progress;
            let what = not_improved(count, self.min_delta);
            let steps = counted(summary.step.0, "step");
            self.console.line(&format!("stopping after {steps}: {what}{best}"));
        }
        self.mark();
        records
    }

    /// A checkpoint was published: it may be the best one.
    pub fn published(&mut self) {
        self.mark();
    }

    /// Lets the link `best` name the best checkpoint, where that is on the disk already.
    fn mark(&mut self) {
        let Some(best) = self.best else { return };
        if let Err(error) = mark_best(&self.checkpoints, best.step.0) {
            self.console.line(&format!("warning: {error}"));
        }
    }

    fn record(&self, summary: &EvaluationSummary, set: usize, result: &SetResult) -> EvalRecord {
        let found = &result.found;
        let decides = summary.is_best && summary.decisive == Some(set);
        let no_scoring = Scoring::default();
        let scoring = self.scoring.get(&result.name).unwrap_or(&no_scoring);
        let answers = found.outputs.iter().filter_map(|(id, tokens)| self.answer(*id, tokens));
        EvalRecord {
            step: summary.step.0,
            set: result.name.clone(),
            accuracy: result.accuracy(),
            samples: result.num_samples,
            bad_samples: result.num_bad,
            best: decides,
            ..EvalRecord::default()
        }
        .with_loss(found.loss_sum, found.num_targets)
        .with_levels(result.levels.iter().filter_map(level).collect())
        .with_actions(self.sets.get(set).is_some_and(has_values))
        .with_judged(self.judged)
        .with_action_errors(self.action_errors(set, &found.acted))
        .with_answers(answers.collect(), scoring)
    }

    /// Returns the errors of a policy's actions, and of those that need no policy.
    fn action_errors(&self, set: usize, acted: &[(SampleId, Vec<f32>)]) -> Vec<(String, f64)> {
        let Some((dataset, policy)) =
            self.sets.get(set).and_then(|it| Some((&it.dataset, it.dataset.maker().as_policy()?)))
        else {
            return Vec::new();
        };
        let mut errors = ActionErrors::default();
        // Sums in one order, however the samples were dealt.
        let mut acted: Vec<_> = acted.iter().collect();
        acted.sort_by_key(|(id, _)| *id);
        for (id, normalized) in acted {
            let step = id.as_held_out().and_then(|(_, number)| dataset.step_asked(number));
            match step.map(|step| policy.compared(&step, normalized)) {
                Some(Ok(compared)) => errors.add(&compared),
                Some(Err(error)) => self
                    .console
                    .line(&format!("warning: the actions of held-out sample {id} cannot be compared: {error}")),
                None => self.console.line(&format!("warning: held-out sample {id} cannot be read again")),
            }
        }
        errors.means()
    }

    fn answer(&self, id: SampleId, tokens: &[i64]) -> Option<ScoredAnswer> {
        let (stream, index) = id.as_held_out()?;
        let set = self.sets.iter().enumerate().find(|(number, _)| WithHeldOut::streams(*number).contains(&stream))?.1;
        let exchange = set.dataset.exchange(index).ok()?;
        let tokenizer = set.dataset.processor()?.tokenizer();
        let answer = tokenizer.decode(tokens).unwrap_or_else(|error| error.to_string());
        Some(ScoredAnswer::new(exchange.question, answer, exchange.answer))
    }

    fn show(&self, record: &EvalRecord) {
        let best = if record.best { "; the best so far" } else { "" };
        let steps = counted(record.step, "step");
        self.console.line(&format!("eval after {steps}, {}: {}{best}", record.set, record.text()));
        record.answers.iter().take(self.show).for_each(|answer| self.console.line(&shown(answer)));
    }
}

/// Returns why a run ends early. Smaller improvements than `min_delta` do not count.
fn not_improved(count: u64, min_delta: f64) -> String {
    let by = if min_delta > 0.0 { format!(" by more than {min_delta} (eval.min_delta)") } else { String::new() };
    format!("the held-out loss has not improved{by} in {count} evaluations (eval.patience)")
}

/// Returns how a run judges held-out answers, if it learns which ones are preferred.
fn judged(config: &RunConfig) -> Option<Judged> {
    let preference = config.train.preference.as_ref()?;
    Some(if preference.loss == PreferenceLoss::Kto { Judged::Answers } else { Judged::Pairs })
}

/// Returns whether values of actions are learned from the set, and no tokens.
fn has_values(set: &HeldOutSet) -> bool {
    set.dataset.maker().as_policy().is_some_and(|policy| policy.writes().is_none())
}

/// Returns a noise level as the config has it, and the mean loss there.
fn level((sigma, found): &(Sigma, EvaluationReport)) -> Option<(f64, f64)> {
    let loss = found.loss_sum / found.num_targets as f64;
    // A float32 has seven digits.
    let sigma = (sigma.get() * 1e6).round() / 1e6;
    (found.num_targets > 0 && loss.is_finite()).then_some((sigma, loss))
}

/// Returns a question with its answer, on a line.
pub fn shown(answer: &ScoredAnswer) -> String {
    let one_line = |text: &str| safe(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    let (prompt, given) = (one_line(&answer.prompt), one_line(&answer.answer));
    match answer.correct {
        true => format!("  {prompt} → {given} (correct)"),
        false => format!("  {prompt} → {given} (expected: {})", one_line(&answer.expected)),
    }
}

/// Returns the losses of each set over steps.
pub fn curves(records: &[EvalRecord]) -> BTreeMap<String, Vec<(f64, f64)>> {
    let mut curves: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    for record in records {
        if let Some(loss) = record.loss {
            curves.entry(record.set.clone()).or_default().push((record.step as f64, loss));
        }
    }
    curves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_patience_says_what_counts_as_improved() {
        let text = "the held-out loss has not improved in 3 evaluations (eval.patience)";
        assert_eq!(not_improved(3, 0.0), text);
        assert_eq!(not_improved(3, 0.01), text.replace("improved", "improved by more than 0.01 (eval.min_delta)"));
    }
}
