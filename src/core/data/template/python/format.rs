//! printf's formats, as `str.__mod__` has them.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, Value};

use super::error::wrong;
use super::print;

/// Letters that a width or a precision may ask for.
const MAX_WIDTH: usize = 1000;

/// Evaluates `text % value`.
pub(super) fn percent(text: String, value: Value) -> Result<String, Error> {
    let args = match value.is_tuple() {
        true => value.try_iter()?.collect(),
        false => vec![value.clone()],
    };
    let named = (value.kind() == ValueKind::Map).then_some(value);
    format(&text, args, named)
}

/// Evaluates Jinja's filter: `text % args`, or `text % kwargs`.
pub(super) fn filter(text: String, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let mut named = Vec::new();
    for key in kwargs.args() {
        named.push((key.to_owned(), kwargs.get::<Value>(key)?));
    }
    match named.is_empty() {
        true => format(&text, args.0, None),
        false if args.0.is_empty() => format(&text, Vec::new(), Some(Value::from_pairs(named))),
        false => Err(wrong("format takes positional or named arguments, not both")),
    }
}

#[derive(Default)]
struct Spec {
    left: bool,
    zero: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
}

fn format(text: &str, args: Vec<Value>, named: Option<Value>) -> Result<String, Error> {
    let mut args = args.into_iter();
    let mut used_name = false;
    let mut result = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            result.push(letter);
            continue;
        }
        let mut value = None;
        if letters.next_if_eq(&'(').is_some() {
            let name: String = letters.by_ref().take_while(|&letter| letter != ')').collect();
            let named = named.as_ref().ok_or_else(|| wrong("format requires a mapping"))?;
            let found = named.get_item(&Value::from(name.as_str()))?;
            if found.is_undefined() {
                return Err(wrong(format!("no value for {name:?}")));
            }
            (value, used_name) = (Some(found), true);
        }
        let mut spec = Spec::default();
        while let Some(flag) = letters.next_if(|letter| "-0+ #".contains(*letter)) {
            match flag {
                '-' => spec.left = true,
                '0' => spec.zero = true,
                '+' => spec.plus = true,
                ' ' => spec.space = true,
                _ => spec.alternate = true,
            }
        }
        let number = |letters: &mut std::iter::Peekable<std::str::Chars<'_>>| {
            let mut digits = String::new();
            while let Some(digit) = letters.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            let number = if digits.is_empty() { 0 } else { digits.parse().unwrap_or(usize::MAX) };
            if number > MAX_WIDTH {
                Err(wrong(format!("format width must be at most {MAX_WIDTH}")))
            } else {
                Ok(number)
            }
        };
        spec.width = number(&mut letters)?;
        if letters.next_if_eq(&'.').is_some() {
            spec.precision = Some(number(&mut letters)?);
        }
        while letters.next_if(|letter| "hlL".contains(*letter)).is_some() {}
        let Some(kind) = letters.next() else { return Err(wrong("incomplete format")) };
        if kind == '%' {
            result.push('%');
            continue;
        }
        let value = match value {
            Some(value) => value,
            None => args.next().ok_or_else(|| wrong("not enough arguments for format string"))?,
        };
        result += &one(kind, &value, &spec)?;
    }
    if args.next().is_some() && !used_name && named.is_none() {
        return Err(wrong("not all arguments converted during string formatting"));
    }
    Ok(result)
}

fn one(kind: char, value: &Value, spec: &Spec) -> Result<String, Error> {
    let is_number = value.is_number() || value.kind() == ValueKind::Bool;
    let float = || match is_number {
        true => f64::try_from(value.clone()).or_else(|_| i128::try_from(value.clone()).map(|whole| whole as f64)),
        false => Err(wrong(format!("%{kind} format: a number is required, not {}", value.kind()))),
    };
    let cut = |text: String| match spec.precision {
        Some(precision) => text.chars().take(precision).collect(),
        None => text,
    };
    let (negative, body, is_number) = match kind {
        's' => (false, cut(print::text(value)), false),
        'r' | 'a' => (false, cut(print::repr(value)), false),
        'c' => (false, value.as_str().map(str::to_owned).ok_or_else(|| wrong("%c requires a letter"))?, false),
        'd' | 'i' | 'u' => {
            let whole = match value.is_integer() || value.kind() == ValueKind::Bool {
                true => i128::try_from(value.clone())?,
                false => float()?.trunc() as i128,
            };
            (whole < 0, whole.unsigned_abs().to_string(), true)
        }
        'x' | 'X' | 'o' => {
            let whole =
                i128::try_from(value.clone()).map_err(|_| wrong(format!("%{kind} format: an integer is required")))?;
            let absolute = whole.unsigned_abs();
            let (prefix, digits) = match kind {
                'x' => ("0x", format!("{absolute:x}")),
                'X' => ("0X", format!("{absolute:X}")),
                _ => ("0o", format!("{absolute:o}")),
            };
            (whole < 0, if spec.alternate { format!("{prefix}{digits}") } else { digits }, true)
        }
        'f' | 'F' => {
            let number = float()?;
            (number.is_sign_negative(), format!("{:.*}", spec.precision.unwrap_or(6), number.abs()), true)
        }
        'e' | 'E' => {
            let number = float()?;
            let text = exponential(number.abs(), spec.precision.unwrap_or(6));
            (number.is_sign_negative(), if kind == 'E' { text.to_uppercase() } else { text }, true)
        }
        'g' | 'G' => {
            let number = float()?;
            let text = general(number.abs(), spec.precision.unwrap_or(6).max(1));
            (number.is_sign_negative(), if kind == 'G' { text.to_uppercase() } else { text }, true)
        }
        other => return Err(wrong(format!("unsupported format character {other:?}"))),
    };
    let sign = match (negative, is_number) {
        (true, _) => "-",
        (_, true) if spec.plus => "+",
        (_, true) if spec.space => " ",
        _ => "",
    };
    let room = spec.width.saturating_sub(sign.len() + body.chars().count());
    Ok(match (spec.left, spec.zero && is_number) {
        (true, _) => format!("{sign}{body}{}", " ".repeat(room)),
        (false, true) => format!("{sign}{}{body}", "0".repeat(room)),
        (false, false) => format!("{}{sign}{body}", " ".repeat(room)),
    })
}

fn exponential(number: f64, precision: usize) -> String {
    let text = format!("{number:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

fn general(number: f64, precision: usize) -> String {
    let scientific = exponential(number, precision - 1);
    let exponent: i32 = scientific.split_once('e').map_or(0, |(_, exponent)| exponent.parse().unwrap_or_default());
    let strip = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= precision as i32 {
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "+00"));
        return format!("{}e{exponent}", strip(digits));
    }
    strip(&format!("{:.*}", (precision as i32 - 1 - exponent).max(0) as usize, number))
}
