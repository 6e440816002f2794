//! The fields of an observation as a client sends it: nested maps become one list of paths.

use super::array::{Array, Keys};
use super::msgpack::{Value, cut};

/// Bytes of a field's path at most: every value of a message has one, with the names of all maps that it is in.
const MAX_PATH: usize = 512;

/// The contents of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Field<'a> {
    Array(Array<'a>),
    /// A picture file, PNG or JPEG.
    Encoded(&'a [u8]),
    Numbers(Vec<f64>),
    Text(&'a str),
    /// A value that no policy reads, with the name of its type.
    Other(&'static str),
}

/// Lists the fields under `value`; maps within maps are joined by a slash, `images/wrist`, and so are the numbers of lists. What is
/// nil is not there.
///
/// # Errors
/// The reason, with the field's path: an array or a picture that is not taken, or a path that is too long.
pub fn fields<'a>(value: &Value<'a>, keys: Keys) -> Result<Vec<(String, Field<'a>)>, String> {
    let mut found = Vec::new();
    collect("", value, keys, &mut found)?;
    Ok(found)
}

fn collect<'a>(path: &str, value: &Value<'a>, keys: Keys, to: &mut Vec<(String, Field<'a>)>) -> Result<(), String> {
    let at = |error: String| if path.is_empty() { error } else { format!("{path}: {error}") };
    let joined = |name: &str| match path.len() + name.len() < MAX_PATH {
        true if path.is_empty() => Ok(name.to_owned()),
        true => Ok(format!("{path}/{name}")),
        false => {
            Err(at(format!("the field {:?} and what it is in have names of more than {MAX_PATH} bytes", cut(name))))
        }
    };
    let field = match value {
        Value::Nil => return Ok(()),
        Value::Bool(_) => Field::Other("true or false"),
        Value::Int(_) | Value::Float(_) => Field::Numbers(value.number().into_iter().collect()),
        Value::Text(text) => Field::Text(text),
        Value::Bytes(_) => Field::Other("untyped bytes"),
        Value::List(values) => match values.iter().map(Value::number).collect::<Option<Vec<f64>>>() {
            Some(numbers) => Field::Numbers(numbers),
            None => {
                let mut entries = values.iter().enumerate();
                return entries.try_for_each(|(index, value)| collect(&joined(&index.to_string())?, value, keys, to));
            }
        },
        Value::Map(entries) => match special(value, keys).map_err(at)? {
            Some(field) => field,
            None => {
                return entries.iter().try_for_each(|(key, value)| match key {
                    Value::Text(name) => collect(&joined(name)?, value, keys, to),
                    _ => Err(at("map that is not an array has a binary key".to_owned())),
                });
            }
        },
    };
    to.push((path.to_owned(), field));
    Ok(())
}

/// Returns an array, a scalar of NumPy's or a picture, if the map is one.
fn special<'a>(map: &Value<'a>, keys: Keys) -> Result<Option<Field<'a>>, String> {
    if let Some(array) = Array::of(map, keys)? {
        return Ok(Some(Field::Array(array)));
    }
    let entry = |name: &str| map.entry(&keys.key(name));
    if entry("__npgeneric__").is_some() {
        // A rule can ignore it, as one that is no scalar of NumPy's.
        if let Some(Value::Bool(_)) = entry("data") {
            return Ok(Some(Field::Other("true or false")));
        }
        let number = entry("data").and_then(Value::number).ok_or("scalar is not a number")?;
        return Ok(Some(Field::Numbers(vec![number])));
    }
    if keys == Keys::Bytes || entry("__image__").is_none() {
        return Ok(None);
    }
    let Some(&Value::Bytes(data)) = entry("data") else { return Err("picture has no `data`".to_owned()) };
    match entry("format").and_then(Value::text) {
        Some("png" | "jpeg") => Ok(Some(Field::Encoded(data))),
        Some("raw") => {
            let Value::Map(entries) = map else { return Ok(None) };
            let marked = (keys.key("__ndarray__"), Value::Bool(true));
            let array = Array::of(&Value::Map(entries.iter().cloned().chain([marked]).collect()), keys)?;
            Ok(array.map(Field::Array))
        }
        _ => Err("the `format` of a picture must be png, jpeg or raw".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_not_repeated_for_each_field_below_it() {
        let name = "a".repeat(MAX_PATH - 2);
        let fields_in = |name: &str| {
            let inner = Value::Map(vec![(Value::Text("b"), Value::Int(1)), (Value::Text("c"), Value::Int(2))]);
            let found = fields(&Value::Map(vec![(Value::Text(name), inner)]), Keys::Text)?;
            Ok::<_, String>(found.into_iter().map(|(path, _)| path).collect::<Vec<_>>())
        };
        assert_eq!(fields_in(&name).unwrap(), [format!("{name}/b"), format!("{name}/c")]);
        for long in [MAX_PATH - 1, MAX_PATH, 1 << 20] {
            let error = fields_in(&"a".repeat(long)).unwrap_err();
            assert!(error.contains("more than 512 bytes") && error.len() < 2 * MAX_PATH, "{error}");
        }
    }
}
