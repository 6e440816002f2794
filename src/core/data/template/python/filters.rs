//! Filters that minijinja lacks or has otherwise, and tests.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, Value};

use super::error::wrong;
use super::{format, print, strings};

/// Letters of an indentation, items of a batch.
const MAX_WIDTH: usize = 1000;

/// Adds the filters and tests, which take what Jinja's take.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter("indent", indent);
    environment.add_filter("format", format::filter);
    environment.add_filter("trim", strings::trim);
    environment.add_filter("join", join);
    environment.add_filter("batch", batch);
    environment.add_filter("slice", slice);
    environment.add_filter("wordcount", |text: String| words(&text));
    environment.add_filter("center", center);
    environment.add_filter("truncate", truncate);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("round", round);
    environment.add_filter("int", int);
    environment.add_filter("last", last);
    environment.add_filter("replace", replace);
    environment.add_filter("reverse", reverse);
    environment.add_filter("e", escape);
    environment.add_filter("escape", escape);
    environment.add_filter("capitalize", |value: Value| capitalize(&print::text(&value)));
    environment.add_filter("upper", |value: Value| print::text(&value).to_uppercase());
    environment.add_filter("lower", |value: Value| print::text(&value).to_lowercase());
    environment
        .add_test("iterable", |value: Value| !value.is_none() && !value.is_undefined() && value.try_iter().is_ok());
    // A text and a map are sequences to Jinja: they have a length and items.
    environment.add_test("sequence", |value: Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
    environment.add_test("number", |value: Value| value.is_number() || value.kind() == ValueKind::Bool);
    environment.add_test("callable", |value: Value| matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined));
}

/// Words in the sense of `\w+`.
fn words(text: &str) -> usize {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty()).count()
}

fn length(value: Value) -> Result<usize, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(0),
        ValueKind::Bytes => Ok(value.as_bytes().map_or(0, <[u8]>::len)),
        ValueKind::Iterable => Ok(value.try_iter()?.count()),
        kind => value.len().ok_or_else(|| wrong(format!("a value of kind {kind} has no length"))),
    }
}

fn join(values: Value, between: Option<String>, attribute: Option<String>, kwargs: Kwargs) -> Result<String, Error> {
    let between = between.or(kwargs.get("d")?).unwrap_or_default();
    let attribute = attribute.or(kwargs.get("attribute")?);
    kwargs.assert_all_used()?;
    if values.is_undefined() {
        return Ok(String::new());
    }
    let mut parts = Vec::new();
    for value in values.try_iter()? {
        let value =
            attribute.iter().flat_map(|path| path.split('.')).try_fold(value, |value, key| value.get_attr(key))?;
        parts.push(print::text(&value));
    }
    Ok(parts.join(&between))
}

