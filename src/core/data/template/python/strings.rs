//! Methods of strings, bytes and maps that minijinja lacks or has otherwise.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, Value};

use super::error::wrong;
use super::print;

/// Letters that a filled text may get.
const MAX_WIDTH: usize = 1000;

/// `None`: not one of these.
pub(super) fn method(value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match (value.kind(), value.as_str()) {
        (ValueKind::Bytes, _) => of_bytes(value, name, args),
        (_, Some(text)) => of_text(text, name, args),
        (ValueKind::Seq, _) if name == "index" => {
            let (wanted,): (Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|item| item == wanted);
            at.map(|at| Some(Value::from(at))).ok_or_else(|| wrong("the value is not in the list"))
        }
        (ValueKind::Seq | ValueKind::Map, _) if name == "copy" => {
            let () = from_args(args)?;
            Ok(Some(value.clone()))
        }
        _ => Ok(None),
    }
}

fn of_bytes(value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let bytes = value.as_bytes().unwrap_or_default();
    if name != "decode" {
        return Ok(None);
    }
    check_encoding(args)?;
    let text = String::from_utf8(bytes.to_vec()).map_err(|_| wrong("the bytes are not UTF-8"))?;
    Ok(Some(text.into()))
}

fn check_encoding(args: &[Value]) -> Result<(), Error> {
    let (encoding, _): (Option<&str>, Option<&str>) = from_args(args)?;
    let encoding = encoding.unwrap_or("utf-8").to_lowercase().replace(['-', '_'], "");
    if encoding == "utf8" { Ok(()) } else { Err(wrong(format!("encoding {encoding:?}: only UTF-8 is supported"))) }
}

/// Carries out a method of one group; `None`: the group has none of this name.
type Group = fn(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error>;

fn of_text(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let groups: [Group; 4] = [taken_apart, filled, in_case, told];
    for group in groups {
        if let Some(value) = group(text, name, args)? {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// Carries out the methods that take a text apart or put one together.
fn taken_apart(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "encode" => {
            check_encoding(args)?;
            Value::from_bytes(text.as_bytes().to_vec())
        }
        "split" | "rsplit" => {
            let (separator, limit, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = separator.or(kwargs.get("sep")?).filter(|separator| !separator.is_none());
            let limit = limit.or(kwargs.get("maxsplit")?).unwrap_or(-1);
            kwargs.assert_all_used()?;
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let parts = match &separator {
                None => split_blanks(text, limit, name == "rsplit"),
                Some(separator) => {
                    let separator = separator.as_str().ok_or_else(|| wrong("the separator is not a string"))?;
                    split(text, separator, limit, name == "rsplit")?
                }
            };
            parts.into_iter().map(Value::from).collect()
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(wrong("empty separator"));
            }
            let is_first = name == "partition";
            let found = if is_first { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = match found {
                Some((before, behind)) => [before, separator, behind],
                None if is_first => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::new(parts.map(Value::from).to_vec()))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            text.strip_prefix(prefix).unwrap_or(text).into()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            text.strip_suffix(suffix).unwrap_or(text).into()
        }
        "strip" | "lstrip" | "rstrip" => {
            let (letters,): (Option<&str>,) = from_args(args)?;
            let drops = |letter: char| letters.map_or_else(|| is_space(letter), |letters| letters.contains(letter));
            match name {
                "strip" => text.trim_matches(drops),
                "lstrip" => text.trim_start_matches(drops),
                _ => text.trim_end_matches(drops),
            }
            .into()
        }
        "splitlines" => {
            let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(kwargs.get("keepends")?).unwrap_or(false);
            kwargs.assert_all_used()?;
            split_lines(text, keep).into_iter().map(Value::from).collect()
        }
        "join" => {
            let (values,): (Value,) = from_args(args)?;
            let mut parts = Vec::new();
            for part in values.try_iter()? {
                parts.push(part.as_str().map(str::to_owned).ok_or_else(|| wrong("join: an item is not a string"))?);
            }
            parts.join(text).into()
        }
        _ => return Ok(None),
    }))
}

/// Carries out the methods that fill a text up.
fn filled(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", "0".repeat(room(text, width)?)).into()
        }
        "center" | "ljust" | "rjust" => {
            let (width, fill): (i64, Option<&str>) = from_args(args)?;
            let (room, fill) = (room(text, usize::try_from(width).unwrap_or(0))?, fill.unwrap_or(" "));
            let left = match name {
                "ljust" => 0,
                "rjust" => room,
                // The odd one goes where CPython puts it.
                _ => room / 2 + (room & width.max(0) as usize & 1),
            };
            format!("{}{text}{}", fill.repeat(left), fill.repeat(room - left)).into()
        }
        "expandtabs" => {
            let (size,): (Option<usize>,) = from_args(args)?;
            expand_tabs(text, size.unwrap_or(8).min(MAX_WIDTH)).into()
        }
        _ => return Ok(None),
    }))
}

