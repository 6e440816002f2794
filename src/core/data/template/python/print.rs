//! `str()` and `repr()`.

use minijinja::Value;
use minijinja::value::ValueKind;

/// Python's `str()`; nothing for what is undefined.
pub(super) fn text(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        ValueKind::Undefined => String::new(),
        _ => repr(value),
    }
}

/// Python's `repr()`.
pub(super) fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => "Undefined".to_owned(),
        ValueKind::String => quoted(value.as_str().unwrap_or_default()),
        ValueKind::Bytes => bytes(value.as_bytes().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
        }
        ValueKind::Seq => {
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(|item| repr(&item)).collect();
            match (value.is_tuple(), items.len()) {
                (false, _) => format!("[{}]", items.join(", ")),
                (true, 1) => format!("({},)", items[0]),
                (true, _) => format!("({})", items.join(", ")),
            }
        }
        ValueKind::Iterable if !value.to_string().starts_with('<') => {
            let items: Vec<String> = value.try_iter().into_iter().flatten().map(|item| repr(&item)).collect();
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map => {
            let pair = |key: Value| format!("{}: {}", repr(&key), repr(&value.get_item(&key).unwrap_or_default()));
            let pairs: Vec<String> = value.try_iter().into_iter().flatten().map(pair).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        _ => value.to_string(),
    }
}

/// Returns a number in the fewest digits that make it, as `float.__repr__` writes it.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".to_owned() } else { "-inf".to_owned() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        _ => {
            let plain = number.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
    }
}

fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut result = String::from(quote);
    for letter in text.chars() {
        match letter {
            '\n' => result += "\\n",
            '\r' => result += "\\r",
            '\t' => result += "\\t",
            '\\' => result += "\\\\",
            letter if letter == quote => result.extend(['\\', letter]),
            letter if is_printable(letter) => result.push(letter),
            letter if (letter as u32) < 0x100 => result += &format!("\\x{:02x}", letter as u32),
            letter if (letter as u32) < 0x1_0000 => result += &format!("\\u{:04x}", letter as u32),
            letter => result += &format!("\\U{:08x}", letter as u32),
        }
    }
    result.push(quote);
    result
}

/// Python's `str.isprintable`, but for letters that no version of Unicode has assigned.
fn is_printable(letter: char) -> bool {
    let is_blank = letter != ' ' && letter.is_whitespace();
    let is_format = matches!(letter as u32, 0xad | 0x600..=0x605 | 0x61c | 0x6dd | 0x70f | 0x180e | 0x200b..=0x200f
        | 0x202a..=0x202e | 0x2060..=0x206f | 0xd800..=0xf8ff | 0xfeff | 0xfff9..=0xfffb | 0xfdd0..=0xfdef
        | 0xe0001..=0xe007f | 0xf0000..);
    !(letter.is_control() || is_blank || is_format)
}

fn bytes(bytes: &[u8]) -> String {
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') { '"' } else { '\'' };
    let letter = |&byte: &u8| match byte {
        b'\n' => "\\n".to_owned(),
        b'\r' => "\\r".to_owned(),
        b'\t' => "\\t".to_owned(),
        b'\\' => "\\\\".to_owned(),
        byte if byte as char == quote => format!("\\{quote}"),
        0x20..=0x7e => (byte as char).to_string(),
        byte => format!("\\x{byte:02x}"),
    };
    format!("b{quote}{}{quote}", bytes.iter().map(letter).collect::<String>())
}
