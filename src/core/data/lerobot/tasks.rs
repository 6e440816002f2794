//! The tasks of a set: what the robot was told, by number.

use std::collections::BTreeMap;
use std::path::Path;

use super::columns::Columns;
use super::info::{Info, Version};
use super::jsonl::for_each_line;
use crate::data::error::DataError;

/// Texts by number.
pub type Tasks = BTreeMap<i64, String>;

/// Reads `meta/tasks.parquet`, where the texts are the index of a pandas table, or `meta/tasks.jsonl`.
///
/// # Errors
/// Named by the file: missing or wrong.
pub fn read(folder: &Path, info: &Info) -> Result<Tasks, DataError> {
    if info.version < Version::V30 {
        let mut tasks = Tasks::new();
        for_each_line(&folder.join("meta/tasks.jsonl"), |line| {
            let index = line["task_index"].as_i64().ok_or("has no `task_index`")?;
            let text = line["task"].as_str().ok_or("has no `task`")?;
            tasks.insert(index, text.to_owned());
            Ok(())
        })?;
        return Ok(tasks);
    }
    let path = folder.join("meta/tasks.parquet");
    let columns = Columns::open(&path)?;
    // Without a name pandas calls it so.
    let text = ["task", "__index_level_0__"].into_iter().find(|key| columns.has(key));
    let text = text.ok_or_else(|| DataError::file(&path, "has neither a column task nor __index_level_0__"))?;
    Ok(columns.integers("task_index")?.into_iter().zip(columns.texts(text)?).collect())
}
