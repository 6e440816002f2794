//! A folder of `datasets.save_to_disk`: `state.json` names its Arrow files in their order.

use std::path::Path;

use serde_json::Value as Json;

use super::shard::Shard;
use crate::data::error::DataError;
use crate::data::tokenizer_file::read_json;
use crate::files;

const STATE: &str = "state.json";
const INFO: &str = "dataset_info.json";
/// The file that names the folders of a set of several splits.
const SPLITS: &str = "dataset_dict.json";

/// Returns whether a file of a folder tells of such a set and holds no samples.
pub fn describes(folder: &Path, file: &Path) -> bool {
    let is_saved = [STATE, INFO].iter().all(|name| folder.join(name).is_file());
    is_saved && [STATE, INFO].iter().any(|name| file.file_name().is_some_and(|own| own == *name))
}

/// Returns the files of such a folder; `None`: it is another one.
///
/// # Errors
/// It has several splits, or its `state.json` names no files of it.
pub fn shards(folder: &Path) -> Result<Option<Vec<Shard>>, DataError> {
    let has = |name: &str| folder.join(name).is_file();
    if has(SPLITS) {
        let splits = read_json(&folder.join(SPLITS))?;
        let names: Vec<&str> = splits["splits"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
        let names = names.join(", ");
        let reason =
            format!("is a folder of datasets.save_to_disk with several splits ({names}): name one of its folders");
        return Err(DataError::file(folder, reason));
    }
    if !has(STATE) || !has(INFO) {
        return Ok(None);
    }
    let path = folder.join(STATE);
    let state = read_json(&path)?;
    let wrong = |reason: String| DataError::file(&path, reason);
    if state["_indices_files"].as_array().is_some_and(|files| !files.is_empty()) {
        let reason = "names a file of indices, as versions of datasets before 1.17 wrote it: save the set again";
        return Err(wrong(reason.to_owned()));
    }
    let listed = state["_data_files"].as_array().filter(|files| !files.is_empty());
    let listed = listed.ok_or_else(|| wrong("has no _data_files".to_owned()))?;
    let shard = |file: &Json| {
        let name = file["filename"].as_str().ok_or_else(|| wrong(format!("has a file without a name: {file:.80}")))?;
        match files::is_inner_name(name) {
            true => Shard::stat(&folder.join(name).to_string_lossy()),
            false => Err(wrong(format!("names {name:?}, which is not a file of this folder"))),
        }
    };
    listed.iter().map(shard).collect::<Result<Vec<_>, _>>().map(Some)
}
