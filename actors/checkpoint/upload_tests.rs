//! Copies into a store in memory, `memory:///`, which all tests of this program share.

use super::*;
use loongforge_core::checkpoint::{FileEntry, sha256};
use loongforge_core::files::LeftAside;
use loongforge_core::message::StepId;
use loongforge_core::schedule::Best;
use std::collections::BTreeMap;

const WEIGHTS: &str = "model.safetensors";

fn publish(dir: &Path, num_steps: u64) -> PathBuf {
    publish_with_best(dir, num_steps, None)
}

/// Publishes a checkpoint that says which one is the best so far.
fn publish_with_best(dir: &Path, num_steps: u64, best: Option<u64>) -> PathBuf {
    let to = dir.join(format!("step-{num_steps:08}"));
    fs::create_dir_all(&to).unwrap();
    let text = format!("weights of {num_steps}");
    fs::write(to.join(WEIGHTS), &text).unwrap();
    let entry = FileEntry { bytes: text.len() as u64, sha256: sha256(&to.join(WEIGHTS)).unwrap() };
    let mut manifest = Manifest::of_files(num_steps, BTreeMap::from([(WEIGHTS.to_owned(), entry)]));
    manifest.scheduler.evaluated.best = best.map(|step| Best { step: StepId(step), loss: 1.0 });
    fs::write(to.join(MANIFEST), manifest.to_text()).unwrap();
    to
}

/// Returns a run whose checkpoints are in `dir`, and what is said.
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
    let uploads = start(dir.path(), url, false, |_| {});
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
fn checkpoints_left_aside_are_not_copied_and_take_no_place_in_the_store() {
    let (dir, url) = (tempfile::tempdir().unwrap(), "memory:///left");
    let second = publish(dir.path(), 2);
    publish(dir.path(), 6);
    start(dir.path(), url, false, |_| {}).finish();
    publish(dir.path(), 7);
    LeftAside::of(dir.path(), second, Some(2)).unwrap().write(dir.path()).unwrap();
    let uploads = start(dir.path(), url, false, |_| {});
    [3, 4].into_iter().for_each(|num_steps| uploads.uploader().add(&publish(dir.path(), num_steps)));
    assert_eq!((uploads.finish().num_sent, steps(url)), (2, vec![3, 4, 6]));
}

#[test]
fn a_step_that_is_saved_again_with_the_same_contents_is_not_left_aside_in_the_store() {
    let (dir, url) = (tempfile::tempdir().unwrap(), "memory:///saved-again");
    let [second, fourth] = [2, 4].map(|num_steps| publish(dir.path(), num_steps));
    start(dir.path(), url, false, |_| {}).finish();
    LeftAside::of(dir.path(), second, Some(2)).unwrap().write(dir.path()).unwrap();
    let (uploads, stored) = (start(dir.path(), url, false, |_| {}), StoredCheckpoints::new(url));
    while stored.left_aside().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    LeftAside::strike(dir.path(), 4).unwrap();
    uploads.uploader().add(&fourth);
    assert_eq!(uploads.finish().num_sent, 0);
    let left = LeftAside::parse(&stored.left_aside().unwrap().unwrap()).unwrap();
    assert!(left.checkpoints.is_empty(), "{left:?}");
}

#[test]
fn a_former_run_goes_when_it_is_forgotten() {
    let (former, dir, url) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), "memory:///former");
    publish(former.path(), 8);
    start(former.path(), url, false, |_| {}).finish();
    assert_eq!((start(dir.path(), url, true, |_| {}).finish(), steps(url)), (Uploaded::default(), vec![8]));
    // As long as it may be put back, all of it stays.
    let uploads = start(dir.path(), url, true, |_| {});
    uploads.uploader().note_former().unwrap();
    [2, 4, 6].into_iter().for_each(|num_steps| uploads.uploader().add(&publish(dir.path(), num_steps)));
    assert_eq!((uploads.finish().num_sent, steps(url)), (3, vec![2, 4, 6, 8]));
    assert!(has_former(dir.path(), url));
    let uploads = start(dir.path(), url, true, |_| {});
    uploads.uploader().note_former().unwrap();
    uploads.uploader().forget_former();
    uploads.uploader().add(&publish(dir.path(), 3));
    assert_eq!((uploads.finish().num_sent, steps(url)), (1, vec![3]));
    assert!(!has_former(dir.path(), url));
}

