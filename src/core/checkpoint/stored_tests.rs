//! Checkpoints in a store in memory.

use super::*;
use crate::checkpoint::{FileEntry, sha256};
use crate::store::{delete, put, register};
use object_store::memory::InMemory;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Writes a checkpoint of so many steps with two files, one in a folder.
fn checkpoint(dir: &Path, num_steps: u64) {
    let mut files = BTreeMap::new();
    for (name, text) in [("config.json", "{}".to_owned()), ("vae/a.safetensors", format!("weights of {num_steps}"))] {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
        files.insert(name.to_owned(), FileEntry { bytes: text.len() as u64, sha256: sha256(&path).unwrap() });
    }
    fs::write(dir.join(MANIFEST), Manifest::of_files(num_steps, files).to_text()).unwrap();
}

fn bucket(name: &str) -> StoredCheckpoints {
    register(&format!("s3://{name}"), Arc::new(InMemory::new()));
    StoredCheckpoints::new(&format!("s3://{name}/run/"))
}

fn send(stored: &StoredCheckpoints, num_steps: u64) {
    let dir = tempfile::tempdir().unwrap();
    checkpoint(dir.path(), num_steps);
    assert_eq!(stored.send(dir.path(), &mut BTreeSet::new()).unwrap(), num_steps);
}

#[test]
fn checkpoints_come_back_as_they_were() {
    let (stored, dir) = (bucket("back"), tempfile::tempdir().unwrap());
    assert_eq!((stored.newest().unwrap(), stored.steps().unwrap()), (None, vec![]));
    send(&stored, 4);
    send(&stored, 30);
    assert_eq!((stored.newest().unwrap(), stored.steps().unwrap()), (Some(30), vec![4, 30]));
    let to = dir.path().join("fetched");
    stored.fetch(30, &to).unwrap();
    Manifest::read(&to).unwrap().verify(&to).unwrap();
    assert_eq!(fs::read_to_string(to.join("vae/a.safetensors")).unwrap(), "weights of 30");
    assert!(stored.fetch(5, &to).unwrap_err().to_string().contains("step-00000005 has no checkpoint"));
}

#[test]
fn half_a_checkpoint_is_none() {
    let (stored, dir) = (bucket("half"), tempfile::tempdir().unwrap());
    send(&stored, 4);
    checkpoint(dir.path(), 8);
    // The last file cannot be sent; the next attempt goes on with it.
    let torn = dir.path().join("vae/a.safetensors");
    fs::write(&torn, "weights of X").unwrap();
    let mut sent = BTreeSet::new();
    let error = stored.send(dir.path(), &mut sent).unwrap_err().to_string();
    assert!(error.contains("SHA-256"), "{error}");
    assert_eq!((stored.newest().unwrap(), stored.steps().unwrap(), sent.len()), (Some(4), vec![4, 8], 1));
    fs::write(&torn, "weights of 8").unwrap();
    stored.send(dir.path(), &mut sent).unwrap();
    assert_eq!((stored.newest().unwrap(), sent.len()), (Some(8), 2));
}

#[test]
fn damage_is_named() {
    let (stored, dir) = (bucket("damage"), tempfile::tempdir().unwrap());
    send(&stored, 4);
    let file = format!("{}/vae/a.safetensors", stored.url(4));
    put(&file, b"weights of 5".to_vec()).unwrap();
    let error = stored.fetch(4, dir.path()).unwrap_err().to_string();
    assert!(error.contains("vae/a.safetensors") && error.contains("step-00000004"), "{error}");
    put(&file, b"short".to_vec()).unwrap();
    assert!(stored.fetch(4, dir.path()).is_err());
    delete(&file).unwrap();
    assert!(stored.fetch(4, dir.path()).is_err());
    assert!(!dir.path().join(MANIFEST).exists());
}

#[test]
fn old_checkpoints_go_and_the_best_stays() {
    let stored = bucket("prune");
    [2, 4, 6, 8].into_iter().for_each(|num_steps| send(&stored, num_steps));
    // One that never became whole.
    put(&format!("{}/config.json", stored.url(7)), b"{}".to_vec()).unwrap();
    stored.prune(8, Some(2), 2, |_, _| false).unwrap();
    assert_eq!(stored.steps().unwrap(), [2, 6, 8]);
    // A run that begins anew beside later steps of a former one.
    send(&stored, 1);
    stored.remove_others(&BTreeSet::from([1])).unwrap();
    assert_eq!(stored.steps().unwrap(), [1]);
    // The newest one is never removed, whatever its number.
    send(&stored, 9);
    stored.prune(1, None, 1, |_, _| false).unwrap();
    assert_eq!(stored.steps().unwrap(), [1, 9]);
}

#[test]
fn what_a_run_has_left_aside_takes_no_place_of_what_it_keeps() {
    let stored = bucket("aside");
    [2, 3, 4, 6, 8].into_iter().for_each(|num_steps| send(&stored, num_steps));
    // A run that was resumed after two steps comes to five.
    let is_aside = |num_steps: u64, _: &[u8]| [3, 6, 8].contains(&num_steps);
    send(&stored, 5);
    stored.prune(5, None, 2, is_aside).unwrap();
    assert_eq!(stored.steps().unwrap(), [4, 5, 6, 8]);
    send(&stored, 7);
    stored.prune(7, Some(4), 1, is_aside).unwrap();
    assert_eq!(stored.steps().unwrap(), [4, 7, 8]);
}

#[test]
fn what_a_run_has_left_aside_is_not_its_newest_checkpoint() {
    let (stored, dir) = (bucket("kept"), tempfile::tempdir().unwrap());
    [2, 5].into_iter().for_each(|num_steps| send(&stored, num_steps));
    assert_eq!(stored.newest_kept().unwrap(), Some(5));
    let mut left = LeftAside::of(dir.path(), "step-00000002".into(), Some(2)).unwrap();
    left.add(5, &stored.manifest(5).unwrap().unwrap());
    stored.set_left_aside(Some(serde_json::to_vec(&left).unwrap())).unwrap();
    assert_eq!((stored.newest_kept().unwrap(), stored.newest().unwrap()), (Some(2), Some(5)));
    stored.set_left_aside(Some(b"{".to_vec())).unwrap();
    assert!(stored.newest_kept().unwrap_err().to_string().contains("is damaged"));
}
