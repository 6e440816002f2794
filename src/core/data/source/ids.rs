//! Documents whose tokens are a list in a record, as other programs write data sets that they have tokenized.

use serde_json::{Map, Value as Json};

use crate::data::error::DataError;

/// The field of a record that lists its ids.
pub const IDS: &str = "input_ids";

/// Returns the ids of a record, all of which are learned.
///
/// # Errors
/// It has no such list, or says that some of its ids are padding or are not to be learned.
pub fn ids(fields: &Map<String, Json>) -> Result<Vec<i64>, DataError> {
    let wrong = |reason: &str| DataError::Line(reason.to_owned());
    let list = fields.get(IDS).and_then(Json::as_array);
    let list = list.ok_or_else(|| wrong("`input_ids` must be a list of token ids"))?;
    let is_out = |mask: &Json| mask.as_i64() == Some(0) || mask.as_bool() == Some(false);
    let mask = fields.get("attention_mask").and_then(Json::as_array);
    if mask.is_some_and(|mask| mask.iter().any(is_out)) {
        return Err(wrong("`attention_mask` marks padding, which would be learned: tokenize without padding"));
    }
    let labels = fields.get("labels").and_then(Json::as_array);
    if labels.is_some_and(|labels| labels != list) {
        return Err(wrong(
            "`labels` differ from `input_ids`, all of which are learned: leave `labels` out, or name data that are not \
             tokenized yet",
        ));
    }
    let id = |value: &Json| value.as_i64().ok_or_else(|| wrong("`input_ids` has an entry that is not a whole number"));
    list.iter().map(id).collect()
}