/// Indents as Jinja does, with a bound.
fn indent(
    text: String,
    width: Option<Value>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<String, Error> {
    let width = width.or(kwargs.get("width")?);
    let (first, blank) = (first.or(kwargs.get("first")?), blank.or(kwargs.get("blank")?));
    kwargs.assert_all_used()?;
    let step = match &width {
        None => " ".repeat(4),
        Some(width) if width.as_str().is_some() => print::text(width),
        Some(width) => {
            let spaces = usize::try_from(width.clone())?;
            if spaces > MAX_WIDTH {
                return Err(wrong(format!("indent: width must be at most {MAX_WIDTH}, found {spaces}")));
            }
            " ".repeat(spaces)
        }
    };
    let lines = text.split('\n').enumerate().map(|(index, line)| {
        let indented = if index == 0 { first == Some(true) } else { !line.is_empty() || blank == Some(true) };
        if indented { format!("{step}{line}") } else { line.to_owned() }
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

fn batch(values: Value, size: usize, fill: Option<Value>) -> Result<Value, Error> {
    if size == 0 || size > MAX_WIDTH {
        return Err(wrong(format!("batch: size must be 1 to {MAX_WIDTH}, found {size}")));
    }
    let values: Vec<Value> = values.try_iter()?.collect();
    let rows = values.chunks(size).map(|row| {
        let mut row = row.to_vec();
        if let Some(fill) = fill.as_ref().filter(|fill| !fill.is_none()) {
            row.resize(size, fill.clone());
        }
        Value::from(row)
    });
    Ok(rows.collect())
}

fn slice(values: Value, slices: usize, fill: Option<Value>) -> Result<Value, Error> {
    if slices == 0 || slices > MAX_WIDTH {
        return Err(wrong(format!("slice: number of slices must be 1 to {MAX_WIDTH}, found {slices}")));
    }
    let values: Vec<Value> = values.try_iter()?.collect();
    let (each, more) = (values.len() / slices, values.len() % slices);
    let mut begin = 0;
    let row = |index: usize| {
        let end = begin + each + usize::from(index < more);
        let mut row = values[begin..end].to_vec();
        begin = end;
        if let Some(fill) = fill.as_ref().filter(|fill| !fill.is_none() && index >= more) {
            row.push(fill.clone());
        }
        Value::from(row)
    };
    Ok((0..slices).map(row).collect())
}

fn center(text: String, width: Option<usize>) -> Result<Value, Error> {
    let width = Value::from(width.unwrap_or(80));
    Ok(strings::method(&Value::from(text), "center", &[width])?.unwrap_or_default())
}

fn truncate(text: String, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let given = |place: usize, name: &'static str| match args.get(place) {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get::<Option<Value>>(name),
    };
    let number = |value: Option<Value>, default: usize| value.map_or(Ok(default), usize::try_from);
    let (length, leeway) = (number(given(0, "length")?, 255)?, number(given(3, "leeway")?, 5)?);
    let kill = given(1, "killwords")?.is_some_and(|kill| kill.is_true());
    let end = given(2, "end")?.map_or_else(|| "...".to_owned(), |end| print::text(&end));
    kwargs.assert_all_used()?;
    let (count, end_count) = (text.chars().count(), end.chars().count());
    if count <= length.saturating_add(leeway) {
        return Ok(text);
    }
    if length < end_count {
        return Err(wrong(format!("truncate: length {length} is shorter than its end")));
    }
    let kept: String = text.chars().take(length - end_count).collect();
    let kept = if kill { kept } else { kept.rsplit_once(' ').map_or(kept.clone(), |(words, _)| words.to_owned()) };
    Ok(kept + &end)
}

/// Rounds as Python's `round` does: halves go to the even neighbor; the result has a point.
fn round(value: Value, precision: Option<i32>, method: Option<String>, kwargs: Kwargs) -> Result<Value, Error> {
    let precision = precision.or(kwargs.get("precision")?).unwrap_or(0);
    let method = method.or(kwargs.get("method")?).unwrap_or_else(|| "common".to_owned());
    kwargs.assert_all_used()?;
    if value.is_integer() && method == "common" {
        return Ok(value);
    }
    let number = f64::try_from(value)?;
    let scale = 10f64.powi(precision);
    match method.as_str() {
        "common" if precision < 0 => Ok(Value::from((number * scale).round_ties_even() / scale)),
        // Correctly rounded from all digits, as Python does.
        "common" => Ok(Value::from(format!("{number:.*}", precision as usize).parse::<f64>().unwrap_or(number))),
        "ceil" => Ok(Value::from((number * scale).ceil() / scale)),
        "floor" => Ok(Value::from((number * scale).floor() / scale)),
        other => Err(wrong(format!("round: method must be one of common, ceil and floor, found {other:?}"))),
    }
}

fn escape(value: Value) -> Value {
    if value.is_safe() {
        return value;
    }
    let escaped = [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("'", "&#39;"), ("\"", "&#34;")];
    Value::from_safe_string(escaped.iter().fold(print::text(&value), |text, (letter, name)| text.replace(letter, name)))
}

/// Converts a value to a whole number, as Jinja's filter `int`; returns the default where it is no number.
fn int(value: Value, default: Option<Value>, base: Option<u32>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = default.or(kwargs.get("default")?).unwrap_or_else(|| Value::from(0));
    let base = base.or(kwargs.get("base")?).unwrap_or(10);
    kwargs.assert_all_used()?;
    if value.is_integer() {
        return Ok(value);
    }
    if value.kind() == ValueKind::Bool {
        return Ok(Value::from(i64::from(value.is_true())));
    }
    let cut = |number: f64| number.is_finite().then(|| Value::from(number.trunc() as i64));
    let Some(text) = value.as_str() else {
        return Ok(f64::try_from(value.clone()).ok().and_then(cut).unwrap_or(default));
    };
    if !(2..=36).contains(&base) {
        return Err(wrong(format!("int: base must be 2 to 36, found {base}")));
    }
    let text = text.trim_matches(strings::is_space).replace('_', "");
    let whole = i64::from_str_radix(&text, base).ok().map(Value::from);
    Ok(whole.or_else(|| text.parse().ok().and_then(cut)).unwrap_or(default))
}

/// Returns the last item; of a map the last key.
fn last(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => Ok(value.try_iter()?.last().unwrap_or_default()),
        _ => minijinja::filters::last(value),
    }
}

/// Returns the items from the last to the first; of a map its keys.
fn reverse(value: Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            keys.reverse();
            Ok(Value::from(keys))
        }
        _ => minijinja::filters::reverse(&value),
    }
}

/// Returns a text with another in place of a part of it, everywhere or the first `count` times.
fn replace(value: Value, old: Value, new: Value, count: Option<i64>, kwargs: Kwargs) -> Result<String, Error> {
    let count = count.or(kwargs.get("count")?).and_then(|count| usize::try_from(count).ok());
    kwargs.assert_all_used()?;
    let [text, old, new] = [value, old, new].map(|value| print::text(&value));
    Ok(count.map_or_else(|| text.replace(&old, &new), |count| text.replacen(&old, &new, count)))
}

fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().collect::<String>() + &letters.as_str().to_lowercase())
}
