//! Documents whose tokens are a list in a record, as other programs write data sets that they have tokenized.

use serde_json::{Map, Value as Json};

use crate::data::error::DataError;

/// The field of a record that lists its ids.
pub const IDS: &str = "input_ids";

/// Fields that say which tokens count in the loss.
const MASKS: [&str; 3] = ["completion_mask", "assistant_masks", "loss_mask"];

/// Returns whether a field lists token ids, by the first of them.
pub fn lists_ids(field: Option<&Json>) -> bool {
    field.and_then(|list| list.get(0)).is_some_and(Json::is_i64)
}

/// Returns the ids of a record, all of which are learned.
///
/// # Errors
/// It has no such list, or says that some of its ids are padding or are not to be learned.
pub fn ids(fields: &Map<String, Json>) -> Result<Vec<i64>, DataError> {
    let wrong = |reason: &str| DataError::Line(reason.to_owned());
    let list = fields.get(IDS).and_then(Json::as_array);
    let list = list.ok_or_else(|| wrong("`input_ids` must be a list of token ids"))?;
    let is_out = |mark: &Json| mark.as_f64() == Some(0.0) || mark.as_bool() == Some(false);
    let leaves_out = |key: &str| fields.get(key).and_then(Json::as_array).is_some_and(|mask| mask.iter().any(is_out));
    if leaves_out("attention_mask") {
        return Err(wrong("`attention_mask` marks padding, which would be learned: tokenize without padding"));
    }
    if let Some(mask) = MASKS.into_iter().find(|key| leaves_out(key)) {
        return Err(DataError::Line(format!(
            "`{mask}` leaves out tokens of `input_ids`, all of which are learned: leave `{mask}` out, or name data \
             that are not tokenized yet"
        )));
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
