//! `json.dumps`, which transformers has in place of Jinja's `tojson`.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, Value};

use super::error::wrong;
use super::print;

/// Spaces of an indentation.
const MAX_INDENT: usize = 1000;
const MAX_DEPTH: usize = 100;

struct Style {
    ascii: bool,
    /// One step of the indentation; `None`: all in one line.
    indent: Option<String>,
    item: String,
    key: String,
    sorted: bool,
}

/// Evaluates `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    if args.len() > 4 {
        return Err(wrong("tojson takes at most four arguments"));
    }
    let given = |place: usize, name: &'static str| match args.get(place) {
        Some(value) => Ok(value.clone()),
        None => kwargs.get::<Option<Value>>(name).map(|value| value.unwrap_or(Value::from(()))),
    };
    let (ascii, indent) = (given(0, "ensure_ascii")?.is_true(), step(&given(1, "indent")?)?);
    let (separators, sorted) = (given(2, "separators")?, given(3, "sort_keys")?.is_true());
    kwargs.assert_all_used()?;
    let (item, key) = match separators.is_none() {
        true => ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned()),
        false => {
            let pair: Vec<Value> = separators.try_iter()?.collect();
            match pair.as_slice() {
                [item, key] if item.as_str().is_some() && key.as_str().is_some() => {
                    (print::text(item), print::text(key))
                }
                _ => return Err(wrong("separators must be two strings")),
            }
        }
    };
    let mut json = String::new();
    write(&value, &Style { ascii, indent, item, key, sorted }, 0, &mut json)?;
    Ok(json)
}

fn step(indent: &Value) -> Result<Option<String>, Error> {
    if indent.is_none() {
        return Ok(None);
    }
    if let Some(text) = indent.as_str() {
        return Ok(Some(text.to_owned()));
    }
    let spaces =
        if indent.kind() == ValueKind::Bool { i64::from(indent.is_true()) } else { i64::try_from(indent.clone())? };
    match usize::try_from(spaces.max(0)) {
        Ok(spaces) if spaces <= MAX_INDENT => Ok(Some(" ".repeat(spaces))),
        _ => Err(wrong(format!("indent must be at most {MAX_INDENT}, found {spaces}"))),
    }
}

fn write(value: &Value, style: &Style, depth: usize, json: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(wrong("JSON is nested deeper than 100"));
    }
    match value.kind() {
        ValueKind::None => json.push_str("null"),
        ValueKind::Bool => json.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::String => string(value.as_str().unwrap_or_default(), style.ascii, json),
        ValueKind::Number => json.push_str(&number(value)),
        ValueKind::Seq => {
            let items = value.try_iter()?.map(|item| (None, item));
            list(items.collect(), ['[', ']'], style, depth, json)?;
        }
        ValueKind::Iterable if print::repr(value).starts_with('[') => {
            let items = value.try_iter()?.map(|item| (None, item));
            list(items.collect(), ['[', ']'], style, depth, json)?;
        }
        ValueKind::Map => {
            let mut pairs = Vec::new();
            for key in value.try_iter()? {
                pairs.push((Some(name(&key)?), value.get_item(&key)?));
            }
            if style.sorted {
                pairs.sort_by(|(left, _), (right, _)| left.cmp(right));
            }
            list(pairs, ['{', '}'], style, depth, json)?;
        }
        _ => return Err(wrong(format!("a value of kind {} is not JSON serializable", value.kind()))),
    }
    Ok(())
}

fn list(
    items: Vec<(Option<String>, Value)>,
    [open, close]: [char; 2],
    style: &Style,
    depth: usize,
    json: &mut String,
) -> Result<(), Error> {
    json.push(open);
    let is_empty = items.is_empty();
    let line = |depth: usize, json: &mut String| {
        if let Some(indent) = style.indent.as_ref().filter(|_| !is_empty) {
            json.push('\n');
            (0..depth).for_each(|_| json.push_str(indent));
        }
    };
    for (index, (key, item)) in items.into_iter().enumerate() {
        if index > 0 {
            json.push_str(&style.item);
        }
        line(depth + 1, json);
        if let Some(key) = key {
            string(&key, style.ascii, json);
            json.push_str(&style.key);
        }
        write(&item, style, depth + 1, json)?;
    }
    line(depth, json);
    json.push(close);
    Ok(())
}

fn name(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(print::text(key)),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => Ok(number(key)),
        kind => Err(wrong(format!("a key of kind {kind} is not JSON serializable"))),
    }
}

fn number(value: &Value) -> String {
    let text = print::repr(value);
    match text.as_str() {
        "nan" => "NaN".to_owned(),
        "inf" => "Infinity".to_owned(),
        "-inf" => "-Infinity".to_owned(),
        _ => text,
    }
}

fn string(text: &str, ascii: bool, json: &mut String) {
    json.push('"');
    for letter in text.chars() {
        match letter {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            '\u{8}' => json.push_str("\\b"),
            '\u{c}' => json.push_str("\\f"),
            letter if (letter as u32) < 0x20 || ascii && (letter as u32) >= 0x7f && letter != '\u{7f}' => {
                letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| json.push_str(&format!("\\u{unit:04x}")));
            }
            letter => json.push(letter),
        }
    }
    json.push('"');
}
