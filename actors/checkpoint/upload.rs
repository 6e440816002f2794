//! Copies published checkpoints to an object store, on its own thread, so that steps never wait for it.
//!
//! A waiting checkpoint has its own hard links, so that the run may remove the folder meanwhile.

use super::publish::left_aside;
use loongforge_core::checkpoint::{MANIFEST, Manifest, StoredCheckpoints, StoredError, entries, published};
use loongforge_core::files::{self, LEFT_ASIDE, step_name, steps_of};
use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Begins the name of a folder of links beside the checkpoints.
const STAGED: &str = ".upload-";
/// Lies beside the checkpoints while the store may have those of a former run, which this one replaces: the store's URL.
pub const FORMER: &str = ".former-in-store";
/// Maximum number of waiting checkpoints; beyond that, the oldest one is skipped.
const MAX_WAITING: usize = 4;
/// Attempts for a checkpoint, and the longest pause between two. Each request is tried several times by itself.
const MAX_TRIES: u32 = 6;
const MAX_BACK_OFF: Duration = Duration::from_secs(60);

/// The settings of copies of checkpoints.
pub struct UploadSpec {
    /// `checkpoint.upload`
    pub url: String,
    /// Number of checkpoints to keep in the store, besides the best one; at least 1.
    pub keep_last: usize,
    /// The folder of the run's checkpoints.
    pub dir: PathBuf,
    /// True if the store's checkpoints belong to another run: [`Uploader::forget_former`] removes them, and none is removed before.
    /// Otherwise the thread first copies published checkpoints that the store lacks, but for those that the run has left aside, and
    /// finishes removals of an earlier start of this run.
    pub begins_anew: bool,
    /// First pause after a failed attempt; each further one is twice as long.
    pub back_off: Duration,
}

/// Number of a run's checkpoints that were copied and that were not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uploaded {
    pub num_sent: u64,
    /// Number of checkpoints that the store lacks.
    pub num_failed: u64,
    /// Number of failed attempts, including those before a success.
    pub num_failures: u64,
    /// The reason why the newest checkpoint was not copied.
    pub last_error: Option<String>,
}

type Say = Box<dyn Fn(&str) + Send + Sync>;

struct State {
    waiting: VecDeque<PathBuf>,
    is_over: bool,
    /// The thread makes no further attempt.
    is_given_up: bool,
    /// The former run may be put back: nothing is removed from the store.
    keeps_former: bool,
    /// The thread is to remove the former run's checkpoints from the store.
    forgets: bool,
    /// Steps of this run's checkpoints that the store has.
    own: BTreeSet<u64>,
    /// Names of those that could not be copied.
    failed: BTreeSet<String>,
    /// Number of those that have ever been among them.
    num_failed: u64,
    uploaded: Uploaded,
}

impl State {
    /// Notes that the store has the checkpoint of so many steps, of which there are links in `staged`.
    fn has(&mut self, num_steps: u64, staged: &Path) {
        self.own.insert(num_steps);
        self.failed.remove(&name_of(staged));
        self.uploaded.last_error = None;
    }
}

struct Shared {
    spec: UploadSpec,
    stored: StoredCheckpoints,
    say: Say,
    state: Mutex<State>,
    changed: Condvar,
}

/// Passes checkpoints to the thread that copies them.
#[derive(Clone)]
pub struct Uploader(Arc<Shared>);

/// The thread that copies checkpoints.
pub struct Uploads {
    uploader: Uploader,
    thread: JoinHandle<()>,
}

