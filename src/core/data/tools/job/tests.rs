//! Many processes, killed ones, and folders of others.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Done, Job, Share};
use crate::data::error::BadSample;
use crate::data::tools::shard::Member;

fn job() -> Job {
    let kind = "convert".to_owned();
    let sample_type = "x".to_owned();
    Job { kind, spec: 1.into(), num_samples: 25, group_samples: 4, max_bytes: 5000, sample_type, bad: Vec::new() }
}

/// Sample 7 is bad, 5 is large.
fn work(sample: u64) -> Result<Vec<Member>, BadSample> {
    if sample == 7 {
        return Err(BadSample { file: "a".into(), at: "8".into(), reason: "no".into(), too_long: false });
    }
    let len = if sample == 5 { 3000 } else { 10 };
    Ok(vec![("json".to_owned(), Arc::from(vec![sample as u8; len]))])
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for folder in [folder.to_path_buf(), folder.join(".nv-meta")] {
        for entry in fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_file() {
                files.insert(path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(path).unwrap());
            }
        }
    }
    files
}

#[test]
fn many_processes_write_what_one_writes() {
    let folder = tempfile::tempdir().unwrap();
    let (one, three) = (folder.path().join("one"), folder.path().join("three"));
    job().begin(&one).unwrap();
    let mut seen = Vec::new();
    let done = job().write(&one, Share::WHOLE, 2, work, |sample, bad| seen.push((sample, bad.is_some()))).unwrap();
    assert_eq!(seen, (0..25).map(|sample| (sample, sample == 7)).collect::<Vec<_>>());
    assert_eq!((done.samples, done.bad.len(), done.shards), (24, 1, 8));
    assert_eq!(job().merge(&one).unwrap(), Done { kept: 0, ..done.clone() });
    let first = files(&one);
    assert!(
        first.contains_key("shard-000001_01.tar") && first.contains_key("shard-000006.tar.idx"),
        "{:?}",
        first.keys()
    );
    assert_eq!(job().merge(&one).unwrap(), done);
    assert_eq!(files(&one), first, "a merge may be run twice");

    job().begin(&three).unwrap();
    for index in [2, 0] {
        job().write(&three, Share { index, num: 3 }, 1, work, |_, _| ()).unwrap();
    }
    let error = job().merge(&three).unwrap_err().to_string();
    assert!(error.contains("2 of 7 groups") && error.contains("first is 2"), "{error}");
    job().begin(&three).unwrap();
    job().write(&three, Share { index: 1, num: 3 }, 3, work, |_, _| ()).unwrap();
    job().merge(&three).unwrap();
    assert_eq!(files(&three), first);
}

#[test]
fn a_killed_job_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path();
    job().begin(out).unwrap();
    // Killed in the third group: an error stands for it.
    let calls = AtomicU64::new(0);
    let counted = |sample| {
        calls.fetch_add(1, Ordering::SeqCst);
        work(sample)
    };
    let dies = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        job().write(
            out,
            Share::WHOLE,
            1,
            |sample| if sample == 10 { panic!("killed") } else { counted(sample) },
            |_, _| (),
        )
    }));
    assert!(dies.is_err());
    assert!(out.join("shard-000002.tar.part").exists() && !out.join("shard-000002.tar").exists());
    // A finished shard that was cut since, and one that nobody knows.
    fs::write(out.join("shard-000000.tar"), b"short").unwrap();
    fs::write(out.join("shard-000000_07.tar"), b"of an older run").unwrap();
    fs::write(out.join("notes.txt"), b"mine").unwrap();
    calls.store(0, Ordering::SeqCst);
    let done = job().write(out, Share::WHOLE, 1, counted, |_, _| ()).unwrap();
    assert_eq!((done.samples, done.kept, calls.into_inner()), (24, 4, 21));
    job().merge(out).unwrap();

    let clean = tempfile::tempdir().unwrap();
    job().begin(clean.path()).unwrap();
    job().write(clean.path(), Share::WHOLE, 1, work, |_, _| ()).unwrap();
    job().merge(clean.path()).unwrap();
    let mut ours = files(out);
    assert_eq!(ours.remove("notes.txt").unwrap(), b"mine");
    assert_eq!(ours, files(clean.path()));
}

#[test]
fn another_job_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Job::open(folder.path()).unwrap_err().to_string().contains("no shards of"));
    job().begin(folder.path()).unwrap();
    assert_eq!(Job::open(folder.path()).unwrap(), job());
    let error = Job { spec: 2.into(), ..job() }.begin(folder.path()).unwrap_err().to_string();
    assert!(error.contains("another convert"), "{error}");
    let all_bad = Job { num_samples: 1, ..job() };
    let other = tempfile::tempdir().unwrap();
    all_bad.begin(other.path()).unwrap();
    all_bad.write(other.path(), Share::WHOLE, 1, |_| work(7), |_, _| ()).unwrap();
    let error = all_bad.merge(other.path()).unwrap_err().to_string();
    assert!(error.contains("every sample is bad") && error.contains("the first: a:8: no"), "{error}");
}
