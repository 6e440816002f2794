//! Checkpoints of a run in an object store (`checkpoint.upload`).

use loongforge_actors::checkpoint::{UploadSpec, Uploaded, Uploader, Uploads};
use loongforge_core::checkpoint::{CheckpointError, StoredCheckpoints, StoredError};
use loongforge_core::config::RunConfig;
use loongforge_core::observe::Console;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// The first pause after a copy that failed.
const BACK_OFF: Duration = Duration::from_secs(1);

/// Checkpoints that a run could not copy by its end.
#[derive(Debug, thiserror::Error)]
#[error(
    "the run is done, and its last checkpoint is not in {url}: {error}; checkpoints are in {}, and the same command with \
     --resume copies them", dir.display()
)]
pub struct NotUploaded {
    url: String,
    error: String,
    dir: PathBuf,
}

/// Starts copying where the config has `checkpoint.upload`. `begins_anew`: what the store has is of a former run.
///
/// # Errors
/// The folder of checkpoints cannot be read.
pub fn start(config: &RunConfig, begins_anew: bool, console: &Console) -> io::Result<Option<Uploads>> {
    let Some(url) = config.checkpoint.upload.clone() else { return Ok(None) };
    let keep_last = config.checkpoint.upload_keep_last.unwrap_or(config.checkpoint.keep_last);
    let spec = UploadSpec { url, keep_last, dir: config.checkpoint.dir.clone(), begins_anew, back_off: BACK_OFF };
    let console = console.clone();
    Uploads::start(spec, Box::new(move |line| console.line(line))).map(Some)
}

/// Waits for all copies, and says how many there are.
///
/// # Errors
/// The newest checkpoint is not in the store.
pub fn finish(uploads: Option<Uploads>, config: &RunConfig, console: &Console) -> Result<(), NotUploaded> {
    let (Some(uploads), Some(url)) = (uploads, config.checkpoint.upload.clone()) else { return Ok(()) };
    let done = give_up_at_a_signal(uploads.uploader());
    let copied = uploads.finish();
    drop(done);
    let Uploaded { num_sent, num_failed, num_failures, last_error } = copied;
    if num_sent + num_failures > 0 {
        let failed = match num_failures {
            0 => String::new(),
            _ => format!("; {num_failed} could not be copied, {num_failures} attempts failed"),
        };
        console.line(&format!("{num_sent} checkpoints were copied to {url}{failed}"));
    }
    match last_error {
        Some(error) => Err(NotUploaded { url, error, dir: config.checkpoint.dir.clone() }),
        None => Ok(()),
    }
}

/// Listens for SIGINT and SIGTERM until what it returns is dropped: the run has ended, and nothing else of it heeds them.
fn give_up_at_a_signal(uploader: Uploader) -> oneshot::Sender<()> {
    let (sender, done) = oneshot::channel();
    let listen = async move {
        let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        else {
            return;
        };
        tokio::select! {
            _ = interrupt.recv() => uploader.give_up(),
            _ = terminate.recv() => uploader.give_up(),
            _ = done => {}
        }
    };
    std::thread::spawn(move || {
        if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() {
            runtime.block_on(listen);
        }
    });
    sender
}

/// Steps of the newest checkpoint in the store; `None`: there is none, or no `checkpoint.upload`.
///
/// # Errors
/// The store cannot be reached.
pub fn newest(config: &RunConfig) -> Result<Option<u64>, StoredError> {
    let stored = config.checkpoint.upload.as_deref().map(StoredCheckpoints::new);
    Ok(stored.map(|stored| stored.newest()).transpose()?.flatten())
}

/// Fetches the checkpoint of so many steps of `url` into the folder of checkpoints `dir`, verified; returns its folder there, which must
/// not exist.
///
/// # Errors
/// It is not whole, is damaged, or cannot be written.
pub fn fetch(url: &str, num_steps: u64, dir: &Path) -> Result<PathBuf, StoredError> {
    let name = format!("step-{num_steps:08}");
    // `.step-…tmp` is removed by the next run where this one is killed.
    let (part, to) = (dir.join(format!(".{name}.fetched.tmp")), dir.join(&name));
    match fs::remove_dir_all(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(CheckpointError::write(&part)(error).into());
        }
        _ => {}
    }
    let stored = StoredCheckpoints::new(url);
    stored.fetch(num_steps, &part).inspect_err(|_| {
        let _ = fs::remove_dir_all(&part);
    })?;
    let sync = |path: &Path| fs::File::open(path).and_then(|folder| folder.sync_all());
    sync(&part).and_then(|()| fs::rename(&part, &to)).and_then(|()| sync(dir)).map_err(CheckpointError::write(&to))?;
    Ok(to)
}
