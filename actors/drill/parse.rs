//! Parses scripts: `WHO: WHAT [at step N] [for 2s]`, one per line or separated by semicolons; `#` starts a comment.

use super::script::{Fault, FaultRule, Pattern, Rate, Script, Span, Target};
use loongforge_core::engine::fault::POINTS;
use loongforge_core::message::BadPoolName;
use std::str::FromStr;
use std::time::Duration;

/// A fault that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{fault}`: {what}")]
pub struct ScriptError {
    fault: String,
    what: String,
}

const VERBS: &str = "kill, freeze, partition, delay, throttle, flip, duplicate, reorder, lose, drop, reset or cut";

impl FromStr for Script {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<Self, ScriptError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let faults = lines.flat_map(|line| line.split(';')).map(str::trim).filter(|fault| !fault.is_empty());
        let faults: Vec<FaultRule> = faults.map(str::parse).collect::<Result<_, _>>()?;
        if faults.is_empty() {
            let what = "write for example `encoder/1: kill at step 5`".to_owned();
            return Err(ScriptError { fault: text.trim().to_owned(), what });
        }
        Ok(Self { faults })
    }
}

impl FromStr for FaultRule {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<Self, ScriptError> {
        fault(text).map_err(|what| ScriptError { fault: text.to_owned(), what })
    }
}

fn fault(text: &str) -> Result<FaultRule, String> {
    let (who, what) = text.split_once(':').ok_or("write WHO: FAULT, for example `encoder/1: kill at step 5`")?;
    let mut words = Words(what.split_whitespace().collect());
    let name = words.next("which fault")?;
    let mut verb = verb(name, &mut words)?;
    let target = target(who)?;
    let (mut from_step, mut span) = (0, None);
    while let Some(word) = words.maybe() {
        match word {
            "at" => match (words.next("`step N` after `at`")?, &mut verb) {
                ("step", _) => from_step = words.number("the number of a step")?,
                (point, Fault::Kill { point: at } | Fault::Freeze { point: at }) if POINTS.contains(&point) => {
                    let nth = words.peek().filter(|word| *word != "for").is_some();
                    let nth = if nth { words.number("a count of how often it gets there")? } else { 1 };
                    *at = Some((point.to_owned(), nth as u32));
                }
                (point, _) => {
                    return Err(format!("`at {point}`: write `at step N`, or for kill and freeze a point: {POINTS:?}"));
                }
            },
            "for" => {
                let amount = words.next("how long, as in `for 2s` or `for 3 steps`")?;
                span = Some(match (amount.parse(), words.peek()) {
                    (Ok(steps), Some("step" | "steps")) => {
                        words.maybe();
                        Span::Steps(steps)
                    }
                    _ => Span::Time(duration(amount)?),
                });
            }
            other => {
                return Err(format!("`{other}` is not understood; after what happens come `at step N` and `for 2s`"));
            }
        }
    }
    match (&target, verb.is_of_process()) {
        (Target::Process(_), false) => {
            Err(format!("{name} happens between two processes: write `{} <-> scheduler: {name} …`", who.trim()))
        }
        (Target::Line { .. }, true) => {
            Err(format!("{name} happens to one process, as in `encoder/1: {name} at step 5`"))
        }
        _ => Ok(FaultRule { text: text.trim().to_owned(), target, verb, from_step, span }),
    }
}

fn target(who: &str) -> Result<Target, String> {
    let line = |(from, to): (&str, &str), both| Ok(Target::Line { from: pattern(from)?, to: pattern(to)?, both });
    if let Some(ends) = who.split_once("<->") {
        return line(ends, true);
    }
    if let Some(ends) = who.split_once("->") {
        return line(ends, false);
    }
    Ok(Target::Process(pattern(who)?))
}

fn pattern(text: &str) -> Result<Pattern, String> {
    let text = text.trim();
    if text == "*" {
        return Ok(Pattern { pool: None, index: None });
    }
    let (pool, index) = text.split_once('/').unwrap_or((text, "*"));
    let pool = pool.parse().map_err(|error: BadPoolName| error.to_string())?;
    let wrong = |_| format!("`{text}` names no process: write encoder/1, encoder/* or *");
    let index = if index == "*" { None } else { Some(index.parse().map_err(wrong)?) };
    Ok(Pattern { pool: Some(pool), index })
}

fn verb(name: &str, words: &mut Words<'_>) -> Result<Fault, String> {
    Ok(match name {
        "kill" => Fault::Kill { point: None },
        "freeze" => Fault::Freeze { point: None },
        "partition" => Fault::Partition,
        "drop" => Fault::Drop,
        "reset" => Fault::Reset,
        "flip" => Fault::Flip { rate: words.rate()? },
        "duplicate" => Fault::Duplicate { rate: words.rate()? },
        "reorder" => Fault::Reorder { rate: words.rate()? },
        "lose" => Fault::Lose { rate: words.rate()? },
        "delay" => {
            let by = words.next("by how much, as in `delay 50ms` or `delay 10ms..80ms`")?;
            let (least, most) = by.split_once("..").unwrap_or((by, by));
            let (least, most) = (duration(least)?, duration(most)?);
            if most < least {
                return Err(format!("`{by}`: the end of the range is before its start"));
            }
            Fault::Delay { least, most }
        }
        "throttle" => Fault::Throttle { rate: throughput(words.next("to how much, as in `throttle 1Mbit`")?)? },
        "cut" => {
            let after = match words.next("after how many bytes, as in `cut after 10000 bytes`")? {
                "after" => words.number("a number of bytes")?,
                other => return Err(format!("`cut {other}`: write `cut after 10000 bytes`")),
            };
            if words.peek().is_some_and(|word| word == "bytes") {
                words.maybe();
            }
            Fault::Cut { after }
        }
        other => return Err(format!("unknown fault `{other}`; faults are {VERBS}")),
    })
}

