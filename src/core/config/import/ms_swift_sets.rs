//! Data sets as ms-swift names them.

use serde_json::{Map, Value, json};

use super::hub;
use super::sheet::{REPEATED, Sheet, take_random};

/// Fields of samples that have the same names here.
const FIELDS: [&str; 10] =
    ["messages", "query", "response", "history", "system", "images", "videos", "audios", "tools", "label"];

/// Translates `columns`, a map or its JSON text from the names of fields in the data sets to ms-swift's. To be read after the sets.
pub(super) fn columns(sheet: &mut Sheet) {
    let found = match sheet.get("columns") {
        Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_default(),
        Some(value) => value.clone(),
        None => return,
    };
    let one = |(theirs, name): (&String, &Value)| {
        let ours = FIELDS.into_iter().find(|field| name.as_str() == Some(*field))?;
        Some((ours.to_owned(), Value::from(theirs.as_str())))
    };
    let columns: Option<Map<String, Value>> = found.as_object().and_then(|map| map.iter().map(one).collect());
    match columns.filter(|columns| !columns.is_empty() && sheet.has_set("data.train")) {
        Some(columns) => {
            sheet.columns_of_sets(&columns.into());
            sheet.arrived("columns", "data.train[].columns");
        }
        None => sheet.missing("data.train[].columns renames fields: {FIELD: NAME IN THE FILE}", &["columns"]),
    }
}

/// Returns a data set: `HF::name:subset#number`, of which all but the name may be absent.
pub(super) fn set(name: &str, notes: &mut Vec<&'static str>) -> Value {
    let (name, count) = name.split_once('#').map_or((name, None), |(name, count)| (name, Some(count)));
    let mut set = json!({ "path": path(name, notes) });
    match count.map(str::parse::<u64>) {
        Some(Ok(count @ 1..)) => {
            take_random(&mut set, count);
            notes.push(REPEATED);
        }
        Some(_) => notes.push("what is behind the `#` of a data set is no number of samples: set max_samples"),
        None => {}
    }
    set
}

/// Returns the path of a held-out data set, of which all samples are there.
pub(super) fn held_out(name: &str, notes: &mut Vec<&'static str>) -> Value {
    let mut set = set(name, notes);
    if set["max_samples"].is_u64() {
        notes.push(
            "the number behind val_dataset has no counterpart: eval.max_samples limits evaluations during the run",
        );
    }
    set["path"].take()
}

/// Returns the path of a data set without a number.
fn path(name: &str, notes: &mut Vec<&'static str>) -> String {
    let (site, name) = name.split_once("::").map_or((None, name), |(site, name)| (Some(site), name));
    let (base, subset) = name.split_once(':').map_or((name, None), |(base, subset)| (base, Some(subset)));
    if !hub::is_of_hub(base) {
        return name.to_owned();
    }
    if site != Some("HF") {
        notes.push(
            "ms-swift finds data sets and models on ModelScope unless use_hf is set; here they are those of these \
             names on the Hugging Face hub, where some are missing",
        );
    }
    if subset.is_some_and(|subset| subset.contains('/')) {
        notes.push("of several subsets of a data set only the first is named in data.train");
    }
    let subset = subset.and_then(|subset| subset.split('/').next()).filter(|subset| *subset != "default");
    hub::path(base, &[subset])
}
