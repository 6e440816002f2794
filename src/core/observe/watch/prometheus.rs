//! The board in Prometheus' text format, version 0.0.4.

use super::Board;
use std::fmt::Write;

impl Board {
    /// Names follow Prometheus' customs: base units, `_total` for what only grows. `resident`: bytes of the run's processes on this
    /// host, where they are known.
    pub fn prometheus(&self, resident: Option<u64>) -> String {
        let mut page = Page { text: String::new(), run: escape(&self.info.name) };
        let last = self.steps.back();
        let counts = &self.counts;
        page.one("info", "gauge", "Version of loongforge.", &[("version", &self.info.version)], 1.0);
        page.one("up", "gauge", "1 while the run is active.", &[], f64::from(u8::from(self.ended.is_none())));
        if let Some(last) = last {
            page.one("step", "gauge", "Last step that was applied or skipped.", &[], last.step as f64);
            page.one("loss", "gauge", "Mean loss over the last step's target tokens.", &[], last.loss);
            page.one("grad_norm", "gauge", "Gradient norm over all pools, before clipping.", &[], last.grad_norm);
            page.one("learning_rate", "gauge", "Learning rate of the last step.", &[], last.learning_rate);
            page.one("step_seconds", "gauge", "Duration of the last step.", &[], last.step_ms / 1e3);
            page.one("tokens_per_second", "gauge", "Of the last step.", &[], last.tokens_per_s);
            if let Some(mfu) = last.mfu {
                page.one("mfu_ratio", "gauge", "Model FLOPs utilization.", &[], mfu);
            }
            let pools = last.pools.iter().map(|(name, pool)| (name.as_str(), pool.memory));
            let memory =
                [("encoder", last.encoder_memory), ("foundation", last.foundation_memory)].into_iter().chain(pools);
            let memory: Vec<_> = memory.filter_map(|(pool, memory)| Some((pool, memory?.total() as f64))).collect();
            if !memory.is_empty() {
                page.family("tensor_memory_bytes", "gauge", "Bytes of tensors of the pool's actor that took the most.");
                memory.iter().for_each(|(pool, bytes)| page.sample("tensor_memory_bytes", &[("pool", pool)], *bytes));
            }
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
                "Share of the time that the run was active spent on steps that count.",
                &[],
                goodput,
            );
        }
        page.one("steps_planned", "gauge", "Steps of the whole run.", &[], self.info.num_steps as f64);
        for (name, help, value) in [
            ("steps_applied_total", "Steps that were applied.", counts.applied),
            ("steps_skipped_total", "Steps whose loss or gradient was not finite.", counts.skipped),
            ("tokens_total", "Tokens of all steps.", counts.tokens),
            ("images_total", "Media items of all steps.", counts.images),
            ("bad_samples_total", "Bad samples, which were skipped.", counts.bad_samples),
            ("too_long_samples_total", "Samples longer than a pack, which were skipped.", counts.too_long),
            ("checkpoints_total", "Checkpoints that were published.", counts.checkpoints),
            ("watch_lost_news_total", "Events that were dropped because the watcher was behind.", counts.lost_news),
        ] {
            page.one(name, "counter", help, &[], value as f64);
        }
        page.one("checkpoint_publish_seconds_total", "counter", "Time spent on publishing.", &[], counts.publishing);
        let actors: Vec<_> = self.actors.iter().map(|(id, seen)| (id.to_string(), id.pool, seen)).collect();
        page.family("actor_busy_ratio", "gauge", "Share of the last step in which the actor computed.");
        for (id, pool, seen) in &actors {
            let whole = seen.timings.busy + seen.timings.idle;
            if whole > 0.0 {
                page.sample("actor_busy_ratio", &[("actor", id), ("pool", pool.as_str())], seen.timings.busy / whole);
            }
        }
        type Load = fn(&crate::message::EdgeLoad) -> f64;
        let loads: [(&str, &str, Load); 3] = [
            ("edge_in_flight_bytes", "Bytes of parcels that were sent and not yet used.", |edge| edge.in_flight as f64),
            ("edge_credit_bytes", "Bytes that may be in flight.", |edge| edge.credit as f64),
            ("edge_waiting_parcels", "Parcels that wait for credit.", |edge| f64::from(edge.num_unsent)),
        ];
        for (name, help, value) in loads {
            page.family(name, "gauge", help);
            for (id, _, seen) in &actors {
                for edge in &seen.edges {
                    page.sample(name, &[("from", id), ("to", &edge.to.to_string())], value(edge));
                }
            }
        }
        page.text
    }
}

struct Page {
    text: String,
    /// The run's name, escaped.
    run: String,
}

