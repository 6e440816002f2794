//! Copies into a store in memory, `memory:///`, which all tests of this program share.

use super::*;
use loongforge_core::checkpoint::{FORMAT_VERSION, FileEntry, sha256};
use loongforge_core::schedule::SchedulerState;
use std::collections::BTreeMap;

const WEIGHTS: &str = "model.safetensors";

fn publish(dir: &Path, num_steps: u64) -> PathBuf {
    let to = dir.join(format!("step-{num_steps:08}"));
    fs::create_dir_all(&to).unwrap();
    let text = format!("weights of {num_steps}");
    fs::write(to.join(WEIGHTS), &text).unwrap();
    let entry = FileEntry { bytes: text.len() as u64, sha256: sha256(&to.join(WEIGHTS)).unwrap() };
    let manifest = Manifest {
        format_version: FORMAT_VERSION,
        manifest_sha256: String::new(),
        num_steps,
        scheduler: SchedulerState::default(),
        precision: "float32".into(),
        config: serde_json::json!({}),
        files: BTreeMap::from([(WEIGHTS.to_owned(), entry)]),
    };
    fs::write(to.join(MANIFEST), manifest.to_text()).unwrap();
    to
}

/// A run whose checkpoints are in `dir`, and what is said.
fn start(dir: &Path, url: &str, begins_anew: bool, hear: impl Fn(&str) + Send + Sync + 'static) -> Uploads {
    let back_off = Duration::from_millis(1);
    let spec = UploadSpec { url: url.to_owned(), keep_last: 2, dir: dir.to_owned(), begins_anew, back_off };
    Uploads::start(spec, Box::new(hear)).unwrap()
}

fn steps(url: &str) -> Vec<u64> {
    StoredCheckpoints::new(url).steps().unwrap()
}

#[test]
fn what_is_removed_meanwhile_is_copied() {
    let (dir, url) = (tempfile::tempdir().unwrap(), "memory:///removed");
    let uploads = start(dir.path(), url, true, |_| {});
    for num_steps in [2, 4, 6] {
        let path = publish(dir.path(), num_steps);
        uploads.uploader().add(&path);
        fs::remove_dir_all(path).unwrap();
    }
    let expected = Uploaded { num_sent: 3, ..Uploaded::default() };
    assert_eq!((uploads.finish(), steps(url)), (expected, vec![4, 6]));
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none(), "links are left");
}

#[test]
fn a_run_that_goes_on_copies_what_the_store_lacks() {
    let (dir, url) = (tempfile::tempdir().unwrap(), "memory:///lacks");
    publish(dir.path(), 2);
    start(dir.path(), url, false, |_| {}).finish();
    publish(dir.path(), 4);
    // Left by a run that was killed.
    fs::create_dir(dir.path().join(format!("{STAGED}step-00000004.0"))).unwrap();
    assert_eq!(start(dir.path(), url, false, |_| {}).finish().num_sent, 1);
    assert_eq!((start(dir.path(), url, false, |_| {}).finish().num_sent, steps(url)), (0, vec![2, 4]));
}

#[test]
fn a_former_run_goes_when_it_is_forgotten() {
    let (former, dir, url) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), "memory:///former");
    publish(former.path(), 8);
    start(former.path(), url, false, |_| {}).finish();
    assert_eq!((start(dir.path(), url, true, |_| {}).finish(), steps(url)), (Uploaded::default(), vec![8]));
    let uploads = start(dir.path(), url, true, |_| {});
    uploads.uploader().forget_former();
    uploads.uploader().add(&publish(dir.path(), 2));
    assert_eq!((uploads.finish().num_sent, steps(url)), (1, vec![2]));
}

#[test]
fn failures_are_tried_again_said_and_counted() {
    let (dir, url) = (tempfile::tempdir().unwrap(), "memory:///failures");
    let path = publish(dir.path(), 2);
    // The same bytes on the disk as the link that is copied.
    let weights = path.join(WEIGHTS);
    fs::write(&weights, "weights of X").unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let (heard, repaired) = (said.clone(), weights.clone());
    let uploads = start(dir.path(), url, true, move |line| {
        heard.lock().unwrap().push(line.to_owned());
        if line.contains("attempt 1") {
            fs::write(&repaired, "weights of 2").unwrap();
        }
    });
    uploads.uploader().add(&path);
    let uploaded = uploads.finish();
    assert_eq!(uploaded, Uploaded { num_sent: 1, num_failures: 1, ..Uploaded::default() });
    let lines = said.lock().unwrap().join("\n");
    assert!(lines.contains("attempt 1 of 6") && lines.contains("SHA-256"), "{lines}");

    let path = publish(dir.path(), 4);
    fs::write(path.join(WEIGHTS), "weights of X").unwrap();
    let uploads = start(dir.path(), url, true, |_| {});
    uploads.uploader().add(&path);
    let uploaded = uploads.finish();
    assert_eq!((uploaded.num_sent, uploaded.num_failed, uploaded.num_failures), (0, 1, 6));
    assert!(uploaded.last_error.unwrap().starts_with("step-00000004: "));
    assert_eq!(StoredCheckpoints::new(url).newest().unwrap(), Some(2));
}

#[test]
fn who_gives_up_waits_for_no_further_attempt() {
    let (dir, url) = (tempfile::tempdir().unwrap(), "memory:///given-up");
    let paths = [2, 4].map(|num_steps| publish(dir.path(), num_steps));
    fs::write(paths[0].join(WEIGHTS), "weights of X").unwrap();
    let (said, hear) = flume::bounded(64);
    let back_off = Duration::from_secs(3600);
    let spec =
        UploadSpec { url: url.to_owned(), keep_last: 2, dir: dir.path().to_owned(), begins_anew: true, back_off };
    let say: Say = Box::new(move |line| drop(said.send(line.to_owned())));
    let uploads = Uploads::start(spec, say).unwrap();
    paths.iter().for_each(|path| uploads.uploader().add(path));
    assert!(hear.recv().unwrap().contains("attempt 1 of 6"));
    uploads.uploader().give_up();
    let uploaded = uploads.finish();
    assert_eq!((uploaded.num_sent, uploaded.num_failed, steps(url)), (0, 2, vec![]));
}