#[test]
fn a_former_run_goes_also_where_the_one_that_replaces_it_was_killed() {
    let (former, dir, url) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), "memory:///killed");
    [2, 8].into_iter().for_each(|num_steps| drop(publish(former.path(), num_steps)));
    start(former.path(), url, false, |_| {}).finish();
    // As `forget_former` leaves it where nothing comes after.
    fs::write(dir.path().join(FORMER), url).unwrap();
    publish(dir.path(), 2);
    publish(dir.path(), 4);
    assert!(has_former(dir.path(), url) && !has_former(dir.path(), "memory:///other"));
    assert_eq!((start(dir.path(), url, false, |_| {}).finish().num_sent, steps(url)), (1, vec![2, 4]));
    assert!(!has_former(dir.path(), url));
    // A note of another store says nothing of this one.
    fs::write(dir.path().join(FORMER), "memory:///other").unwrap();
    fs::remove_dir_all(dir.path().join("step-00000002")).unwrap();
    assert_eq!((start(dir.path(), url, false, |_| {}).finish().num_sent, steps(url)), (0, vec![2, 4]));
}

#[test]
fn the_best_checkpoint_is_not_left_out() {
    let (dir, url) = (tempfile::tempdir().unwrap(), "memory:///best");
    let (said, hear) = flume::bounded(64);
    let (go, wait) = flume::bounded::<()>(0);
    // The first one is under way until the others wait.
    let uploads = start(dir.path(), url, false, move |line| {
        let _ = said.send(line.to_owned());
        if line.contains("step-00000002") && line.starts_with("copied") {
            let _ = wait.recv();
        }
    });
    uploads.uploader().add(&publish(dir.path(), 2));
    assert!(hear.recv().unwrap().contains("step-00000002"));
    for num_steps in 4..=8 {
        uploads.uploader().add(&publish_with_best(dir.path(), num_steps, Some(4)));
    }
    assert_eq!(uploads.uploader().num_failed(), 1);
    drop(go);
    let uploaded = uploads.finish();
    assert_eq!((uploaded.num_sent, uploaded.num_failed), (5, 1));
    let left_out = hear.drain().find(|line| line.contains("newer ones wait")).unwrap();
    assert!(left_out.contains("step-00000005"), "{left_out}");
    assert_eq!(steps(url), [4, 7, 8], "the best, and the two newest");
}

#[test]
fn the_best_checkpoint_of_an_earlier_start_is_copied_though_it_is_old() {
    let (dir, url) = (tempfile::tempdir().unwrap(), "memory:///old-best");
    (1..=7).for_each(|num_steps| drop(publish_with_best(dir.path(), num_steps, Some(1))));
    assert_eq!((start(dir.path(), url, false, |_| {}).finish().num_sent, steps(url)), (5, vec![1, 6, 7]));
}

/// The store does not take it at first, as one that is away.
#[test]
fn the_best_checkpoint_that_could_not_be_copied_is_copied_after_a_later_one() {
    let (dir, url) = (tempfile::tempdir().unwrap(), "memory:///best-again");
    let best = publish(dir.path(), 2);
    fs::write(best.join(WEIGHTS), "weights of X").unwrap();
    let (said, hear) = flume::bounded(64);
    let uploads = start(dir.path(), url, true, move |line| drop(said.send(line.to_owned())));
    uploads.uploader().forget_former();
    uploads.uploader().add(&best);
    assert!(hear.iter().any(|line| line.starts_with("ALARM: step-00000002")));
    assert_eq!(uploads.uploader().num_failed(), 1);
    fs::write(best.join(WEIGHTS), "weights of 2").unwrap();
    uploads.uploader().add(&publish_with_best(dir.path(), 4, Some(2)));
    let uploader = uploads.uploader();
    let uploaded = uploads.finish();
    assert_eq!(uploader.num_failed(), 1, "a counter");
    assert_eq!((uploaded.num_sent, uploaded.num_failed, uploaded.last_error), (2, 0, None));
    assert_eq!(steps(url), [2, 4]);
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
