//! A tower's folder of features in an object store: the files that the local folder lacks are fetched, and those that the store
//! lacks are sent. Nobody changes a file that is there, and two files never have the same name.

use loongforge_core::store::{self, StoredObject};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::Instant;

/// Says where the features of one tower are in an object store.
pub(super) struct CacheStore {
    /// The store's URL, without a slash at its end.
    url: String,
    /// Gives the end of the thread that sends files while a run computes.
    sending: Option<flume::Receiver<io::Result<()>>>,
}

impl CacheStore {
    /// Returns the folder `tower` in the folder `root` of a store, which need not be there.
    pub fn new(root: &str, tower: &str) -> Self {
        Self { url: format!("{}/{tower}", root.trim_end_matches('/')), sending: None }
    }

    /// Fetches the files that `dir` lacks.
    ///
    /// # Errors
    /// The store does not answer, or the folder cannot be written to.
    pub fn fetch(&self, dir: &Path) -> io::Result<()> {
        for StoredObject { name, bytes, .. } in objects(&self.url)? {
            if dir.join(&name).exists() {
                continue;
            }
            let writing = tempfile::Builder::new().prefix("fetching-").tempdir_in(dir)?;
            let path = writing.path().join(&name);
            let mut file = File::create(&path)?;
            store::fetch(&of(&self.url, &name), bytes, &mut |part| file.write_all(part)).map_err(io::Error::other)?;
            fs::rename(&path, dir.join(&name))?;
        }
        Ok(())
    }

    /// Sends the files of `dir` that the store lacks, and waits until they are there.
    ///
    /// # Errors
    /// The store does not take them, or the folder cannot be read.
    pub fn send(&self, dir: &Path) -> io::Result<()> {
        send(&self.url, dir)
    }

    /// Begins to send the files of `dir` that the store lacks, on a thread that nobody waits for before [`CacheStore::wait`].
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn begin(&mut self, dir: &Path) -> io::Result<()> {
        let (url, dir) = (self.url.clone(), dir.to_owned());
        let (end, sending) = flume::bounded(1);
        // Who has not waited for the end does not hear of it.
        let work = move || drop(end.send(send(&url, &dir)));
        thread::Builder::new().name("features to store".into()).spawn(work)?;
        self.sending = Some(sending);
        Ok(())
    }

    /// Returns whether the thread that was begun is still sending.
    pub fn is_sending(&self) -> bool {
        self.sending.as_ref().is_some_and(|end| end.is_empty() && !end.is_disconnected())
    }

    /// Waits until what was begun is sent, but not beyond the `deadline`.
    ///
    /// # Errors
    /// Fails as [`CacheStore::send`] does, or if it takes longer.
    pub fn wait(&mut self, deadline: Option<Instant>) -> io::Result<()> {
        let Some(sending) = self.sending.take() else { return Ok(()) };
        let end = match deadline {
            Some(deadline) => sending.recv_deadline(deadline),
            None => sending.recv().map_err(flume::RecvTimeoutError::from),
        };
        let lost = |what: &str| Err(io::Error::other(what));
        match end {
            Ok(sent) => sent,
            Err(flume::RecvTimeoutError::Timeout) => lost("the store is too slow; the next run copies the rest"),
            Err(flume::RecvTimeoutError::Disconnected) => lost("copying panicked, which is a bug of loongforge"),
        }
    }
}

/// One process at a time sends from a folder: each would send all that the store lacks, and who comes later finds it there.
fn send(url: &str, dir: &Path) -> io::Result<()> {
    let opened = File::open(dir)?;
    // Without locks in the file system some files are sent more than once.
    let _ = opened.lock();
    let stored: BTreeSet<String> = objects(url)?.into_iter().map(|object| object.name).collect();
    for entry in fs::read_dir(dir)? {
        // What is written has a name of letters.
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if is_file_of_features(Path::new(&name)) && !stored.contains(&name) {
            let mut file = File::open(dir.join(&name))?;
            let bytes = file.metadata()?.len();
            store::send(&of(url, &name), &mut file, bytes).map_err(io::Error::other)?;
        }
    }
    Ok(())
}

fn objects(url: &str) -> io::Result<Vec<StoredObject>> {
    let mut objects = store::list(url).map_err(io::Error::other)?;
    objects.retain(|object| !object.name.contains('/') && is_file_of_features(Path::new(&object.name)));
    Ok(objects)
}

/// Returns the URL of a file in the folder.
fn of(url: &str, name: &str) -> String {
    format!("{url}/{name}")
}

/// Returns whether a file has features, by its name.
pub(super) fn is_file_of_features(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind == "safetensors")
}