struct Words<'a>(std::collections::VecDeque<&'a str>);

impl<'a> Words<'a> {
    fn maybe(&mut self) -> Option<&'a str> {
        self.0.pop_front()
    }

    fn peek(&self) -> Option<&'a str> {
        self.0.front().copied()
    }

    fn next(&mut self, what: &str) -> Result<&'a str, String> {
        self.maybe().ok_or_else(|| format!("say {what}"))
    }

    fn number(&mut self, what: &str) -> Result<u64, String> {
        let word = self.next(what)?;
        word.parse().map_err(|_| format!("`{word}` is not {what}"))
    }

    /// Reads `10%`, or nothing.
    fn rate(&mut self) -> Result<Rate, String> {
        let Some(percent) = self.peek().and_then(|word| word.strip_suffix('%')) else { return Ok(Rate::Once) };
        self.maybe();
        let share = percent.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
        Ok(Rate::Share(share.ok_or_else(|| format!("`{percent}%` is no share"))? / 100.0))
    }
}

/// Returns a number with one of these units behind it.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (unit, factor) = units.iter().find(|(unit, _)| text.ends_with(unit))?;
    let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor)
}

fn duration(text: &str) -> Result<Duration, String> {
    let seconds = quantity(text, &[("ms", 1e-3), ("s", 1.0), ("m", 60.0)]).filter(|seconds| *seconds < 1e6);
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("`{text}` is not a duration: write 500ms, 2s or 1m"))
}

fn throughput(text: &str) -> Result<u64, String> {
    let bytes = quantity(text, &[("kbit", 125.0), ("Mbit", 125e3), ("kB", 1e3), ("MB", 1e6)]);
    let bytes = bytes.filter(|bytes| *bytes >= 1.0);
    bytes.map(|bytes| bytes as u64).ok_or_else(|| format!("`{text}` is not a rate: write 64kbit, 1Mbit, 100kB or 5MB"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::message::{ActorId, PoolName};

    fn one(text: &str) -> FaultRule {
        let script: Script = text.parse().unwrap();
        script.faults[0].clone()
    }

    #[test]
    fn faults_are_read() {
        let script: Script = "
            encoder/1: kill at step 5      # a comment
            encoder/1 <-> scheduler: partition at step 5 for 2s; * -> *: duplicate 10% at step 1 for 3 steps
        "
        .parse()
        .unwrap();
        assert_eq!(script.faults.len(), 3);
        let encoder = Pattern { pool: Some(PoolName::ENCODER), index: Some(1) };
        let [kill, partition, duplicate] = &script.faults[..] else { panic!() };
        assert_eq!((kill.target, kill.from_step), (Target::Process(encoder), 5));
        assert_eq!(partition.span, Some(Span::Time(Duration::from_secs(2))));
        assert!(partition.target.covers(ActorId::SCHEDULER, ActorId::encoder(1)));
        assert!(!partition.target.covers(ActorId::SCHEDULER, ActorId::encoder(0)));
        assert_eq!(
            (&duplicate.verb, duplicate.span),
            (&Fault::Duplicate { rate: Rate::Share(0.1) }, Some(Span::Steps(3)))
        );
        let audio: PoolName = "audio".parse().unwrap();
        let of_audio = Target::Process(Pattern { pool: Some(audio), index: Some(1) });
        assert_eq!(one("audio/1: kill at step 5").target, of_audio);
        let line = one("audio/* <-> foundation/0: partition at step 5 for 2s").target;
        assert!(line.covers(ActorId::foundation(0), ActorId::encoder_of(audio, 3)));
        assert!(!line.covers(ActorId::foundation(0), ActorId::encoder(3)));
        assert!(!one("encoder/* -> foundation/0: flip").target.covers(ActorId::foundation(0), ActorId::encoder(0)));
        assert_eq!(
            one("*->*: delay 10ms..1s").verb,
            Fault::Delay { least: Duration::from_millis(10), most: Duration::from_secs(1) }
        );
        assert_eq!(one("*->*: throttle 1Mbit").verb, Fault::Throttle { rate: 125_000 });
        assert_eq!(one("*->*: cut after 100 bytes at step 2").verb, Fault::Cut { after: 100 });
        let frozen = one("encoder/0: freeze at before_reduce 3 for 1s");
        assert_eq!(frozen.verb, Fault::Freeze { point: Some(("before_reduce".into(), 3)) });
        assert_eq!(one("encoder/0: kill at after_send").verb, Fault::Kill { point: Some(("after_send".into(), 1)) });
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, what) in [
            ("", "write for example"),
            ("encoder/1 kill", "write WHO: FAULT"),
            ("encoder/1: hug", "unknown fault"),
            ("Encodr/1: kill", "`Encodr` is not a valid pool name"),
            ("encoder/x: kill", "names no process"),
            ("encoder/1: partition", "between two processes: write `encoder/1 <-> scheduler: partition"),
            ("encoder/1 -> scheduler: kill", "happens to one process"),
            ("encoder/1: kill at 5", "write `at step N`"),
            ("encoder/1: kill at step five", "not the number of a step"),
            ("*->*: delay soon", "is not a duration"),
            ("*->*: delay 5s..1s", "the end of the range is before its start"),
            ("*->*: flip 200%", "is no share"),
            ("*->*: throttle slow", "is not a rate"),
            ("*->*: partition until tomorrow", "`until` is not understood"),
        ] {
            let error = text.parse::<Script>().unwrap_err().to_string();
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
