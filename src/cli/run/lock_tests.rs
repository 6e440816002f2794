//! Tests that a folder's lock has one holder at a time, whoever died before and whoever comes at once.

use super::*;
use std::process::{Child, Command};

/// Processes that live until this is dropped.
struct Others(Vec<Child>);

impl Others {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| Command::new("sleep").arg("1000").spawn().unwrap()).collect())
    }

    fn holders(&self) -> Vec<Holder> {
        self.0.iter().map(|child| Holder::of(child.id())).collect()
    }

    /// Returns a holder that is dead.
    fn dead() -> Holder {
        let mut others = Self::new(1);
        let holder = others.holders().remove(0);
        others.0[0].kill().unwrap();
        others.0[0].wait().unwrap();
        holder
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn elsewhere(holder: &Holder) -> Holder {
    let mut json = serde_json::to_value(holder).unwrap();
    (json["host"], json["boot"]) = ("far-away".into(), "another boot".into());
    serde_json::from_value(json).unwrap()
}

#[test]
fn a_folder_has_one_run_at_a_time_which_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let [run, checkpoints, again] = ["run", "elsewhere", "run/."].map(|name| dir.path().join(name));
    let (others, console) = (Others::new(2), Console::stderr());
    let folders = [("run.dir", run.as_path()), ("checkpoint.dir", checkpoints.as_path()), ("again", again.as_path())];
    let lock = RunLock::take(&folders, others.0[0].id(), &console).unwrap();
    assert_eq!((names(&run), names(&checkpoints)), (vec![LOCK.to_owned()], vec![LOCK.to_owned()]));
    for alone in &folders[..2] {
        let error = RunLock::take(&[*alone], others.0[1].id(), &console).err().unwrap();
        let (text, pid) = (error.to_string(), others.0[0].id());
        assert!(error.is::<UsageError>() && text.contains(&format!("process {pid} on host ")), "{text}");
        assert!(text.starts_with(alone.0) && text.contains("run.name"), "{text}");
    }
    // Another process for the same one, as a scheduler that follows another.
    drop(RunLock::take(&folders, others.0[0].id(), &console).unwrap());
    drop(lock);
    assert!(names(&run).is_empty() && names(&checkpoints).is_empty());
    drop(RunLock::take(&folders, others.0[1].id(), &console).unwrap());
}

#[test]
fn one_of_many_follows_a_dead_one_and_one_that_died_while_it_followed() {
    let (others, dead) = (Others::new(6), [Others::dead(), Others::dead()]);
    let holders = others.holders();
    for round in 0..40 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOCK);
        assert!(create(&path, &dead[0]).unwrap());
        if round % 2 == 1 {
            assert!(create(&dir.path().join(format!("{LOCK}.{}", dead[0].token)), &dead[1]).unwrap());
        }
        let acquire = |me: &Holder| acquire(&path, me, SILENCE, &|_| panic!("all are of this machine")).is_ok();
        let acquired: Vec<bool> = std::thread::scope(|scope| {
            let threads: Vec<_> = holders.iter().map(|me| scope.spawn(move || acquire(me))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let winners: Vec<&Holder> =
            holders.iter().zip(&acquired).filter_map(|(me, acquired)| acquired.then_some(me)).collect();
        // Who finds the winner's claim only is refused: none of them need be first.
        assert_eq!(winners.len(), 1, "round {round}: {acquired:?}");
        assert_eq!(read(&path).unwrap().as_ref(), Some(winners[0]), "round {round}");
        assert_eq!(names(dir.path()), [LOCK], "round {round}");
    }
}

#[test]
fn a_holder_on_another_machine_lives_as_long_as_it_touches_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let (path, me) = (dir.path().join(LOCK), Holder::of(std::process::id()));
    let other = elsewhere(&me);
    assert!(create(&path, &other).unwrap());
    let touch = || File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now()).unwrap();
    let beating = std::sync::atomic::AtomicBool::new(true);
    let error = std::thread::scope(|scope| {
        let heart = scope.spawn(|| {
            while beating.load(std::sync::atomic::Ordering::Relaxed) {
                touch();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let error = acquire(&path, &me, Duration::from_secs(600), &|_| {}).unwrap_err().to_string();
        beating.store(false, std::sync::atomic::Ordering::Relaxed);
        heart.join().unwrap();
        error
    });
    assert!(error.contains("on host far-away"), "{error}");
    acquire(&path, &me, Duration::from_millis(20), &|_| {}).unwrap();
    assert_eq!(read(&path).unwrap(), Some(me));
}

#[test]
fn a_lock_that_was_removed_by_hand_is_made_again_and_a_damaged_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (path, me) = (dir.path().join(LOCK), Holder::of(std::process::id()));
    beat(&path, &me);
    assert_eq!(read(&path).unwrap().as_ref(), Some(&me));
    fs::write(&path, "{").unwrap();
    let error = acquire(&path, &me, SILENCE, &|_| {}).unwrap_err().to_string();
    assert!(error.contains("run.lock does not name its holder") && error.contains("remove it"), "{error}");
}

#[test]
fn a_folder_is_held_while_its_process_lives() {
    let dir = tempfile::tempdir().unwrap();
    assert!(!is_held(dir.path()));
    let console = Console::stderr();
    let lock = RunLock::take(&[("run.dir", dir.path())], std::process::id(), &console).unwrap();
    assert!(is_held(dir.path()));
    drop(lock);
    fs::write(dir.path().join(LOCK), serde_json::to_vec(&Others::dead()).unwrap()).unwrap();
    assert!(!is_held(dir.path()));
}
