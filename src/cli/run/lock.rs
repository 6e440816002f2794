//! The lock of a run's folders: a file in each that names who writes there.
//!
//! It needs no more of a file system than that one of two renames or links to the same new name fails, so it holds on network
//! file systems as well. A file that a dead process of this machine left is followed at once. A holder on another machine
//! shows that it lives by touching its file: one that does not for [`SILENCE`] is dead. Exactly one process may follow a dead
//! holder: the one that makes the file named for that holder's token, which is a lock as well.

use super::holder::{Holder, Life};
use crate::cli::{UsageError, exit};
use loongforge_core::files::if_there;
use loongforge_core::observe::{Console, print_line};
use loongforge_torch::native::exit_at_once;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// The lock's file in a folder.
pub const LOCK: &str = "run.lock";
/// The time between two touches of a holder's files.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// A holder on another machine that has not touched its file for so long is dead.
const SILENCE: Duration = Duration::from_secs(30);
/// The time between two looks at a file of another machine.
const GLANCE: Duration = Duration::from_millis(250);

/// The reasons why a folder cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("{} is in use by another run: {holder} ({path}); wait for it or stop it, or set run.name", folder(path).display())]
    Held { path: PathBuf, holder: Box<Holder> },
    #[error("packs are being made in {} by {holder} ({path}): wait for it or stop it", folder(path).display())]
    Packing { path: PathBuf, holder: Box<Holder> },
    #[error("{path} does not name its holder ({source}): remove it if no run is active in its folder")]
    Damaged { path: PathBuf, source: serde_json::Error },
    #[error("cannot write into {}", folder(path).display())]
    Io { path: PathBuf, source: io::Error },
}

fn folder(lock: &Path) -> &Path {
    lock.parent().unwrap_or(lock)
}

/// Returns whether a process of this machine that is alive holds a folder.
pub fn is_held(dir: &Path) -> bool {
    let holder = fs::read(dir.join(LOCK)).ok().and_then(|bytes| serde_json::from_slice::<Holder>(&bytes).ok());
    let me = Holder::of(std::process::id());
    holder.is_some_and(|holder| matches!(holder.life(&me), Life::Alive | Life::Ours))
}

/// The folders of a run, for this run alone until this is dropped.
pub struct RunLock {
    files: Vec<PathBuf>,
    me: Holder,
    heart: Option<(SyncSender<()>, JoinHandle<()>)>,
}

impl RunLock {
    /// Makes the folders where they are not there, and locks each, named by its key, for process `pid` of this machine.
    ///
    /// # Errors
    /// Another run has one of them, or it cannot be written.
    pub fn take(folders: &[(&str, &Path)], pid: u32, console: &Console) -> anyhow::Result<Self> {
        let mut lock = Self { files: Vec::new(), me: Holder::of(pid), heart: None };
        for (key, folder) in folders {
            let path = folder.join(LOCK);
            let made = fs::create_dir_all(folder);
            made.map_err(|source| failed(key, LockError::Io { path: path.clone(), source }))?;
            // Two keys may name one folder.
            if lock.files.iter().any(|other| is_same(other, &path)) {
                continue;
            }
            acquire(&path, &lock.me, SILENCE, &waiting(key, console)).map_err(|error| failed(key, error))?;
            lock.files.push(path);
        }
        lock.heart = Some(lock.start_heart()?);
        Ok(lock)
    }

    /// Locks a file of another name in a run's folder, which is `key`, for this process.
    ///
    /// # Errors
    /// Fails as [`LockError`] says.
    pub(super) fn take_file(key: &str, path: PathBuf, console: &Console) -> Result<Self, LockError> {
        let io = |source| LockError::Io { path: path.clone(), source };
        fs::create_dir_all(folder(&path)).map_err(io)?;
        let mut lock = Self { files: Vec::new(), me: Holder::of(std::process::id()), heart: None };
        acquire(&path, &lock.me, SILENCE, &waiting(key, console))?;
        lock.files.push(path.clone());
        lock.heart = Some(lock.start_heart().map_err(io)?);
        Ok(lock)
    }