impl Uploads {
    /// Starts the thread. `say` receives one line for each checkpoint that was or was not copied.
    ///
    /// # Errors
    /// Fails if the folder of checkpoints cannot be read, or no thread can be started.
    pub fn start(spec: UploadSpec, say: Say) -> io::Result<Self> {
        let listed = |error: loongforge_core::checkpoint::CheckpointError| io::Error::other(error.to_string());
        remove_staged(&spec.dir)?;
        let earlier = if spec.begins_anew { Vec::new() } else { published(&spec.dir).map_err(listed)? };
        let left = left_aside(&spec.dir);
        let state = State {
            waiting: VecDeque::new(),
            is_over: false,
            is_given_up: false,
            keeps_former: spec.begins_anew,
            forgets: !spec.begins_anew && has_former(&spec.dir, &spec.url),
            // What is published here is no former run's.
            own: earlier.iter().map(|(num_steps, _)| *num_steps).collect(),
            failed: BTreeSet::new(),
            num_failed: 0,
            uploaded: Uploaded::default(),
        };
        let stored = StoredCheckpoints::new(&spec.url);
        let shared = Arc::new(Shared { spec, stored, say, state: Mutex::new(state), changed: Condvar::new() });
        let uploader = Uploader(shared.clone());
        let is_left = |(steps, path): &(u64, PathBuf)| left.as_ref().is_some_and(|left| left.has(*steps, path));
        let earlier: Vec<_> = earlier.into_iter().filter(|checkpoint| !is_left(checkpoint)).collect();
        let best = earlier.last().and_then(|(_, path)| best_of(&Manifest::read(path).ok()?));
        let first = earlier.len().saturating_sub(MAX_WAITING);
        let wanted = earlier.into_iter().enumerate().filter(|(at, (steps, _))| *at >= first || Some(*steps) == best);
        wanted.for_each(|(_, (_, path))| uploader.add(&path));
        let thread = std::thread::Builder::new().name("upload".into()).spawn(move || shared.run())?;
        Ok(Self { uploader, thread })
    }

    pub fn uploader(&self) -> Uploader {
        self.uploader.clone()
    }

    /// Waits until all checkpoints are copied or their attempts are used up.
    pub fn finish(self) -> Uploaded {
        let shared = self.uploader.0;
        let num_waiting = {
            let mut state = shared.lock();
            state.is_over = true;
            state.waiting.len()
        };
        if num_waiting > 0 {
            (shared.say)(&format!("copying {num_waiting} checkpoint(s) to {}", shared.spec.url));
        }
        shared.changed.notify_all();
        let panicked = self.thread.join().is_err();
        let mut state = shared.lock();
        state.uploaded.num_failed = state.failed.len() as u64;
        if panicked {
            let num_waiting = state.waiting.len() as u64;
            state.uploaded.num_failed += num_waiting;
            state.uploaded.last_error = Some("the thread that copies checkpoints has panicked".to_owned());
        }
        state.uploaded.clone()
    }
}

impl Uploader {
    /// Records that the store contains a former run's checkpoints, which this run replaces. Call it before that run is removed
    /// here: whoever restores it removes the note, and after that only the note says that its checkpoints in the store must be
    /// removed.
    ///
    /// # Errors
    /// Fails if the folder of checkpoints cannot be written.
    pub fn note_former(&self) -> io::Result<()> {
        let spec = &self.0.spec;
        if spec.begins_anew {
            fs::create_dir_all(&spec.dir)?;
            let mut note = File::create(spec.dir.join(FORMER))?;
            note.write_all(spec.url.as_bytes())?;
            note.sync_all()?;
            File::open(&spec.dir)?.sync_all()?;
        }
        Ok(())
    }

    /// Removes a former run's checkpoints from the store, after [`Uploader::note_former`]. The caller does not wait; if the program
    /// ends before that is done, the next start with this folder continues it.
    pub fn forget_former(&self) {
        if self.0.spec.begins_anew {
            let mut state = self.0.lock();
            state.keeps_former = false;
            state.forgets = true;
            self.0.changed.notify_all();
        }
    }

    /// Returns the number of checkpoints so far that could not be copied; it never falls.
    pub fn num_failed(&self) -> u64 {
        self.0.lock().num_failed
    }

    /// Ends the wait of [`Uploads::finish`]: the current attempt is the last one.
    pub fn give_up(&self) {
        self.0.lock().is_given_up = true;
        self.0.changed.notify_all();
    }

