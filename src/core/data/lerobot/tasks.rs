//! The tasks of a set: what the robot was told, by number.

use std::collections::BTreeMap;
use std::path::Path;

use super::columns::Columns;
use super::info::{Info, Version};
use super::jsonl::for_each_line;
use crate::data::error::DataError;

/// The files of tasks, of version 3 and of those before.
pub const TASKS: [&str; 2] = [ROWS, LINES];
const ROWS: &str = "meta/tasks.parquet";
const LINES: &str = "meta/tasks.jsonl";

/// Texts by number.
pub type Tasks = BTreeMap<i64, String>;

/// Reads `meta/tasks.parquet`, where the texts are the index of a pandas table, or `meta/tasks.jsonl`.
///
/// # Errors
/// Named by the file: missing or wrong.
pub fn read(folder: &Path, info: &Info) -> Result<Tasks, DataError> {
    let mut tasks = Tasks::new();
    if info.version < Version::V30 {
        for_each_line(&folder.join(LINES), |line| {
            let index = line["task_index"].as_i64().ok_or("has no `task_index`")?;
            add(&mut tasks, index, line["task"].as_str().ok_or("has no `task`")?.to_owned())
        })?;
        return Ok(tasks);
    }
    let path = folder.join(ROWS);
    let columns = Columns::open(&path)?;
    // Without a name pandas calls it so.
    let text = ["task", "__index_level_0__"].into_iter().find(|key| columns.has(key));
    let text = text.ok_or_else(|| DataError::file(&path, "has neither a column task nor __index_level_0__"))?;
    for (index, text) in columns.integers("task_index", 1)?.into_iter().zip(columns.texts(text)?) {
        add(&mut tasks, index, text).map_err(|reason| DataError::file(&path, reason))?;
    }
    Ok(tasks)
}

/// # Errors
/// The reason: the number has another text already, so that nobody knows what the robot was told.
fn add(tasks: &mut Tasks, index: i64, text: String) -> Result<(), String> {
    match tasks.insert(index, text.clone()).filter(|before| *before != text) {
        Some(before) => Err(format!("task {index} has two texts: {before:?} and {text:?}")),
        None => Ok(()),
    }
}
