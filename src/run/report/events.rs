//! The events of a run, told in lines, files and on the page.

use super::Report;
use crate::eval::report::EvalReport;
use crate::run::compose::publisher;
use crate::run::nonfinite::skipped;
use crate::run::poison_items;
use loongforge_actors::{Observer, Publisher};
use loongforge_core::message::{ActorId, SaveTo, SkippedSample, StepId, Trace};
use loongforge_core::observe::{Ending, News};
use loongforge_core::schedule::{
    CheckpointDraft, EvaluationSummary, FailedSave, Failure, MAX_CRASHES, NonFinite, Outcome, PoisonItem, PoolChange,
    StepSummary, Straggler,
};
use loongforge_core::text::counted;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

impl Observer for Report {
    fn step(&mut self, summary: &StepSummary) {
        if summary.applied {
            self.is_under_way();
        }
        let metrics = self.measure(summary);
        self.goodput.add(&metrics);
        // A full disk must not end a run that computes.
        for error in self.write(&metrics) {
            self.console.line(&format!("warning: {error}"));
        }
        if !summary.applied {
            self.console.line(&skipped(summary));
        }
        if let Some(progress) = &mut self.progress {
            progress.step(&metrics);
        }
        self.show_slow(&summary.stragglers);
        for ((_, most), now) in self.memory.iter_mut().zip([metrics.encoder_memory, metrics.foundation_memory]) {
            *most = now.or(*most);
        }
        self.tell(|| News::Step(Box::new(metrics), summary.timings.clone()));
    }

    fn evaluated(&mut self, summary: &EvaluationSummary) {
        self.made(summary);
        // The next step is not to count for slow.
        self.times.restart();
        let Some(evaluations) = self.evaluations.as_mut().filter(|_| !summary.sets.is_empty()) else { return };
        let records = evaluations.evaluated(summary);
        let losses: Vec<_> = records.iter().filter_map(|record| Some((record.set.clone(), record.loss?))).collect();
        for record in &records {
            for (tag, value) in record.scalars() {
                if let Some(Err(error)) = self.tensorboard.as_mut().map(|board| board.scalar(record.step, &tag, value))
                {
                    self.console.line(&format!("warning: {error}"));
                }
            }
            if let Err(error) = self.trackers.evaluated(record) {
                self.console.line(&format!("warning: {error}"));
            }
        }
        self.eval_loss = losses.iter().cloned().collect();
        self.tell(|| News::Evaluated { step: summary.step.0, losses });
    }

    fn pool(&mut self, change: &PoolChange) {
        let names = |actors: &[ActorId]| actors.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        for &actor in &change.joined {
            self.tell(|| News::Actor(actor, String::new()));
        }
        for (actor, reason) in &change.left {
            // Else it is said of it later that it is slow no more.
            self.slow.remove(actor);
            self.tell(|| News::Left(*actor, format!("has left: {reason}")));
            self.console.line(&format!("{actor} has left: {reason}"));
        }
        if !change.joined.is_empty() {
            self.console.line(&format!("{} joined", names(&change.joined)));
        }
        self.console.line(&format!("encoders: {}", names(&change.members)));
    }

    fn bad(&mut self, samples: &[SkippedSample]) {
        samples.iter().for_each(|sample| self.skipped.add(sample, &self.console));
    }

    fn crashed_on(&mut self, items: &[PoisonItem]) {
        crashes(items).into_iter().for_each(|line| self.console.line(&line));
        if let Err(error) = poison_items::append(&self.dir, items) {
            self.console.line(&format!("warning: {error}; a resumed run will not know about it"));
        }
    }

    fn trace(&mut self, actor: ActorId, trace: Trace) {
        self.tell(|| News::Trace(actor, trace));
    }

    fn finished(&mut self, result: &Result<Outcome, Failure>) {
        if matches!(result, Ok(Outcome::Completed)) {
            self.is_under_way();
        }
        let ending = match result {
            Ok(Outcome::Completed) => Ending::Completed,
            Ok(Outcome::Preempted) => Ending::Stopped,
            Err(_) => Ending::Failed,
        };
        if let Err(error) = self.trackers.end(ending) {
            self.console.line(&format!("warning: {error}"));
        }
        self.tell(|| {
            News::Ended(match result {
                Ok(Outcome::Completed) => "done".into(),
                Ok(Outcome::Preempted) => "stopped on request".into(),
                Err(failure) => format!("failed: {failure}"),
            })
        });
    }

    fn publisher(&mut self) -> Publisher {
        publisher(self.publication.clone(), self.uploader.clone())
    }

