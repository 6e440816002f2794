//! Checkpoints of a run in an object store (`checkpoint.upload`).

use loongforge_actors::checkpoint::{UploadSpec, Uploaded, Uploader, Uploads, has_former, remove_staged};
use loongforge_actors::{Heeding, StopSignals};
use loongforge_core::checkpoint::{CheckpointError, StoredCheckpoints, StoredError};
use loongforge_core::config::RunConfig;
use loongforge_core::files::{LeftAside, if_there, step_name};
use loongforge_core::observe::Console;
use loongforge_core::text::{counted, were};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::oneshot;

/// The first pause after a copy that failed.
const BACK_OFF: Duration = Duration::from_secs(1);

/// Checkpoints that a run could not copy by its end.
#[derive(Debug, thiserror::Error)]
#[error(
    "the run is done, but its last checkpoint is not in {url}: {error}; checkpoints are in {}, and the same command with --resume \
     copies them", dir.display()
)]
pub struct NotUploaded {
    url: String,
    error: String,
    dir: PathBuf,
}

/// The reasons why a store is no place for a run's checkpoints.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error("checkpoint.upload cannot be read")]
    Store(#[from] StoredError),
    #[error(
        "checkpoint.upload already holds a run ({newest} in it has {num_steps} steps): resume it with --resume, start over with \
         --overwrite, or name another folder"
    )]
    Held { newest: String, num_steps: u64 },
    #[error(
        "checkpoint.upload holds checkpoints of another run ({newest}, {num_steps} steps), not of the run that {resumed} belongs to, \
         and old ones in it would be removed: name another folder, or resume with --resume alone"
    )]
    OfAnother { newest: String, num_steps: u64, resumed: String },
}

/// Starts copying where the config has `checkpoint.upload`. `begins_anew`: what the store has is of a former run.
///
/// # Errors
/// The folder of checkpoints cannot be read.
pub fn start(config: &RunConfig, begins_anew: bool, console: &Console) -> io::Result<Option<Uploads>> {
    let Some(url) = config.checkpoint.upload.clone() else {
        // Those of a run that had the key, and was killed.
        remove_staged(&config.checkpoint.dir)?;
        return Ok(None);
    };
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
    let heeding = Heeding::begin();
    let done = give_up_at_a_signal(uploads.uploader());
    let copied = uploads.finish();
    drop((done, heeding));
    let Uploaded { num_sent, num_failed, num_failures, last_error } = copied;
    if num_sent + num_failures > 0 {
        let failed = match num_failures {
            0 => String::new(),
            _ => format!("; {num_failed} could not be copied, {} failed", counted(num_failures, "attempt")),
        };
        let (sent, were) = (counted(num_sent, "checkpoint"), were(num_sent));
        console.line(&format!("{sent} {were} copied to {url}{failed}"));
    }
    match last_error {
        Some(error) => Err(NotUploaded { url, error, dir: config.checkpoint.dir.clone() }),
        None => Ok(()),
    }
}