    /// Queues a published checkpoint for copying. The caller does not wait and sees no errors.
    pub fn add(&self, checkpoint: &Path) {
        self.0.add(checkpoint);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a published checkpoint.
    fn add(&self, checkpoint: &Path) {
        let name = checkpoint.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let staged = self.spec.dir.join(format!("{STAGED}{name}"));
        // One step may be saved again while its first copy waits. A folder that another thread has made is not this one's.
        let is_free = |made: &io::Result<PathBuf>| {
            !made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
        };
        let names = (0..).map(|again| staged.with_extension(again.to_string()));
        let made = names.map(|path| fs::create_dir(&path).map(|()| path)).find(is_free);
        let staged = match made.expect("there are more numbers than folders") {
            Ok(staged) => staged,
            Err(error) => return self.failed(&name, &error.to_string()),
        };
        if let Err(error) = stage(checkpoint, &staged) {
            let _ = fs::remove_dir_all(&staged);
            return self.failed(&name, &error.to_string());
        }
        let left_out = {
            let mut state = self.lock();
            state.waiting.push_back(staged);
            let best = Manifest::read(checkpoint).ok().and_then(|manifest| best_of(&manifest));
            // The first one is under way, and the best one is what the run is for.
            let is_best = |path: &PathBuf| best.is_some() && steps_of(&name_of(path)) == best;
            let oldest = state.waiting.iter().skip(1).position(|path| !is_best(path));
            if state.waiting.len() > MAX_WAITING + 1 {
                oldest.and_then(|at| state.waiting.remove(at + 1))
            } else {
                None
            }
        };
        if let Some(path) = left_out {
            let _ = fs::remove_dir_all(&path);
            self.failed(&name_of(&path), "checkpoints are written faster than they are copied, and newer ones wait");
        }
        self.changed.notify_all();
    }

    fn run(&self) {
        self.note_own_left_aside();
        loop {
            let mut state = self.lock();
            while state.waiting.is_empty() && !state.is_over && !state.forgets {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if std::mem::take(&mut state.forgets) {
                let own = state.own.clone();
                drop(state);
                match self.stored.remove_others(&own) {
                    Ok(()) => {
                        self.note_left_aside();
                        drop(fs::remove_file(self.spec.dir.join(FORMER)));
                    }
                    Err(error) => (self.say)(&format!("warning: the former run's checkpoints stay: {error}")),
                }
                continue;
            }
            // It stays in the queue until it is done.
            let Some(path) = state.waiting.front().cloned() else { return };
            drop(state);
            self.copy(&path);
            let _ = fs::remove_dir_all(&path);
            self.lock().waiting.pop_front();
        }
    }

    /// Works like [`Shared::note_left_aside`] where there is a record here: until the run has saved something, and so has moved on, the
    /// store's own record stays.
    fn note_own_left_aside(&self) {
        if !self.lock().keeps_former && self.spec.dir.join(LEFT_ASIDE).exists() {
            self.note_left_aside();
        }
    }

    /// Gives the store the record of what the run has left aside: a resume on another machine does not go on from that either.
    fn note_left_aside(&self) {
        let path = self.spec.dir.join(LEFT_ASIDE);
        let noted = match files::if_there(files::read(&path, files::MAX_TEXT_BYTES)) {
            Ok(text) => self.stored.set_left_aside(text).map_err(|error| error.to_string()),
            Err(error) => Err(format!("{}: {error}", path.display())),
        };
        noted.unwrap_or_else(|error| {
            (self.say)(&format!("warning: a resume on another machine would not know what is left aside: {error}"));
        });
    }

    /// Copies one checkpoint, in several attempts.
    fn copy(&self, path: &Path) {
        let (name, mut sent, mut pause) = (name_of(path), BTreeSet::new(), self.spec.back_off);
        for attempt in 1..=MAX_TRIES {
            if self.lock().is_given_up {
                return self.failed(&name, "the run was told to stop while it waited");
            }
            match self.copy_once(path, &mut sent) {
                Ok(()) => return,
                Err(error) if attempt == MAX_TRIES => return self.failed(&name, &error.to_string()),
                Err(error) => {
                    self.lock().uploaded.num_failures += 1;
                    let url = &self.spec.url;
                    let what = "could not be copied to";
                    (self.say)(&format!("warning: {name} {what} {url} (attempt {attempt} of {MAX_TRIES}): {error}"));
                }
            }
            let waited = self.changed.wait_timeout_while(self.lock(), pause, |state| !state.is_given_up);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            pause = (pause * 2).min(MAX_BACK_OFF);
        }
    }

    fn copy_once(&self, path: &Path, sent: &mut BTreeSet<String>) -> Result<(), StoredError> {
        let manifest = Manifest::read(path)?;
        let num_steps = manifest.num_steps;
        let here = fs::read(path.join(MANIFEST)).unwrap_or_default();
        if sent.is_empty() && self.stored.manifest(num_steps)?.is_some_and(|there| there == here) {
            self.lock().has(num_steps, path);
            // One that was left aside there, and saved again with the same contents, is not left aside any more.
            self.note_own_left_aside();
            return Ok(());
        }
        self.stored.send(path, sent)?;
        let (own, keeps_former) = {
            let mut state = self.lock();
            state.has(num_steps, path);
            state.uploaded.num_sent += 1;
            (state.own.clone(), state.keeps_former)
        };
        (self.say)(&format!("copied to {}", self.stored.url(num_steps)));
        if keeps_former {
            return Ok(());
        }
        self.note_left_aside();
        let best = best_of(&manifest);
        best.into_iter().for_each(|best| self.add_best(best));
        let former = match has_former(&self.spec.dir, &self.spec.url) {
            true => self.stored.remove_others(&own).map(|()| drop(fs::remove_file(self.spec.dir.join(FORMER)))),
            false => Ok(()),
        };
        let left = left_aside(&self.spec.dir);
        let is_aside = |steps: u64, text: &[u8]| left.as_ref().is_some_and(|left| left.has_manifest(steps, text));
        let keep_last = self.spec.keep_last.max(1);
        let pruned = former.and_then(|()| self.stored.prune(num_steps, best, keep_last, is_aside));
        pruned.unwrap_or_else(|error| (self.say)(&format!("warning: old checkpoints could not be removed: {error}")));
        Ok(())
    }

    /// Queues the best checkpoint again where it could not be copied: the store may have been away for long.
    fn add_best(&self, best: u64) {
        let name = step_name(best);
        let is_missed = {
            let state = self.lock();
            state.failed.contains(&name) && state.waiting.iter().all(|staged| name_of(staged) != name)
        };
        let path = self.spec.dir.join(name);
        if is_missed && path.is_dir() {
            self.add(&path);
        }
    }

    fn failed(&self, name: &str, error: &str) {
        let num_failed = {
            let mut state = self.lock();
            state.uploaded.num_failures += 1;
            state.num_failed += u64::from(state.failed.insert(name.to_owned()));
            state.uploaded.last_error = Some(format!("{name}: {error}"));
            state.num_failed
        };
        let url = &self.spec.url;
        (self.say)(&format!("ALARM: {name} was not copied to {url} ({num_failed} so far): {error}"));
    }
}

/// Removes the links that a run which was killed has left beside its checkpoints.
///
/// # Errors
/// The folder cannot be read, or a link cannot be removed.
pub fn remove_staged(dir: &Path) -> io::Result<()> {
    let found = entries(dir).map_err(|error| io::Error::other(error.to_string()))?;
    found.into_iter().filter(|(name, _)| name.starts_with(STAGED)).try_for_each(|(_, path)| fs::remove_dir_all(path))
}

/// Returns whether the store at `url` may have checkpoints of a run that the one of this folder replaces.
pub fn has_former(dir: &Path, url: &str) -> bool {
    fs::read_to_string(dir.join(FORMER)).is_ok_and(|noted| noted == url)
}

/// Steps of the best checkpoint as of another one.
fn best_of(manifest: &Manifest) -> Option<u64> {
    manifest.scheduler.evaluated.best.map(|best| best.step.0)
}

/// Returns the checkpoint's name, of which a folder has links.
fn name_of(staged: &Path) -> String {
    let name = staged.file_stem().unwrap_or_default().to_string_lossy();
    name.trim_start_matches(STAGED).to_owned()
}

/// Links all files of a checkpoint, or copies them where the file system has no links.
fn stage(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let (path, to) = {
            let entry = entry?;
            (entry.path(), to.join(entry.file_name()))
        };
        if path.is_dir() {
            stage(&path, &to)?;
        } else if fs::hard_link(&path, &to).is_err() {
            fs::copy(&path, &to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "upload_tests.rs"]
mod tests;
