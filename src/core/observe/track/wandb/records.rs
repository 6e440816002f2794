//! The records of a `.wandb` file: `Record` of W&B's `wandb_internal.proto`, as far as it is needed here.

use crate::observe::protobuf::{Wire, fields, int, message, string};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Fields of `Record`.
const NUMBER: u64 = 1;
const HISTORY: u64 = 2;
const SUMMARY: u64 = 3;
const FILES: u64 = 6;
const STATS: u64 = 7;
const RUN: u64 = 17;
const EXIT: u64 = 18;
const HEADER: u64 = 21;
/// The fields of items of history, summary, config and figures of the system: the name in parts, and the value as JSON.
const KEY: u64 = 1;
const NESTED_KEY: u64 = 2;
const VALUE: u64 = 16;

/// The description of a run that W&B shows besides its numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct RunRecord<'a> {
    pub id: &'a str,
    pub entity: &'a str,
    pub project: &'a str,
    pub group: &'a str,
    pub job_type: &'a str,
    pub name: &'a str,
    pub notes: &'a str,
    pub tags: &'a [String],
    pub host: &'a str,
    pub config: Option<&'a Value>,
}

/// A name and its value as JSON.
pub(super) type Item = (String, String);

/// Returns the JSON of a number, with Python's words for those that JSON lacks.
pub(super) fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        value if value.is_infinite() => (if value > 0.0 { "Infinity" } else { "-Infinity" }).to_owned(),
        value => Value::from(value).to_string(),
    }
}

/// Returns the first record of a file: who wrote it, and the oldest version of W&B that reads it.
pub(super) fn header(version: &str) -> Vec<u8> {
    record(1, HEADER, |header| {
        message(header, 1, |info| {
            string(info, 1, format!("loongforge {version}").as_bytes());
            // The oldest reader: the one in which offline runs are as they are here.
            string(info, 2, b"0.12.0");
        });
    })
}

/// Returns the record of a run that began at `begun`: its names, config and tags.
pub(super) fn run(of: &RunRecord<'_>, begun: SystemTime, number: u64) -> Vec<u8> {
    record(number, RUN, |run| {
        let text = |run: &mut Vec<u8>, field, text: &str| {
            if !text.is_empty() {
                string(run, field, text.as_bytes());
            }
        };
        [(1, of.id), (2, of.entity), (3, of.project)].iter().for_each(|(field, value)| text(run, *field, value));
        message(run, 4, |config| {
            for (key, value) in of.config.and_then(Value::as_object).into_iter().flatten() {
                message(config, 1, |item| {
                    string(item, KEY, key.as_bytes());
                    string(item, VALUE, value.to_string().as_bytes());
                });
            }
        });
        let texts = [(6, of.group), (7, of.job_type), (8, of.name), (9, of.notes)];
        texts.iter().for_each(|(field, value)| text(run, *field, value));
        of.tags.iter().for_each(|tag| string(run, 10, tag.as_bytes()));
        text(run, 13, of.host);
        message(run, 17, |time| timestamp(time, begun));
    })
}

/// Returns the record of a step's values.
pub(super) fn history(step: u64, items: &[Item], number: u64) -> Vec<u8> {
    record(number, HISTORY, |history| {
        items.iter().for_each(|(key, value)| nested(history, key, value));
        nested(history, "_step", &step.to_string());
        message(history, 2, |at| int(at, 1, step));
    })
}

/// Returns the record of the values that a run is listed with.
pub(super) fn summary(step: u64, items: &BTreeMap<String, String>, number: u64) -> Vec<u8> {
    record(number, SUMMARY, |summary| {
        items.iter().for_each(|(key, value)| nested(summary, key, value));
        nested(summary, "_step", &step.to_string());
    })
}

/// Returns the record of a file in the run's folder `files`.
pub(super) fn file(path: &str, number: u64) -> Vec<u8> {
    record(number, FILES, |files| message(files, 1, |file| string(file, 1, path.as_bytes())))
}

/// Figures of the system.
pub(super) fn stats(items: &[Item], at: SystemTime, number: u64) -> Vec<u8> {
    record(number, STATS, |stats| {
        message(stats, 2, |time| timestamp(time, at));
        for (key, value) in items {
            message(stats, 3, |item| {
                string(item, KEY, key.as_bytes());
                string(item, VALUE, value.as_bytes());
            });
        }
    })
}