impl Page {
    fn one(&mut self, name: &str, kind: &str, help: &str, labels: &[(&str, &str)], value: f64) {
        self.family(name, kind, help);
        self.sample(name, labels, value);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.text, "# HELP loongforge_{name} {help}\n# TYPE loongforge_{name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let _ = write!(self.text, "loongforge_{name}{{run=\"{}\"", self.run);
        for (label, text) in labels {
            let _ = write!(self.text, ",{label}=\"{}\"", escape(text));
        }
        let _ = match value {
            value if value.is_nan() => writeln!(self.text, "}} NaN"),
            value if value.is_infinite() => writeln!(self.text, "}} {}Inf", if value > 0.0 { '+' } else { '-' }),
            value => writeln!(self.text, "}} {value}"),
        };
    }
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::board::tests::{SECOND, board};
    use crate::config::read_yaml;
    use crate::message::MemoryReport;
    use crate::observe::StepMetrics;
    use crate::observe::watch::{Board, News};
    use regex::Regex;
    use serde_json::Value;

    const GRAFANA: &str = include_str!("../../../../dashboards/grafana.json");
    const ALERTS: &str = include_str!("../../../../dashboards/alerts.yaml");

    /// A board with everything that one may have.
    fn full() -> Board {
        let mut board = board();
        board.take(News::Evaluated { step: 3, losses: vec![("val".into(), 0.5)] }, 3 * SECOND, 4);
        let mut last = StepMetrics { step: 2, loss: f64::NAN, mfu: Some(0.5), active_s: 3.0, ..StepMetrics::default() };
        last.foundation_memory = Some(MemoryReport { parameters: 5, ..MemoryReport::default() });
        board.steps.pop_back();
        board.steps.push_back(last);
        board
    }

    #[test]
    fn every_metric_of_the_dashboard_and_the_alerts_is_exported() {
        let text = full().prometheus(Some(1));
        let exported: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let name = Regex::new("loongforge_[a-z_]+").unwrap();
        for file in [GRAFANA, ALERTS] {
            let named: Vec<&str> = name.find_iter(file).map(|found| found.as_str()).collect();
            assert!(named.len() > 5, "{file}");
            named.iter().for_each(|name| assert!(exported.contains(name), "{name} is not exported: {exported:?}"));
        }
        let grafana: Value = serde_json::from_str(GRAFANA).unwrap();
        let shown: String = grafana["panels"].to_string();
        // What is exported and not shown is named here, so that a new metric is not forgotten.
        let aside = [
            "loongforge_info",
            "loongforge_images_total",
            "loongforge_too_long_samples_total",
            "loongforge_edge_credit_bytes",
        ];
        let forgotten: Vec<_> =
            exported.iter().filter(|name| !shown.contains(**name) && !aside.contains(name)).collect();
        assert!(forgotten.is_empty(), "{forgotten:?}");
    }

    /// As `promtool check rules` asks it.
    #[test]
    fn alerts_have_the_shape_of_rules() {
        let rules = read_yaml(ALERTS).unwrap();
        let groups = rules["groups"].as_array().unwrap();
        let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
        assert!(groups.iter().all(|group| group["name"].is_string()) && rules.len() > 5);
        for rule in rules {
            let texts = ["/alert", "/expr", "/labels/severity", "/annotations/summary", "/annotations/description"];
            assert!(texts.iter().all(|at| rule.pointer(at).is_some_and(Value::is_string)), "{rule}");
            let time = rule["for"].as_str().unwrap_or("0m");
            assert!(time.trim_end_matches(['s', 'm', 'h']).parse::<u64>().is_ok(), "{rule}");
        }
    }

    #[test]
    fn every_line_is_prometheus_and_every_sample_has_a_family() {
        let text = full().prometheus(Some(1 << 30));
        for line in [
            "loongforge_loss{run=\"a \\\"b\\\"\"} NaN",
            "loongforge_steps_applied_total{run=\"a \\\"b\\\"\"} 2",
            "loongforge_actor_busy_ratio{run=\"a \\\"b\\\"\",actor=\"foundation/0\",pool=\"foundation\"} 0.75",
            "loongforge_edge_in_flight_bytes{run=\"a \\\"b\\\"\",from=\"encoder/0\",to=\"foundation/0\"} 10",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let mut families = Vec::new();
        for line in text.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(family) => families.push(family.split(' ').next().unwrap().to_owned()),
                None if line.starts_with('#') => {}
                None => assert_eq!(line.split('{').next(), families.last().map(String::as_str), "{line}"),
            }
        }
        let mut unique = families.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), families.len());
    }
}
