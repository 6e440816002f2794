//! A message's own word on whether it is learned.

use serde_json::{Map, Value as Json};

use crate::data::error::DataError;

/// OpenAI's key, axolotl's two, ms-swift's, and the name that preprocessed sets have.
const KEYS: [&str; 5] = ["weight", "train", "training", "loss", "loss_mask"];

/// Takes those keys out of a message's fields: 1 or `true` is learned, 0 or `false` is not.
///
/// # Errors
/// A value is neither, or two keys contradict each other.
pub(super) fn take(fields: &mut Map<String, Json>) -> Result<Option<bool>, DataError> {
    let mut said: Option<(&str, bool)> = None;
    for key in KEYS {
        let Some(value) = fields.shift_remove(key) else { continue };
        let learn = match (&value, value.as_f64()) {
            (Json::Bool(learn), _) => *learn,
            (_, Some(0.0)) => false,
            (_, Some(1.0)) => true,
            _ => {
                let reason = format!(
                    "`{key}` of a message is {value}: it must be 1 or true (in the loss), or 0 or false (not in the loss)"
                );
                return Err(DataError::Line(reason));
            }
        };
        if let Some((other, _)) = said.filter(|(_, said)| *said != learn) {
            return Err(DataError::Line(format!("`{other}` and `{key}` of a message contradict each other")));
        }
        said = Some((key, learn));
    }
    Ok(said.map(|(_, learn)| learn))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn known_keys_are_taken_and_others_stay() {
        let read = |value: Json| {
            let mut fields = value.as_object().unwrap().clone();
            take(&mut fields).map(|learn| (learn, fields.len()))
        };
        for (fields, expected) in [
            (json!({"name": "x"}), (None, 1)),
            (json!({"weight": 0, "name": "x"}), (Some(false), 1)),
            (json!({"weight": 1.0}), (Some(true), 0)),
            (json!({"train": false, "weight": 0}), (Some(false), 0)),
            (json!({"training": true}), (Some(true), 0)),
            (json!({"loss_mask": 0}), (Some(false), 0)),
            (json!({"loss": true, "mask": 1}), (Some(true), 1)),
        ] {
            assert_eq!(read(fields.clone()).unwrap(), expected, "{fields}");
        }
        for (fields, part) in [
            (json!({"weight": 0.5}), "`weight` of a message is 0.5"),
            (json!({"loss_mask": [0, 1]}), "`loss_mask`"),
            (json!({"weight": 1, "train": false}), "contradict"),
        ] {
            assert!(read(fields).unwrap_err().to_string().contains(part), "{part}");
        }
    }
}