    fn start_heart(&self) -> io::Result<(SyncSender<()>, JoinHandle<()>)> {
        let (stop, stopped) = sync_channel::<()>(1);
        let (files, me) = (self.files.clone(), self.me.clone());
        let beat = move || {
            while stopped.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
                files.iter().for_each(|path| beat(path, &me));
            }
        };
        Ok((stop, std::thread::Builder::new().name("run-lock".into()).spawn(beat)?))
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        if let Some((stop, heart)) = self.heart.take() {
            drop(stop);
            let _ = heart.join();
        }
        for path in self.files.iter().filter(|path| is_ours(path, &self.me)) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Refuses a folder in which somebody else holds this file, without taking it.
///
/// # Errors
/// Fails as [`LockError`] says.
pub(super) fn expect_free(key: &str, path: &Path, console: &Console) -> Result<(), LockError> {
    let Some(found) = read(path)? else { return Ok(()) };
    let is_alive = match found.life(&Holder::of(std::process::id())) {
        Life::Ours | Life::Dead => false,
        Life::Alive => true,
        Life::Elsewhere => {
            waiting(key, console)(&found);
            shows_life(path, &found, SILENCE)?
        }
    };
    match is_alive {
        true => Err(LockError::Held { path: path.to_owned(), holder: Box::new(found) }),
        false => Ok(()),
    }
}

/// Tells that a holder on another machine is waited for.
fn waiting(key: &str, console: &Console) -> impl Fn(&Holder) {
    move |holder| {
        let seconds = SILENCE.as_secs();
        console
            .line(&format!("{key} is locked by {holder}; it is taken over if there is no heartbeat for {seconds} s"));
    }
}

/// Makes an error of the command of why the folder of `key` cannot be had. What the same command can only meet again is its user's.
pub(super) fn failed(key: &str, error: LockError) -> anyhow::Error {
    let lasting = [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem, ErrorKind::NotADirectory];
    match error {
        LockError::Io { path, source } if lasting.contains(&source.kind()) => {
            let folder = folder(&path).display();
            let reason = format!("{key}: cannot write into {folder}: {source}; name a folder that you may write into");
            UsageError(reason).into()
        }
        LockError::Io { path, source } => {
            anyhow::Error::new(source).context(format!("{key}: cannot write into {}", folder(&path).display()))
        }
        held => UsageError(format!("{key}: {held}")).into(),
    }
}

fn is_ours(path: &Path, me: &Holder) -> bool {
    read(path).is_ok_and(|found| found.is_some_and(|found| found.life(me) == Life::Ours))
}

/// Returns whether two files, one of which may not be there, lie in one folder.
fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| folder(path).canonicalize().ok();
    real(one).is_some_and(|one| real(other) == Some(one))
}

/// Touches the file. Where it has another holder, which can be only after this process was frozen for long, this process ends
/// before it writes anything else.
fn beat(path: &Path, me: &Holder) {
    match read(path) {
        Ok(Some(found)) if found.life(me) == Life::Ours => {
            let touch = |file: File| file.set_modified(SystemTime::now());
            let _ = File::options().write(true).open(path).and_then(touch);
        }
        Ok(Some(other)) => {
            let path = path.display();
            print_line(&format!(
                "error: {path} was taken over by {other}, which considered this run dead; this run stops"
            ));
            exit_at_once(exit::FAILED);
        }
        Ok(None) => drop(create(path, me)),
        // A network file system that does not answer is tried again.
        Err(_) => {}
    }
}

/// Makes `path` name `me`; `wait` is told of a holder on another machine that is waited for.
fn acquire(path: &Path, me: &Holder, silence: Duration, wait: &dyn Fn(&Holder)) -> Result<(), LockError> {
    let io = |source| LockError::Io { path: path.to_owned(), source };
    loop {
        if create(path, me).map_err(io)? {
            return Ok(());
        }
        let Some(found) = read(path)? else { continue };
        let is_alive = match found.life(me) {
            // Also where a network file system did what it says that it did not.
            Life::Ours => return Ok(()),
            Life::Alive => true,
            Life::Dead => false,
            Life::Elsewhere => {
                wait(&found);
                shows_life(path, &found, silence)?
            }
        };
        if is_alive {
            return Err(LockError::Held { path: path.to_owned(), holder: Box::new(found) });
        }
        let mut succession = path.as_os_str().to_owned();
        succession.push(format!(".{}", found.token));
        let succession = PathBuf::from(succession);
        acquire(&succession, me, silence, wait)?;
        // Who had it before may have followed already, and be done with it.
        if read(path)?.as_ref() == Some(&found) {
            return fs::rename(&succession, path).map_err(io);
        }
        let _ = fs::remove_file(&succession);
    }
}

/// Returns whether a holder touches its file before `silence` is over, or has let go of it.
fn shows_life(path: &Path, holder: &Holder, silence: Duration) -> Result<bool, LockError> {
    let touched = || File::open(path).and_then(|file| file.metadata()?.modified()).ok();
    let (begin, first) = (Instant::now(), touched());
    while begin.elapsed() < silence {
        std::thread::sleep(GLANCE.min(silence));
        if read(path)?.as_ref() != Some(holder) {
            return Ok(false);
        }
        if touched() != first {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes the file whole, or says that there is one.
fn create(path: &Path, me: &Holder) -> io::Result<bool> {
    let permissions = Permissions::from_mode(0o644);
    let mut file = tempfile::Builder::new().prefix(".run.lock-").permissions(permissions).tempfile_in(folder(path))?;
    let text = serde_json::to_string_pretty(me).expect("a holder is text and numbers");
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(true),
        Err(error) if error.error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error.error),
    }
}

/// Returns the holder that the file names; `None` where there is no file.
fn read(path: &Path) -> Result<Option<Holder>, LockError> {
    let path = path.to_owned();
    match if_there(fs::read(&path)) {
        Ok(None) => Ok(None),
        Ok(Some(text)) => match serde_json::from_slice(&text) {
            Ok(holder) => Ok(Some(holder)),
            Err(source) => Err(LockError::Damaged { path, source }),
        },
        Err(source) => Err(LockError::Io { path, source }),
    }
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
