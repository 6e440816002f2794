//! A tower's folder of features in an object store: the files that the local folder lacks are fetched, and those that the store
//! lacks are sent. Nobody changes a file that is there, and two files never have the same name.

use loongforge_core::store::{self, StoredObject};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Says where the features of one tower are in an object store.
pub(super) struct CacheStore {
    /// Without a slash at its end.
    url: String,
}

impl CacheStore {
    /// The folder `tower` in the folder `root` of a store, which need not be there.
    pub fn new(root: &str, tower: &str) -> Self {
        Self { url: format!("{}/{tower}", root.trim_end_matches('/')) }
    }

    /// Fetches the files that `dir` lacks.
    ///
    /// # Errors
    /// The store does not answer, or the folder cannot be written to.
    pub fn fetch(&self, dir: &Path) -> io::Result<()> {
        for StoredObject { name, bytes, .. } in self.objects()? {
            if dir.join(&name).exists() {
                continue;
            }
            let writing = tempfile::Builder::new().prefix("fetching-").tempdir_in(dir)?;
            let path = writing.path().join(&name);
            let mut file = File::create(&path)?;
            store::fetch(&self.of(&name), bytes, &mut |part| file.write_all(part)).map_err(io::Error::other)?;
            fs::rename(&path, dir.join(&name))?;
        }
        Ok(())
    }

    /// Sends the files of `dir` that the store lacks.
    ///
    /// # Errors
    /// The store does not take them, or the folder cannot be read.
    pub fn send(&self, dir: &Path) -> io::Result<()> {
        let stored: BTreeSet<String> = self.objects()?.into_iter().map(|object| object.name).collect();
        for entry in fs::read_dir(dir)? {
            // What is written has a name of letters.
            let Ok(name) = entry?.file_name().into_string() else { continue };
            if is_file_of_features(Path::new(&name)) && !stored.contains(&name) {
                let mut file = File::open(dir.join(&name))?;
                let bytes = file.metadata()?.len();
                store::send(&self.of(&name), &mut file, bytes).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    fn objects(&self) -> io::Result<Vec<StoredObject>> {
        let mut objects = store::list(&self.url).map_err(io::Error::other)?;
        objects.retain(|object| !object.name.contains('/') && is_file_of_features(Path::new(&object.name)));
        Ok(objects)
    }

    fn of(&self, name: &str) -> String {
        format!("{}/{name}", self.url)
    }
}

/// Returns whether a file has features, by its name.
pub(super) fn is_file_of_features(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind == "safetensors")
}
