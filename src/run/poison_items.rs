//! `killers.jsonl` in a run's folder: items that encoders have died of, so that a run that begins again, or is resumed,
//! knows of them.

use loongforge_core::files::{append_whole, if_there};
use loongforge_core::schedule::PoisonItem;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

fn path(dir: &Path) -> PathBuf {
    dir.join("killers.jsonl")
}

/// Returns the last line of each item. Half a line says nothing.
pub fn read(dir: &Path) -> Vec<PoisonItem> {
    let text = fs::read_to_string(path(dir)).unwrap_or_default();
    let items = text.lines().filter_map(|line| serde_json::from_str::<PoisonItem>(line).ok());
    let last: BTreeMap<_, _> = items.map(|poison| (poison.item, poison)).collect();
    last.into_values().collect()
}

/// Keeps these, and what the file had besides no longer.
///
/// # Errors
/// It cannot be written.
pub fn keep(dir: &Path, items: &[PoisonItem]) -> io::Result<()> {
    if_there(fs::remove_file(path(dir)))?;
    append(dir, items)
}

/// # Errors
/// It cannot be written.
pub fn append(dir: &Path, items: &[PoisonItem]) -> io::Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    let line = |item| serde_json::to_string(item).expect("a poison item is numbers") + "\n";
    let text: String = items.iter().map(line).collect();
    append_whole(&mut OpenOptions::new().append(true).create(true).open(path(dir))?, text.as_bytes())
}
