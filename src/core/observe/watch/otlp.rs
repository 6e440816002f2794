//! The board for a collector of OpenTelemetry: the bodies of `/v1/metrics` and `/v1/traces` of OTLP over HTTP, as JSON.
//!
//! Metrics are those of Prometheus, with dots for the first underscore: `loongforge.loss`. A span is a stretch of an actor's time; the
//! spans of a step are one trace.

use super::Board;
use super::families::{Family, Sample};
use super::timeline::name;
use crate::message::ActorId;
use crate::text::hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Most spans of one body.
const MAX_SPANS: usize = 5000;
/// Cumulative, of AggregationTemporality.
const CUMULATIVE: u8 = 2;
/// Internal, of SpanKind.
const INTERNAL: u8 = 1;

/// The last span of each actor that was told of, in nanoseconds of its clock.
#[derive(Debug, Default)]
pub struct Told(BTreeMap<ActorId, u64>);

impl Board {
    /// Returns the figures of `/metrics`. `begun` and `now`: when the process began, and now, in nanoseconds since 1970.
    pub fn otlp_metrics(&self, resident: Option<u64>, begun: u64, now: u64) -> Value {
        let metric = |family: Family| {
            let points: Vec<Value> = family.samples.iter().map(|sample| point(sample, begun, now)).collect();
            let mut metric = json!({ "name": format!("loongforge.{}", family.name), "description": family.help });
            match family.is_counter {
                true => {
                    metric["sum"] =
                        json!({ "aggregationTemporality": CUMULATIVE, "isMonotonic": true, "dataPoints": points })
                }
                false => metric["gauge"] = json!({ "dataPoints": points }),
            }
            metric
        };
        let families = self.families(resident).into_iter().filter(|family| !family.samples.is_empty());
        let metrics: Vec<Value> = families.map(metric).collect();
        json!({ "resourceMetrics": [{ "resource": self.resource(), "scopeMetrics": [{ "scope": self.scope(), "metrics": metrics }] }] })
    }

    /// Returns the spans that are kept and that `told` was not told of, the oldest first, and at most 5000; `None` where there are none.
    /// `zero`: the beginning of the board's clock in nanoseconds since 1970.
    pub fn otlp_traces(&self, told: &mut Told, zero: u64) -> Option<Value> {
        let mut spans = Vec::new();
        for (id, seen) in &self.actors.seen {
            let before = told.0.entry(*id).or_default();
            let at = |time: u64| (zero as f64 / 1e9 + seen.offset.seconds(time)).max(0.0);
            for span in
                seen.spans.iter().filter(|span| span.end > *before).take(MAX_SPANS - spans.len()).collect::<Vec<_>>()
            {
                *before = span.end;
                let trace = digest(&format!("{}/{zero}/{}", self.info.dir, span.step));
                let own = digest(&format!("{trace}/{id}/{}/{}", span.start, span.end));
                spans.push(json!({
                    "traceId": &trace[..32],
                    "spanId": &own[..16],
                    "name": name(span),
                    "kind": INTERNAL,
                    "startTimeUnixNano": nanoseconds(at(span.start)),
                    "endTimeUnixNano": nanoseconds(at(span.end)),
                    "attributes": [text("loongforge.actor", &id.to_string()), text("loongforge.step", &span.step.to_string())],
                }));
            }
        }
        (!spans.is_empty()).then(|| {
            json!({ "resourceSpans": [{ "resource": self.resource(), "scopeSpans": [{ "scope": self.scope(), "spans": spans }] }] })
        })
    }

    fn resource(&self) -> Value {
        json!({ "attributes": [text("service.name", "loongforge"), text("loongforge.run", &self.info.name)] })
    }

    fn scope(&self) -> Value {
        json!({ "name": "loongforge", "version": self.info.version })
    }
}

fn point(sample: &Sample, begun: u64, now: u64) -> Value {
    let attributes: Vec<Value> = sample.labels.iter().map(|(label, value)| text(label, value)).collect();
    // The JSON of protobuf has words for what JSON lacks.
    let value = match sample.value {
        value if value.is_nan() => json!("NaN"),
        value if value.is_infinite() => json!(if value > 0.0 { "Infinity" } else { "-Infinity" }),
        value => json!(value),
    };
    json!({
        "attributes": attributes, "startTimeUnixNano": begun.to_string(), "timeUnixNano": now.to_string(), "asDouble": value,
    })
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Integers of 64 bits are text in the JSON of protobuf.
fn nanoseconds(seconds: f64) -> String {
    ((seconds * 1e9) as u64).to_string()
}

fn digest(text: &str) -> String {
    hex(Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use super::super::board::tests::board;
    use super::*;

    #[test]
    fn metrics_are_those_of_prometheus() {
        let body = board().otlp_metrics(Some(7), 1, 2);
        let metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap();
        let of = |name: &str| metrics.iter().find(|metric| metric["name"] == name).unwrap();
        assert_eq!(of("loongforge.loss")["gauge"]["dataPoints"][0]["asDouble"], "NaN");
        let applied = &of("loongforge.steps_applied_total")["sum"];
        assert_eq!((&applied["dataPoints"][0]["asDouble"], &applied["isMonotonic"]), (&json!(2.0), &json!(true)));
        assert_eq!(applied["dataPoints"][0]["timeUnixNano"], "2");
        let busy = &of("loongforge.actor_busy_ratio")["gauge"]["dataPoints"][0]["attributes"];
        assert_eq!(busy[0], text("actor", "foundation/0"));
        let named = board().prometheus(Some(7));
        let families = named.lines().filter(|line| line.starts_with("# TYPE")).count();
        assert_eq!(families, board().families(Some(7)).len());
    }

    #[test]
    fn a_span_is_told_once_and_a_step_is_a_trace() {
        let (board, mut told) = (board(), Told::default());
        let body = board.otlp_traces(&mut told, 1_000_000_000_000_000_000).unwrap();
        let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
        let traces: std::collections::BTreeSet<&str> =
            spans.iter().map(|span| span["traceId"].as_str().unwrap()).collect();
        assert_eq!((spans.len(), traces.len()), (4, 2));
        assert!(
            spans
                .iter()
                .all(|span| span["traceId"].as_str().unwrap().len() == 32
                    && span["spanId"].as_str().unwrap().len() == 16)
        );
        let first = &spans[0];
        let nanos = |key: &str| first[key].as_str().unwrap().parse::<u64>().unwrap();
        assert!(nanos("startTimeUnixNano") >= 1_000_000_001_000_000_000 - 1000, "{first}");
        assert!(nanos("endTimeUnixNano") > nanos("startTimeUnixNano"));
        assert!(board.otlp_traces(&mut told, 0).is_none());
    }
}
