//! Checks single values against their schema: type, unit, choice, range. Unambiguous values are converted.

use serde_json::{Number, Value};

use super::error::{Problem, Sources, code};
use super::foreign;
use super::node::{Kind, Node};
use super::suggest;
use super::{Address, Area, Device, EpisodeRange, FrameSize, Shift, Size, Threads, TimeSpan, episodes};

/// Checks text, words from a list, and values with their own format.
pub(super) fn text(node: &mut Node, schema: &Value, sources: &Sources) -> Option<Problem> {
    let format = schema["format"].as_str().unwrap_or("");
    if let (Kind::Number(number), true) = (&node.kind, format.is_empty() && schema["enum"].is_null()) {
        // A name that looks like a number is still a name, as it is written, unless it stands somewhere else.
        let written = node
            .pos
            .and_then(|pos| sources.slice(pos))
            .filter(|written| written.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)))
            .unwrap_or_else(|| number.to_string());
        node.kind = Kind::Text(written);
    }
    let parsed = match (&node.kind, format) {
        (Kind::Text(text), "size") => text.parse::<Size>().map(drop),
        (Kind::Text(text), "duration") => text.parse::<TimeSpan>().map(drop),
        (Kind::Text(text), "device") => text.parse::<Device>().map(drop),
        (Kind::Text(text), "threads") => text.parse::<Threads>().map(drop),
        (Kind::Text(text), "address") => text.parse::<Address>().map(drop),
        (Kind::Text(text), "frame_size") => text.parse::<FrameSize>().map(drop),
        (Kind::Text(text), "area") => text.parse::<Area>().map(drop),
        (Kind::Text(text), "shift") => text.parse::<Shift>().map(drop),
        (Kind::Text(text), "episodes") => text.parse::<EpisodeRange>().map(drop),
        (Kind::Number(number), "episodes") => number.to_string().parse::<EpisodeRange>().map(drop),
        (Kind::Number(number), "area") => number.to_string().parse::<Area>().map(drop),
        (Kind::Number(number), "shift") => number.to_string().parse::<Shift>().map(drop),
        (Kind::Number(number), "size") => number.to_string().parse::<Size>().map(drop),
        (Kind::Number(number), "duration") => number.to_string().parse::<TimeSpan>().map(drop),
        (Kind::Number(number), "threads") => number.to_string().parse::<Threads>().map(drop),
        (_, "threads") => Err("expected `auto` or a number from 1 to 1024".to_owned()),
        (_, "frame_size") => Err("expected rows and columns, such as `480x832`".to_owned()),
        (_, "area") => Err("expected a number of pixels, or rows and columns, such as `480x832`".to_owned()),
        (_, "shift") => Err("expected `auto` or a number above 0".to_owned()),
        (_, "episodes") => Err(episodes::EPISODES.to_owned()),
        (_, "address") => Err("expected a path or HOST:PORT".to_owned()),
        (_, "device") => Err("expected `auto`, `cpu`, `cuda` or `cuda:N`".to_owned()),
        (Kind::Text(_), _) => Ok(()),
        _ => {
            return Some(expected(if schema["enum"].is_null() { "text" } else { "a word" }, node));
        }
    };
    if let Err(message) = parsed {
        return Some(Problem::new(code::WRONG_TYPE, None, format!("{message}, found {}", node.describe())));
    }
    let Kind::Text(text) = &node.kind else {
        return None;
    };
    if let Some(choices) = schema["enum"].as_array() {
        let choices: Vec<&str> = choices.iter().filter_map(Value::as_str).collect();
        // `-` and `_` are the same in words, too.
        if let Some(choice) = choices.iter().find(|choice| **choice == text.replace('-', "_")) {
            node.kind = Kind::Text((*choice).to_owned());
            return None;
        }
        let problem = expected(&one_of(&choices), node);
        let ours = foreign::our_value(text, &choices);
        // A word that is known and has no counterpart is no misspelled one.
        if let Some(remark) = foreign::remark(text, "").filter(|_| ours.is_none()) {
            return Some(problem.help(remark));
        }
        let near = ours.or_else(|| suggest::nearest(text, choices.iter().copied()));
        return Some(near.into_iter().fold(problem, |p, near| p.label(format!("did you mean `{near}`?"))));
    }
    let too_short = (text.chars().count() as u64) < schema["minLength"].as_u64().unwrap_or(0);
    too_short.then(|| Problem::new(code::OUT_OF_RANGE, None, "must not be empty"))
}

/// Reads an integer in the schema's range; a whole float such as `1e4` is converted. Returns what is wrong.
pub(super) fn integer(node: &mut Node, schema: &Value) -> Option<Problem> {
    if let Kind::Number(number) = &node.kind {
        // `1e4` is a count to a person; above 2^53 a float no longer names one.
        let value = number.as_f64().filter(|v| v.fract() == 0.0 && v.abs() <= 9_007_199_254_740_992.0);
        match (number.is_f64(), value) {
            (false, _) => return out_of_range(number, schema),
            (true, Some(value)) => {
                let number = Number::from(value as i64);
                let problem = out_of_range(&number, schema);
                node.kind = Kind::Number(number);
                return problem;
            }
            (true, None) => {}
        }
    }
    Some(expected("an integer", node))
}

/// Reads a number in the schema's range. Returns what is wrong, such as a number in quotes.
pub(super) fn number(node: &mut Node, schema: &Value) -> Option<Problem> {
    match &node.kind {
        Kind::Number(number) => out_of_range(number, schema),
        Kind::Text(text) if text.trim().parse::<f64>().is_ok_and(f64::is_finite) => {
            Some(expected("a number", node).label("a number without quotes"))
        }
        _ => Some(expected("a number", node)),
    }
}

/// Reads `true` or `false`, and no other words that YAML 1.1 accepts. Returns what is wrong.
pub(super) fn boolean(node: &mut Node) -> Option<Problem> {
    if matches!(node.kind, Kind::Bool(_)) {
        return None;
    }
    let problem = expected("`true` or `false`", node);
    let meant = match node.to_text().to_lowercase().as_str() {
        "yes" | "on" | "y" | "1" | "true" => "did you mean `true`?",
        "no" | "off" | "n" | "0" | "false" => "did you mean `false`?",
        _ => return Some(problem),
    };
    Some(problem.label(meant))
}

fn out_of_range(number: &Number, schema: &Value) -> Option<Problem> {
    let value = number.as_f64()?;
    let limit = |name: &str| schema[name].as_f64();
    let found = Node::new(Kind::Number(number.clone()), None).describe();
    let message = if let Some(min) = limit("minimum").filter(|min| value < *min) {
        format!("must be at least {min}, found {found}")
    } else if let Some(min) = limit("exclusiveMinimum").filter(|min| value <= *min) {
        format!("must be above {min}, found {found}")
    } else if let Some(max) = limit("maximum").filter(|max| value > *max) {
        format!("must be at most {max}, found {found}")
    } else {
        return None;
    };
    Some(Problem::new(code::OUT_OF_RANGE, None, message))
}

/// Creates the problem of a value of the wrong type.
pub(super) fn expected(what: &str, node: &Node) -> Problem {
    Problem::new(code::WRONG_TYPE, None, format!("expected {what}, found {}", node.describe()))
}

fn one_of(choices: &[&str]) -> String {
    let quoted: Vec<String> = choices.iter().map(|choice| format!("`{choice}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}
