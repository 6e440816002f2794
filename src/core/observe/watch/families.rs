//! The figures of a board that are exported, as families of samples: Prometheus and OpenTelemetry write the same ones.

use super::Board;
use super::actors::Actors;
use super::board::Counts;
use crate::message::EdgeLoad;
use crate::observe::StepMetrics;

/// The samples of one name.
pub(super) struct Family {
    /// The name without `loongforge_`.
    pub name: &'static str,
    /// It only grows; else it is what it is now.
    pub is_counter: bool,
    pub help: &'static str,
    pub samples: Vec<Sample>,
}

/// A value with its labels.
pub(super) struct Sample {
    pub labels: Vec<(&'static str, String)>,
    pub value: f64,
}

impl Board {
    /// Names follow Prometheus' customs: base units, `_total` for what only grows. `resident`: bytes of the run's processes on this
    /// host, where they are known.
    pub(super) fn families(&self, resident: Option<u64>) -> Vec<Family> {
        let mut page = Page::default();
        page.one("info", "gauge", "Version of loongforge.", &[("version", &self.info.version)], 1.0);
        page.one("up", "gauge", "1 while the run is active.", &[], f64::from(u8::from(self.ended.is_none())));
        if let Some(last) = self.steps.back() {
            page.step(last);
        }
        if let Some(bytes) = resident {
            page.one(
                "resident_memory_bytes",
                "gauge",
                "Resident bytes of the run's processes on this host.",
                &[],
                bytes as f64,
            );
        }
        if !self.evals.is_empty() {
            page.family("eval_loss", "gauge", "Loss of held-out samples at the last evaluation, by set.");
            for (set, curve) in &self.evals {
                let last = curve.back().map_or(f64::NAN, |(_, loss)| *loss);
                page.sample("eval_loss", &[("set", set)], last);
            }
        }
        if let Some(goodput) = self.goodput() {
            page.one(
                "goodput_ratio",
                "gauge",
                "Share of the time that the run was active spent on useful steps.",
                &[],
                goodput,
            );
        }
        page.one("steps_planned", "gauge", "Steps of the whole run.", &[], self.info.num_steps as f64);
        page.counts(&self.counts);
        page.actors(&self.actors);
        page.0
    }
}

#[derive(Default)]
struct Page(Vec<Family>);

impl Page {
    /// Adds what is exported of the last step.
    fn step(&mut self, last: &StepMetrics) {
        self.one("step", "gauge", "Last step that was applied or skipped.", &[], last.step as f64);
        self.one("loss", "gauge", "Mean loss over the last step's target tokens.", &[], last.loss);
        self.one("grad_norm", "gauge", "Gradient norm over all pools, before clipping.", &[], last.grad_norm);
        self.one("learning_rate", "gauge", "Learning rate of the last step.", &[], last.learning_rate);
        self.one("step_seconds", "gauge", "Duration of the last step.", &[], last.step_ms / 1e3);
        self.one("tokens_per_second", "gauge", "Tokens per second in the last step.", &[], last.tokens_per_s);
        if let Some(mfu) = last.mfu {
            self.one("mfu_ratio", "gauge", "Model FLOPs utilization.", &[], mfu);
        }
        let pools = last.pools.iter().map(|(name, pool)| (name.as_str(), pool.memory));
        let memory =
            [("encoder", last.encoder_memory), ("foundation", last.foundation_memory)].into_iter().chain(pools);
        let memory: Vec<_> = memory.filter_map(|(pool, memory)| Some((pool, memory?.total() as f64))).collect();
        if !memory.is_empty() {
            self.family(
                "tensor_memory_bytes",
                "gauge",
                "Tensor memory in bytes of the pool's actor that uses the most.",
            );
            memory.iter().for_each(|(pool, bytes)| self.sample("tensor_memory_bytes", &[("pool", pool)], *bytes));
        }
    }

    /// Adds what is counted over the whole run.
    fn counts(&mut self, counts: &Counts) {
        for (name, help, value) in [
            ("steps_applied_total", "Steps that were applied.", counts.applied),
            ("steps_skipped_total", "Steps whose loss or gradient was not finite.", counts.skipped),
            ("tokens_total", "Tokens of all steps.", counts.tokens),
            ("images_total", "Media items of all steps.", counts.images),
            ("bad_samples_total", "Bad samples, which were skipped.", counts.bad_samples),
            ("too_long_samples_total", "Samples longer than a pack, which were skipped.", counts.too_long),
            ("checkpoints_total", "Checkpoints that were published.", counts.checkpoints),
            ("checkpoints_uncopied_total", "Checkpoints whose copies into the object store failed.", counts.uncopied),
            ("watch_lost_news_total", "Events that were dropped because the watcher was behind.", counts.lost_news),
        ] {
            self.one(name, "counter", help, &[], value as f64);
        }
        self.one("checkpoint_publish_seconds_total", "counter", "Time spent on publishing.", &[], counts.publishing);
    }

    /// Adds how busy actors are, and what is under way between them.
    fn actors(&mut self, actors: &Actors) {
        let actors: Vec<_> = actors.seen.iter().map(|(id, seen)| (id.to_string(), id.pool, seen)).collect();
        self.family("actor_busy_ratio", "gauge", "Share of the last step in which the actor computed.");
        for (id, pool, seen) in &actors {
            let whole = seen.timings.busy + seen.timings.idle;
            if whole > 0.0 {
                self.sample("actor_busy_ratio", &[("actor", id), ("pool", pool.as_str())], seen.timings.busy / whole);
            }
        }
        type Load = fn(&EdgeLoad) -> f64;
        let loads: [(&'static str, &'static str, Load); 3] = [
            ("edge_in_flight_bytes", "Bytes of parcels that were sent and not yet used.", |edge| edge.in_flight as f64),
            ("edge_credit_bytes", "Bytes that may be in flight.", |edge| edge.credit as f64),
            ("edge_waiting_parcels", "Parcels that wait for credit.", |edge| f64::from(edge.num_unsent)),
        ];
        for (name, help, value) in loads {
            self.family(name, "gauge", help);
            for (id, _, seen) in &actors {
                for edge in &seen.edges {
                    self.sample(name, &[("from", id), ("to", &edge.to.to_string())], value(edge));
                }
            }
        }
    }

    fn one(&mut self, name: &'static str, kind: &str, help: &'static str, labels: &[(&'static str, &str)], value: f64) {
        self.family(name, kind, help);
        self.sample(name, labels, value);
    }

    fn family(&mut self, name: &'static str, kind: &str, help: &'static str) {
        self.0.push(Family { name, is_counter: kind == "counter", help, samples: Vec::new() });
    }

    /// Adds to the family that was begun last.
    fn sample(&mut self, name: &str, labels: &[(&'static str, &str)], value: f64) {
        let labels = labels.iter().map(|(label, text)| (*label, (*text).to_owned())).collect();
        let family = self.0.last_mut().expect("a family is begun before its samples");
        debug_assert_eq!(family.name, name);
        family.samples.push(Sample { labels, value });
    }
}
