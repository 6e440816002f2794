//! The board as JSON: what the page and `loongforge top` show.

use super::Board;
use super::actors::Seen;
use crate::message::{ActorId, EdgeLoad, MemoryReport, PoolName, Role};
use crate::observe::StepMetrics;
use crate::observe::metrics::finite_mean;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Most points of a curve; longer histories are thinned.
const MAX_POINTS: usize = 1000;

impl Board {
    /// Returns the state of the run, of its pools and of every actor. Times are in seconds, sizes in bytes.
    pub fn status(&self) -> Value {
        let info = &self.info;
        let last = self.steps.back();
        let mean = |value: fn(&StepMetrics) -> f64| self.recent_mean(value);
        let step_s = mean(|step| step.step_ms).map(|ms| ms / 1e3);
        let done = last.map_or(info.first_step, |last| last.step + 1);
        let state = if self.last_step.is_some() { "running" } else { "starting" };
        let pools: Vec<Value> = self.pools().into_iter().map(|(role, name)| self.pool(role, name)).collect();
        let actors: Vec<Value> = self.actors.seen.iter().map(|(&id, seen)| self.actor(id, seen)).collect();
        json!({
            "run": { "name": info.name, "dir": info.dir, "version": info.version },
            "state": self.ended.as_deref().unwrap_or(state),
            "done": done,
            "steps": info.num_steps,
            "first_step": info.first_step,
            "eta_s": step_s.map(|step| step * info.num_steps.saturating_sub(done) as f64),
            "elapsed_s": self.begun.map(|begun| (self.now - begun).max(0.0)),
            "since_last_step_s": self.last_step.map(|at| (self.now - at).max(0.0)),
            "loss": mean(|step| step.loss),
            "samples_step": self.samples.as_ref().map(|(step, _)| step),
            "eval_loss": self.evals.iter().filter_map(|(set, curve)| Some((set, curve.back()?.1))).collect::<BTreeMap<_, _>>(),
            "last": last,
            "tokens_per_s": step_s.zip(mean(|step| step.tokens as f64)).map(|(step, tokens)| tokens / step),
            "images_per_s": step_s.zip(mean(|step| step.images as f64)).map(|(step, images)| images / step),
            "step_s": step_s,
            "goodput": self.goodput(),
            "applied": self.counts.applied,
            "skipped": self.counts.skipped,
            "bad_samples": self.counts.bad_samples,
            "too_long": self.counts.too_long,
            "checkpoints": self.counts.checkpoints,
            "last_checkpoint": self.checkpoint,
            "lost_news": self.counts.lost_news,
            "pools": pools,
            "actors": actors,
        })
    }

    fn actor(&self, id: ActorId, seen: &Seen) -> Value {
        let edge = |edge: &EdgeLoad| {
            let &EdgeLoad { to, in_flight, credit, num_unsent } = edge;
            json!({ "to": to.to_string(), "in_flight": in_flight, "credit": credit, "unsent": num_unsent })
        };
        let whole = seen.timings.busy + seen.timings.idle;
        json!({
            "actor": id.to_string(),
            "state": seen.state,
            "busy": (whole > 0.0).then(|| seen.timings.busy / whole),
            "timings": seen.timings,
            "heard_s_ago": seen.heard.map(|heard| (self.now - heard).max(0.0)),
            "lost_spans": seen.lost_spans,
            "edges": seen.edges.iter().map(edge).collect::<Vec<_>>(),
        })
    }

    /// Curves of the kept steps, of at most 1000 points; a point is the mean of the steps that it stands for.
    pub fn history(&self) -> Value {
        let every = self.steps.len().div_ceil(MAX_POINTS).max(1);
        let steps: Vec<&StepMetrics> = self.steps.iter().collect();
        let curve = |value: fn(&StepMetrics) -> f64| -> Vec<Option<f64>> {
            steps.chunks(every).map(|some| finite_mean(some.iter().map(|&step| value(step)))).collect()
        };
        json!({
            "step": steps.chunks(every).map(|some| some[some.len() - 1].step).collect::<Vec<_>>(),
            "loss": curve(|step| step.loss),
            "eval": self.evals,
            "grad_norm": curve(|step| step.grad_norm),
            "learning_rate": curve(|step| step.learning_rate),
            "tokens_per_s": curve(|step| step.tokens_per_s),
            "step_ms": curve(|step| step.step_ms),
            "encoder_busy": curve(|step| step.encoder_busy),
            "foundation_busy": curve(|step| step.foundation_busy),
            "encoder_memory": curve(|step| bytes(step.encoder_memory)),
            "foundation_memory": curve(|step| bytes(step.foundation_memory)),
        })
    }