/// Returns the record of a run's end.
pub(super) fn exit(code: u8, ran: Duration, number: u64) -> Vec<u8> {
    record(number, EXIT, |exit| {
        int(exit, 1, u64::from(code));
        int(exit, 2, ran.as_secs());
    })
}

fn nested(out: &mut Vec<u8>, key: &str, value: &str) {
    message(out, 1, |item| {
        string(item, NESTED_KEY, key.as_bytes());
        string(item, VALUE, value.as_bytes());
    });
}

fn timestamp(out: &mut Vec<u8>, at: SystemTime) {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    int(out, 1, since.as_secs());
    int(out, 2, u64::from(since.subsec_nanos()));
}

fn record(number: u64, field: u64, fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut record = Vec::new();
    int(&mut record, NUMBER, number);
    message(&mut record, field, fill);
    record
}

/// The kind of a record, as far as a run that goes on needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    History {
        step: u64,
        items: Vec<Item>,
    },
    /// The run had ended.
    Exit,
    Other,
}

/// Reads what kind a record is of, and the values of a step.
pub(super) fn read(record: &[u8]) -> Kind {
    let found = fields(record).find_map(|(field, value)| match (field, value) {
        (HISTORY, Wire::Bytes(history)) => Some(read_history(history)),
        (EXIT, _) => Some(Kind::Exit),
        _ => None,
    });
    found.unwrap_or(Kind::Other)
}

fn read_history(history: &[u8]) -> Kind {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (mut step, mut items) = (0, Vec::new());
    for (field, value) in fields(history) {
        let Wire::Bytes(inner) = value else { continue };
        let of = |wanted: u64| fields(inner).find(|(field, _)| *field == wanted).map(|(_, value)| value);
        match field {
            1 => {
                let part = |field| match of(field) {
                    Some(Wire::Bytes(bytes)) => text(bytes),
                    _ => String::new(),
                };
                items.push((part(NESTED_KEY), part(VALUE)));
            }
            2 => {
                if let Some(Wire::Int(number)) = of(1) {
                    step = number;
                }
            }
            _ => {}
        }
    }
    items.retain(|(key, _)| key != "_step");
    Kind::History { step, items }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::hex;
    use serde_json::json;

    /// The expected bytes are those of `wandb.proto.wandb_internal_pb2` of wandb 0.31.0 for the same records.
    #[test]
    fn records_have_the_bytes_of_wandb() {
        let at = UNIX_EPOCH + Duration::new(1_700_000_000, 5);
        let tags = ["a".to_owned(), "b".to_owned()];
        let config = json!({"train": {"lr": 0.001}});
        let of = RunRecord {
            id: "abc12345",
            project: "p",
            name: "n",
            tags: &tags,
            config: Some(&config),
            ..RunRecord::default()
        };
        let items = vec![("train/loss".to_owned(), number(0.5))];
        let made = [
            header("1.2.3"),
            run(&of, at, 2),
            history(7, &items, 3),
            summary(7, &items.iter().cloned().collect(), 4),
            file("media/a.json", 5),
            stats(&items, at, 6),
            exit(3, Duration::from_secs(9), 7),
        ];
        assert_eq!(made.map(hex), GOLDEN);
    }

    #[test]
    fn a_step_is_read_again() {
        let items = vec![("train/loss".to_owned(), number(f64::NAN)), ("x".to_owned(), number(-1.5))];
        assert_eq!(read(&history(300, &items, 9)), Kind::History { step: 300, items: items.clone() });
        assert_eq!(
            (read(&exit(0, Duration::ZERO, 9)), read(&summary(1, &BTreeMap::new(), 9))),
            (Kind::Exit, Kind::Other)
        );
        assert_eq!([number(f64::INFINITY), number(f64::NEG_INFINITY), number(2.0)], ["Infinity", "-Infinity", "2.0"]);
    }

    const GOLDEN: [&str; 7] = [
        "0801aa011c0a1a0a106c6f6f6e67666f72676520312e322e331206302e31322e30",
        "08028a013b0a0861626331323334351a017022180a160a05747261696e82010c7b226c72223a302e3030317d42016e5201615201628a01080880e2cfaa061005",
        "080312250a12120a747261696e2f6c6f7373820103302e350a0b12055f737465708201013712020807",
        "08041a210a12120a747261696e2f6c6f7373820103302e350a0b12055f7374657082010137",
        "080532100a0e0a0c6d656469612f612e6a736f6e",
        "08063a1e12080880e2cfaa0610051a120a0a747261696e2f6c6f7373820103302e35",
        "080792010408031009",
    ];
}