/// Carries out the methods that change the case of letters.
fn in_case(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |letter: char| match letter.is_uppercase() {
                true => letter.to_lowercase().collect::<String>(),
                false => letter.to_uppercase().collect(),
            };
            text.chars().map(swap).collect::<String>().into()
        }
        "casefold" => {
            let () = from_args(args)?;
            text.to_lowercase().replace('ß', "ss").into()
        }
        "title" => {
            let () = from_args(args)?;
            title(text).into()
        }
        _ => return Ok(None),
    }))
}

/// Carries out the methods that tell something of a text.
fn told(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "istitle" => {
            let () = from_args(args)?;
            (text.chars().any(char::is_alphabetic) && title(text) == text).into()
        }
        "index" | "rindex" => {
            let (wanted,): (&str,) = from_args(args)?;
            let at = if name == "index" { text.find(wanted) } else { text.rfind(wanted) };
            let at = at.ok_or_else(|| wrong("substring not found"))?;
            text[..at].chars().count().into()
        }
        "startswith" | "endswith" if args.len() > 1 => {
            let (affix, from, to): (&str, i64, Option<i64>) = from_args(args)?;
            let letters: Vec<char> = text.chars().collect();
            let place = |at: i64| if at < 0 { (letters.len() as i64 + at).max(0) as usize } else { at as usize };
            let (from, to) = (place(from), to.map_or(letters.len(), place).min(letters.len()));
            let part: String = letters.get(from..to).unwrap_or_default().iter().collect();
            let fits = if name == "startswith" { part.starts_with(affix) } else { part.ends_with(affix) };
            (fits && from <= letters.len()).into()
        }
        "isdecimal" => {
            let () = from_args(args)?;
            (!text.is_empty() && text.chars().all(|letter| letter.is_ascii_digit())).into()
        }
        "isidentifier" => {
            let () = from_args(args)?;
            let mut letters = text.chars();
            let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
            (letters.next().is_some_and(|first| is_word(first) && !first.is_numeric()) && letters.all(is_word)).into()
        }
        _ => return Ok(None),
    }))
}

/// Python's `str.isspace`.
pub(super) fn is_space(letter: char) -> bool {
    letter.is_whitespace() || matches!(letter, '\u{1c}'..='\u{1f}')
}

fn room(text: &str, width: usize) -> Result<usize, Error> {
    match width {
        0..=MAX_WIDTH => Ok(width.saturating_sub(text.chars().count())),
        _ => Err(wrong(format!("width must be at most {MAX_WIDTH}, found {width}"))),
    }
}

fn split<'a>(text: &'a str, separator: &str, limit: usize, from_right: bool) -> Result<Vec<&'a str>, Error> {
    if separator.is_empty() {
        return Err(wrong("empty separator"));
    }
    let limit = limit.saturating_add(1);
    Ok(match from_right {
        false => text.splitn(limit, separator).collect(),
        true => {
            let mut parts: Vec<&str> = text.rsplitn(limit, separator).collect();
            parts.reverse();
            parts
        }
    })
}

fn split_blanks(text: &str, limit: usize, from_right: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_matches(is_space);
    while !rest.is_empty() {
        let at = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = at.filter(|_| parts.len() < limit) else {
            parts.push(rest);
            break;
        };
        match from_right {
            false => {
                parts.push(&rest[..at]);
                rest = rest[at..].trim_start_matches(is_space);
            }
            true => {
                let (before, part) = rest.split_at(at);
                parts.push(part.trim_start_matches(is_space));
                rest = before.trim_end_matches(is_space);
            }
        }
    }
    if from_right {
        parts.reverse();
    }
    parts
}

fn split_lines(text: &str, keep: bool) -> Vec<&str> {
    let ends = |letter: char| {
        matches!(letter, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(ends) {
        let len = if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(1, char::len_utf8) };
        lines.push(if keep { &rest[..at + len] } else { &rest[..at] });
        rest = &rest[at + len..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// Letters behind letters are small, others are large.
fn title(text: &str) -> String {
    let mut behind_letter = false;
    let mut result = String::new();
    for letter in text.chars() {
        match behind_letter {
            true => result.extend(letter.to_lowercase()),
            false => result.extend(letter.to_uppercase()),
        }
        behind_letter = letter.is_alphabetic();
    }
    result
}

fn expand_tabs(text: &str, size: usize) -> String {
    let (mut result, mut column) = (String::new(), 0);
    for letter in text.chars() {
        match letter {
            '\t' if size == 0 => {}
            '\t' => {
                let spaces = size - column % size;
                result.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            '\n' | '\r' => {
                result.push(letter);
                column = 0;
            }
            _ => {
                result.push(letter);
                column += 1;
            }
        }
    }
    result
}

/// Evaluates the filter `trim`.
pub(super) fn trim(value: Value, letters: Option<String>) -> String {
    let text = print::text(&value);
    text.trim_matches(|letter| letters.as_ref().map_or_else(|| is_space(letter), |letters| letters.contains(letter)))
        .to_owned()
}
