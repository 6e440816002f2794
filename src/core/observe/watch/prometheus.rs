//! The board in Prometheus' text format, version 0.0.4.

use super::Board;
use std::fmt::Write;

impl Board {
    /// Names follow Prometheus' customs: base units, `_total` for what only grows. `resident`: bytes of the run's processes on this
    /// host, where they are known.
    pub fn prometheus(&self, resident: Option<u64>) -> String {
        let (mut text, run) = (String::new(), escape(&self.info.name));
        for family in self.families(resident) {
            let (name, help, kind) = (family.name, family.help, if family.is_counter { "counter" } else { "gauge" });
            let _ = write!(text, "# HELP loongforge_{name} {help}\n# TYPE loongforge_{name} {kind}\n");
            for sample in family.samples {
                let _ = write!(text, "loongforge_{name}{{run=\"{run}\"");
                for (label, value) in &sample.labels {
                    let _ = write!(text, ",{label}=\"{}\"", escape(value));
                }
                let _ = match sample.value {
                    value if value.is_nan() => writeln!(text, "}} NaN"),
                    value if value.is_infinite() => writeln!(text, "}} {}Inf", if value > 0.0 { '+' } else { '-' }),
                    value => writeln!(text, "}} {value}"),
                };
            }
        }
        text
    }
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::board::tests::{SECOND, board};
    use crate::config::read_yaml;
    use crate::message::{ActorId, MemoryReport, Timings};
    use crate::observe::StepMetrics;
    use crate::observe::watch::{Board, News};
    use regex::Regex;
    use serde_json::Value;

    const GRAFANA: &str = include_str!("../../../../dashboards/grafana.json");
    const ALERTS: &str = include_str!("../../../../dashboards/alerts.yaml");

    /// Returns a board with everything that one may have.
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
            // In an alert.
            "loongforge_checkpoints_uncopied_total",
        ];
        let forgotten: Vec<_> =
            exported.iter().filter(|name| !shown.contains(**name) && !aside.contains(name)).collect();
        assert!(forgotten.is_empty(), "{forgotten:?}");
    }

    /// The rules have the form that `promtool check rules` asks for.
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
    fn an_actor_has_the_label_of_its_own_pool() {
        let mut board = board();
        let audio = ActorId::encoder_of("audio".parse().unwrap(), 1);
        board.actors.get(audio).timings = Timings { busy: 0.5, idle: 0.5, ..Timings::default() };
        let text = board.prometheus(None);
        let line = "loongforge_actor_busy_ratio{run=\"a \\\"b\\\"\",actor=\"audio/1\",pool=\"audio\"} 0.5";
        assert!(text.lines().any(|found| found == line), "{text}");
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
