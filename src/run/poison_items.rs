//! `killers.jsonl` in a run's folder: items that encoders have died of, so that a run that begins again, or is resumed,
//! knows of them.

use loongforge_core::files::{append_whole, if_there, replace};
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

/// Keeps these, and what the file had besides no longer. A process that is killed meanwhile leaves the one or the other.
///
/// # Errors
/// It cannot be written: the file is as before.
pub fn keep(dir: &Path, items: &[PoisonItem]) -> io::Result<()> {
    match items {
        [] => if_there(fs::remove_file(path(dir))).map(drop),
        items => replace(&path(dir), lines(items).as_bytes()),
    }
}

/// # Errors
/// It cannot be written.
pub fn append(dir: &Path, items: &[PoisonItem]) -> io::Result<()> {
    if items.is_empty() {
        return Ok(());
    }
    append_whole(&mut OpenOptions::new().append(true).create(true).open(path(dir))?, lines(items).as_bytes())
}

fn lines(items: &[PoisonItem]) -> String {
    let line = |item: &PoisonItem| serde_json::to_string(item).expect("a poison item is numbers") + "\n";
    items.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::message::{ItemId, SampleId};

    #[test]
    fn items_are_kept_or_the_file_is_as_before() {
        let dir = tempfile::tempdir().unwrap();
        let item = |sample, deaths| PoisonItem { item: ItemId { sample: SampleId(sample), index: 0 }, deaths };
        append(dir.path(), &[item(3, 1), item(4, 1)]).unwrap();
        append(dir.path(), &[item(3, 2)]).unwrap();
        assert_eq!(read(dir.path()), [item(3, 2), item(4, 1)]);
        // Where the new file would be written there is something else.
        let draft = dir.path().join(".killers.jsonl.part");
        fs::create_dir(&draft).unwrap();
        assert!(keep(dir.path(), &[item(3, 2)]).is_err());
        assert_eq!(read(dir.path()), [item(3, 2), item(4, 1)]);
        fs::remove_dir(&draft).unwrap();
        keep(dir.path(), &[item(3, 2)]).unwrap();
        assert_eq!(read(dir.path()), [item(3, 2)]);
        keep(dir.path(), &[]).unwrap();
        assert!(read(dir.path()).is_empty() && fs::read_dir(dir.path()).unwrap().count() == 0);
    }
}