    fn save_failed(&mut self, failed: &FailedSave) {
        let FailedSave { to, error, num_failures, .. } = failed;
        let steps = counted(failed.step.0 + 1, "step");
        match (to, num_failures) {
            (SaveTo::Memory, _) => self.console.line(&format!("warning: no checkpoint in memory: {error}")),
            (_, 0) => self.console.line(&format!(
                "warning: the checkpoint of {steps} could not be written and is started again: {error}"
            )),
            (_, num) => {
                self.console.line(&format!(
                    "ALARM: the checkpoint of {steps} could not be written ({num} in a row; {} end the run): {error}",
                    self.max_failures
                ));
            }
        }
    }

    fn save_waits(&mut self, step: StepId) {
        // Once says what may happen with each checkpoint.
        if !std::mem::replace(&mut self.is_slowed, true) {
            let steps = counted(step.0 + 1, "step");
            self.console.line(&format!(
                "warning: step {step} waits, since earlier checkpoints are not on the disk yet and the one of {steps} is due: \
                 checkpoints come faster than checkpoint.dir takes them; save more rarely \
                 (checkpoint.every_steps or every_epochs, snapshot_every)"
            ));
        }
    }

    fn not_finite(&mut self, found: &NonFinite) {
        match self.evidence.write(found) {
            Ok(path) => self.console.line(&format!("evidence: {}", path.display())),
            Err(error) => self.console.line(&format!("warning: the report of this step cannot be written: {error}")),
        }
    }

    fn published(&mut self, draft: &CheckpointDraft, dir: &Path, took: Duration) {
        if draft.to == SaveTo::Memory {
            return;
        }
        self.evaluations.iter_mut().for_each(EvalReport::published);
        self.evidence.published(draft, dir);
        self.tell(|| News::Checkpoint { step: draft.step.0 + 1, took });
        self.console.line(&format!("checkpoint {}", dir.display()));
        if let Some(costs) = &draft.state.costs {
            for (pool, cost) in costs.seconds() {
                let [pair, token, one] = cost.unwrap_or_default().map(|seconds| seconds * 1e9);
                self.console.line(&format!(
                    "costs of {pool} in ns: {pair:.4} per pair, {token:.1} per token, {one:.0} per document or item"
                ));
            }
        }
    }
}

impl Report {
    /// Names who has become slow, or is slow no more.
    fn show_slow(&mut self, stragglers: &[Straggler]) {
        for straggler in stragglers.iter().filter(|straggler| !self.slow.contains(&straggler.actor)) {
            let (actor, times) = (straggler.actor, straggler.times_slower);
            let line = format!("slow: it takes {times:.1} × as long as the others for its work, and gets less of it");
            self.console.line(&format!("warning: {actor} is {line}"));
            self.tell(|| News::Actor(actor, line));
        }
        let now: BTreeSet<ActorId> = stragglers.iter().map(|straggler| straggler.actor).collect();
        for &actor in self.slow.difference(&now) {
            self.console.line(&format!("{actor} is no longer slow"));
            self.tell(|| News::Actor(actor, String::new()));
        }
        self.slow = now;
    }
}

/// Media items of one unit that a warning names.
const MAX_NAMED: usize = 3;

/// Returns a line for the items of a unit at which an encoder died, for each number of deaths that they have had.
fn crashes(items: &[PoisonItem]) -> Vec<String> {
    let mut by_deaths = BTreeMap::<u32, Vec<String>>::new();
    for PoisonItem { item, deaths } in items {
        by_deaths.entry(*deaths).or_default().push(format!("item {} of sample {}", item.index, item.sample));
    }
    let line = |(deaths, names): (u32, Vec<String>)| {
        let which = match names.len() {
            1 => format!("media {}", names[0]),
            count => format!("one of {count} media items ({})", listed(&names)),
        };
        format!("warning: an encoder died while it encoded {which}: {deaths} of {MAX_CRASHES} times")
    };
    by_deaths.into_iter().map(line).collect()
}

/// Returns the first names, and where the others are.
fn listed(names: &[String]) -> String {
    match names.len().saturating_sub(MAX_NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more in killers.jsonl", names[..MAX_NAMED].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::message::{ItemId, SampleId};

    #[test]
    fn a_crash_on_a_unit_of_many_items_is_one_line() {
        let item = |sample: u64, deaths| PoisonItem { item: ItemId { sample: SampleId(sample), index: 0 }, deaths };
        let times = |deaths: u32| format!("{deaths} of {MAX_CRASHES} times");
        let died = "warning: an encoder died while it encoded";
        assert_eq!(crashes(&[item(7, 1)]), [format!("{died} media item 0 of sample 7: {}", times(1))]);
        let unit: Vec<PoisonItem> = (1..=5).map(|sample| item(sample, 1)).chain([item(9, 2)]).collect();
        let several = "one of 5 media items (item 0 of sample 1, item 0 of sample 2, item 0 of sample 3 and 2 more in \
                       killers.jsonl)";
        let lines =
            [format!("{died} {several}: {}", times(1)), format!("{died} media item 0 of sample 9: {}", times(2))];
        assert_eq!(crashes(&unit), lines);
    }
}