/// Listens for SIGINT, SIGTERM and SIGHUP until what it returns is dropped: the run has ended, and nothing else of it heeds them.
fn give_up_at_a_signal(uploader: Uploader) -> oneshot::Sender<()> {
    let (sender, done) = oneshot::channel();
    let listen = async move {
        let Ok(mut signals) = StopSignals::new() else { return };
        tokio::select! {
            () = signals.next() => uploader.give_up(),
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

/// Returns the number of steps of the newest checkpoint in the store; `None`: there is none, no `checkpoint.upload`, or what is there is
/// of a run that this one replaces.
///
/// # Errors
/// The store cannot be reached.
pub fn newest(config: &RunConfig) -> Result<Option<u64>, StoredError> {
    Ok(stored(config).map(|stored| stored.newest()).transpose()?.flatten())
}

/// Returns the run's checkpoints in the store; `None`: no `checkpoint.upload`, or what is there is of a run that this one replaces.
fn stored(config: &RunConfig) -> Option<StoredCheckpoints> {
    let url = config.checkpoint.upload.as_deref().filter(|url| !has_former(&config.checkpoint.dir, url));
    url.map(StoredCheckpoints::new)
}

/// Works like [`newest`], among those that the run has not left aside when it was resumed from an earlier step.
///
/// # Errors
/// The store cannot be reached, or the record of what is left aside cannot be read.
pub fn newest_to_resume(config: &RunConfig) -> Result<Option<u64>, StoredError> {
    let (dir, Some(stored)) = (&config.checkpoint.dir, stored(config)) else { return Ok(None) };
    let left = LeftAside::read(dir).map_err(CheckpointError::read(dir))?;
    let is_left = |num_steps, text: &[u8]| left.as_ref().is_some_and(|left| left.has_manifest(num_steps, text));
    Ok(stored.newest_of(|num_steps, text| !is_left(num_steps, text))?)
}

/// Fetches the record of what the run has left aside from the store where the run's folder has none, or one of before: the run was
/// resumed on another machine, or goes on at another one.
///
/// # Errors
/// The store cannot be reached, a record is damaged, or the folder cannot be written.
pub fn fetch_left_aside(config: &RunConfig) -> Result<(), StoredError> {
    let (dir, Some(stored)) = (&config.checkpoint.dir, stored(config)) else { return Ok(()) };
    let own = LeftAside::read(dir).map_err(CheckpointError::read(dir))?;
    let Some(text) = stored.left_aside()? else { return Ok(()) };
    let left = LeftAside::parse(&text).map_err(CheckpointError::read(dir))?;
    if own.is_some_and(|own| own.noted_at >= left.noted_at) {
        return Ok(());
    }
    fs::create_dir_all(dir).and_then(|()| left.write(dir)).map_err(CheckpointError::write(dir))?;
    Ok(())
}

/// Returns the checkpoints in the store with more steps than `after`, or all where that is `None`, with the texts of their manifests.
///
/// # Errors
/// The store cannot be reached.
pub fn stored_after(config: &RunConfig, after: Option<u64>) -> Result<Vec<(u64, Vec<u8>)>, StoredError> {
    let (Some(stored), mut found) = (stored(config), Vec::new()) else { return Ok(Vec::new()) };
    for num_steps in stored.steps()?.into_iter().filter(|num_steps| after.is_none_or(|after| *num_steps > after)) {
        found.extend(stored.manifest(num_steps)?.map(|text| (num_steps, text)));
    }
    Ok(found)
}

/// Refuses a store that has checkpoints.
///
/// # Errors
/// It has some, or cannot be reached.
pub fn expect_none_stored(config: &RunConfig) -> Result<(), Unfit> {
    let (Some(num_steps), Some(url)) = (newest(config)?, &config.checkpoint.upload) else { return Ok(()) };
    Err(Unfit::Held { newest: StoredCheckpoints::new(url).url(num_steps), num_steps })
}

/// Refuses a store of another run than that of the checkpoint `resumed`, from elsewhere than the run's folder, with this text as its
/// manifest: the store has to have nothing, or this checkpoint.
///
/// # Errors
/// It has others, or cannot be reached.
pub fn expect_stored(config: &RunConfig, resumed: &str, manifest: Option<&[u8]>, num_steps: u64) -> Result<(), Unfit> {
    let (Some(newest), Some(url)) = (newest(config)?, &config.checkpoint.upload) else { return Ok(()) };
    let stored = StoredCheckpoints::new(url);
    let there = stored.manifest(num_steps).map_err(StoredError::from)?;
    if there.is_some() && there.as_deref() == manifest {
        return Ok(());
    }
    Err(Unfit::OfAnother { newest: stored.url(newest), num_steps: newest, resumed: resumed.to_owned() })
}

/// Fetches the checkpoint of so many steps of `url` into the folder of checkpoints `dir`, verified; returns its folder there. One of as
/// many steps that is there, which the run has left aside, is replaced.
///
/// # Errors
/// It is not whole, is damaged, or cannot be written.
pub fn fetch(url: &str, num_steps: u64, dir: &Path) -> Result<PathBuf, StoredError> {
    let name = step_name(num_steps);
    // `.step-…tmp` is removed by the next run where this one is killed.
    let [part, former] = ["fetched", "replaced"].map(|what| dir.join(format!(".{name}.{what}.tmp")));
    let to = dir.join(&name);
    for path in [&part, &former] {
        if_there(fs::remove_dir_all(path)).map_err(CheckpointError::write(path))?;
    }
    let stored = StoredCheckpoints::new(url);
    stored.fetch(num_steps, &part).inspect_err(|_| {
        let _ = fs::remove_dir_all(&part);
    })?;
    let sync = |path: &Path| fs::File::open(path).and_then(|folder| folder.sync_all());
    let replaced = sync(&part).and_then(|()| if_there(fs::rename(&to, &former)));
    let fetched = replaced.and_then(|_| fs::rename(&part, &to)).and_then(|()| sync(dir));
    fetched.map_err(CheckpointError::write(&to))?;
    if_there(fs::remove_dir_all(&former)).map_err(CheckpointError::write(&former))?;
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use loongforge_core::checkpoint::{MANIFEST, Manifest};
    use loongforge_core::config::load_text;
    use std::collections::{BTreeMap, BTreeSet};

    const YAML: &str = include_str!("../../configs/sft_text.yaml");

    /// Returns a checkpoint without files.
    fn checkpoint(dir: &Path, num_steps: u64, precision: &str) -> PathBuf {
        let dir = dir.join(format!("{precision}-{num_steps}"));
        fs::create_dir_all(&dir).unwrap();
        let manifest = Manifest { precision: precision.to_owned(), ..Manifest::of_files(num_steps, BTreeMap::new()) };
        fs::write(dir.join(MANIFEST), manifest.to_text()).unwrap();
        dir
    }

    #[test]
    fn a_store_of_another_run_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = load_text(YAML).unwrap_or_else(|report| panic!("{report}")).config;
        config.checkpoint.dir = dir.path().to_owned();
        let [own, other] = ["float32", "bf16"].map(|precision| checkpoint(dir.path(), 4, precision));
        let expect_stored = |config: &RunConfig, checkpoint: &Path, num_steps| {
            let text = fs::read(checkpoint.join(MANIFEST)).unwrap();
            super::expect_stored(config, &checkpoint.display().to_string(), Some(&text), num_steps)
        };
        expect_stored(&config, &own, 4).unwrap();
        config.checkpoint.upload = Some("memory:///fits".to_owned());
        expect_none_stored(&config).unwrap();
        expect_stored(&config, &other, 4).unwrap();
        StoredCheckpoints::new("memory:///fits").send(&own, &mut BTreeSet::new()).unwrap();
        assert!(matches!(expect_none_stored(&config), Err(Unfit::Held { num_steps: 4, .. })));
        expect_stored(&config, &own, 4).unwrap();
        let later = checkpoint(dir.path(), 6, "float32");
        for (checkpoint, steps) in [(&other, 4), (&later, 6)] {
            let error = expect_stored(&config, checkpoint, steps).unwrap_err().to_string();
            assert!(error.contains("memory:///fits/step-00000004") && error.contains("of another run"), "{error}");
        }
        // What is there is to be removed anyway.
        fs::write(dir.path().join(".former-in-store"), "memory:///fits").unwrap();
        expect_none_stored(&config).unwrap();
        assert_eq!(newest(&config).unwrap(), None);
    }

    #[test]
    fn what_a_run_has_left_aside_is_not_resumed_from_the_store() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = load_text(YAML).unwrap_or_else(|report| panic!("{report}")).config;
        config.checkpoint.dir = dir.path().to_owned();
        config.checkpoint.upload = Some("memory:///left".to_owned());
        let stored = StoredCheckpoints::new("memory:///left");
        for num_steps in [2, 5] {
            let made = checkpoint(dir.path(), num_steps, "float32");
            stored.send(&made, &mut BTreeSet::new()).unwrap();
            fs::rename(made, dir.path().join(step_name(num_steps))).unwrap();
        }
        assert_eq!(newest_to_resume(&config).unwrap(), Some(5));
        LeftAside::of(dir.path(), dir.path().join("step-00000002"), Some(2)).unwrap().write(dir.path()).unwrap();
        assert_eq!((newest_to_resume(&config).unwrap(), newest(&config).unwrap()), (Some(2), Some(5)));
        // The thread that copies has told the store, which tells another machine.
        let uploads = start(&config, false, &Console::stderr()).unwrap();
        finish(uploads, &config, &Console::stderr()).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let mut there = config.clone();
        there.checkpoint.dir = elsewhere.path().join("checkpoints");
        assert_eq!(newest_to_resume(&there).unwrap(), Some(5));
        fetch_left_aside(&there).unwrap();
        assert_eq!(newest_to_resume(&there).unwrap(), Some(2));
        assert_eq!(LeftAside::read(&there.checkpoint.dir).unwrap(), LeftAside::read(dir.path()).unwrap());
        let again = checkpoint(dir.path(), 5, "bf16");
        stored.send(&again, &mut BTreeSet::new()).unwrap();
        assert_eq!(newest_to_resume(&config).unwrap(), Some(5));
        // The one that is left aside here has the same name.
        let fetched = fetch("memory:///left", 5, dir.path()).unwrap();
        assert_eq!(Manifest::read(&fetched).unwrap().precision, "bf16");
        assert!(!dir.path().join(".step-00000005.replaced.tmp").exists());
    }

    #[test]
    fn links_of_a_run_that_was_killed_go_also_without_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = load_text(YAML).unwrap_or_else(|report| panic!("{report}")).config;
        config.checkpoint.dir = dir.path().to_owned();
        fs::create_dir_all(dir.path().join(".upload-step-00000004.0/vae")).unwrap();
        assert!(start(&config, false, &Console::stderr()).unwrap().is_none());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
