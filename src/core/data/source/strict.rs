//! JSON of which nothing is dropped: a key that an object has twice is an error, where serde_json keeps the last.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value as Json};

/// Parses a text that is one value.
///
/// # Errors
/// It is no JSON, or an object in it has a key twice.
pub fn parse(text: &str) -> Result<Json, serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let value = Strict.deserialize(&mut parser)?;
    parser.end()?;
    Ok(value)
}

struct Strict;

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, parser: D) -> Result<Json, D::Error> {
        parser.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Strict)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if object.contains_key(&key) {
                return Err(A::Error::custom(format!("duplicate key `{key}`")));
            }
            object.insert(key, entries.next_value_seed(Strict)?);
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn values_are_those_of_serde_json_and_keys_come_once() {
        let text = r#"{"z": [1, -2, 3.5, 1e400, true, null, "é\n"], "a": {"b": {}}, "n": 18446744073709551615}"#;
        assert!(parse(text).is_err() && serde_json::from_str::<serde_json::Value>(text).is_err(), "1e400");
        let text = text.replace("1e400", "1e4");
        assert_eq!(parse(&text).unwrap(), serde_json::from_str::<serde_json::Value>(&text).unwrap());
        for (text, part) in [
            (r#"{"a": 1, "a": 2}"#, "duplicate key `a` at line 1 column"),
            (r#"[{"b": {"c": 1, "d": 1, "c": 1}}]"#, "duplicate key `c`"),
            (r#"{"a": 1} x"#, "trailing characters"),
            (&"[".repeat(200), "recursion limit"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