    /// Returns the run's pools in the order of roles; of a role without actors the pool that is named as it.
    fn pools(&self) -> BTreeSet<(Role, PoolName)> {
        let roles = [Role::Data, Role::Encoder, Role::Foundation].map(|role| ActorId::new(role, 0));
        let is_missing = |actor: &ActorId| self.actors.seen.keys().all(|other| other.role != actor.role);
        let missing = roles.into_iter().filter(is_missing);
        let all = self.actors.seen.keys().copied().filter(|actor| actor.role != Role::Scheduler).chain(missing);
        all.map(|actor| (actor.role, actor.pool)).collect()
    }

    fn pool(&self, role: Role, name: PoolName) -> Value {
        let seen: Vec<_> = self.actors.seen.iter().filter(|(id, _)| id.pool == name).map(|(_, seen)| seen).collect();
        let (busy, whole) = seen.iter().fold((0.0, 0.0), |(busy, whole), seen| {
            (busy + seen.timings.busy, whole + seen.timings.busy + seen.timings.idle)
        });
        json!({ "pool": name, "role": role, "actors": seen.len(), "busy": (whole > 0.0).then(|| busy / whole) })
    }

    /// Returns the mean over the last 20 steps.
    fn recent_mean(&self, value: fn(&StepMetrics) -> f64) -> Option<f64> {
        finite_mean(self.steps.iter().rev().take(20).map(value))
    }
}

/// Returns the bytes of tensors; NaN where nothing is known.
fn bytes(memory: Option<MemoryReport>) -> f64 {
    memory.map_or(f64::NAN, |memory| memory.total() as f64)
}

#[cfg(test)]
mod tests {
    use super::super::board::tests::board;
    use super::*;
    use crate::observe::watch::{News, RunInfo};

    #[test]
    fn figures_are_those_of_the_last_steps() {
        let mut board = board();
        let status = board.status();
        assert_eq!(status["state"], "running");
        assert_eq!((status["done"].as_u64(), status["steps"].as_u64()), (Some(3), Some(10)));
        assert_eq!((status["loss"].as_f64(), status["last"]["loss"].as_f64()), (Some(4.0), None));
        assert_eq!((status["tokens_per_s"].as_f64(), status["eta_s"].as_f64()), (Some(100.0), Some(7.0)));
        assert_eq!(status["pools"][2]["busy"], 0.75);
        assert_eq!(status["actors"][0]["edges"][0]["unsent"], 1);
        board.take(News::Ended("done".into()), 0, 0);
        assert_eq!(board.status()["state"], "done");
    }

    #[test]
    fn long_histories_are_thinned() {
        let mut board = Board::new(RunInfo::default(), 2500, 1);
        for step in 0..3000 {
            let metrics = StepMetrics { step, loss: step as f64, ..StepMetrics::default() };
            board.take(News::Step(Box::new(metrics), Vec::new()), step, 0);
        }
        let history = board.history();
        let steps = history["step"].as_array().unwrap();
        assert_eq!((steps.len(), steps[0].as_u64(), steps[833].as_u64()), (834, Some(502), Some(2999)));
        assert_eq!(history["loss"][0], 501.0);
    }

    #[test]
    fn a_run_that_goes_on_shows_its_history_and_counts_its_own_steps() {
        let old = |step| StepMetrics { step, loss: step as f64, step_ms: 1e3, ..StepMetrics::default() };
        let info = RunInfo { first_step: 4, num_steps: 10, ..RunInfo::default() };
        let mut board = Board::new(info, 3, 1).with_history((0..4).map(old).collect());
        let status = board.status();
        assert_eq!((&status["state"], &status["done"], &status["applied"]), (&json!("starting"), &json!(4), &json!(0)));
        board.take(News::Step(Box::new(old(4)), Vec::new()), 5_000_000_000, 0);
        assert_eq!(board.history()["step"], json!([2, 3, 4]));
        let status = board.status();
        assert_eq!(
            (&status["state"], &status["applied"], &status["elapsed_s"]),
            (&json!("running"), &json!(1), &json!(1.0))
        );
    }

    #[test]
    fn a_run_that_has_not_begun_has_no_figures() {
        let status = Board::new(RunInfo::default(), 1, 1).status();
        assert_eq!(
            (&status["state"], &status["loss"], &status["goodput"]),
            (&json!("starting"), &json!(null), &json!(null))
        );
    }
}
