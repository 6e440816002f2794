//! Tensors of a model's folder that are not trained and belong to the model all the same, such as those of the talker of an
//! Omni model: every checkpoint carries them byte for byte, one block at a time.

use super::checkpoint::{Checkpoint, num_bytes};
use super::error::WeightsError;
use super::same_files::SameFiles;
use super::save::{Entry, Writer, deal};
use super::shards::{FilesOf, Shards};
use super::stored::{Source, Stored};
use loongforge_core::config::glob;
use loongforge_core::message::SavedFile;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes that are in memory at once.
const BLOCK: u64 = 16 << 20;

/// The tensors of an open folder that its checkpoints carry along.
pub struct CarriedTensors {
    checkpoint: Checkpoint,
    names: Vec<String>,
    /// The tensors of each file, by their numbers in `names`.
    files: Vec<Range<usize>>,
}

impl CarriedTensors {
    /// Finds the tensors whose names begin with one of `prefixes` and fit no pattern of `ignore`, dealt to files of at
    /// most `max_size` bytes. Returns `None` where there are none.
    ///
    /// # Errors
    /// One of them is packed: checkpoints are plain.
    pub fn find(
        checkpoint: Checkpoint,
        prefixes: &[&str],
        ignore: &[String],
        max_size: u64,
    ) -> Result<Option<Self>, WeightsError> {
        let begins = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        Self::find_where(checkpoint, begins, ignore, max_size)
    }

    /// Works like [`CarriedTensors::find`] for the tensors whose names `is_carried`.
    ///
    /// # Errors
    /// Fails as [`CarriedTensors::find`] does.
    pub fn find_where(
        checkpoint: Checkpoint,
        is_carried: impl Fn(&str) -> bool,
        ignore: &[String],
        max_size: u64,
    ) -> Result<Option<Self>, WeightsError> {
        let is_carried = |name: &str| is_carried(name) && !ignore.iter().any(|pattern| glob(pattern, name));
        let found: Vec<(&str, &Stored)> = checkpoint.tensors().filter(|(name, _)| is_carried(name)).collect();
        if let Some((name, stored)) = found.iter().find(|(_, stored)| stored.is_packed()) {
            let reason = format!(
                "{name} is packed ({}) and cannot be written back; leave it out with model.load_ignore",
                stored.format()
            );
            return Err(WeightsError::Convert { folder: checkpoint.folder().to_owned(), reason });
        }
        let sizes: Vec<u64> = found.iter().map(|(_, stored)| num_bytes(&stored.shape, stored.dtype)).collect();
        let names: Vec<String> = found.iter().map(|(name, _)| (*name).to_owned()).collect();
        let files = deal(&sizes, max_size);
        Ok((!names.is_empty()).then_some(Self { checkpoint, names, files }))
    }

    /// Returns the number of files that [`CarriedTensors::write`] makes.
    pub fn num_files(&self) -> usize {
        self.files.len()
    }

    /// Writes the files into `folder`, named by `shards`, durable and hashed, unless they can be linked to the `same` of a
    /// checkpoint before. Ends with an error where `stop` is set.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn write(
        &self,
        (folder, same): (&Path, &SameFiles),
        shards: &Shards,
        stop: &AtomicBool,
    ) -> Result<Vec<SavedFile>, WeightsError> {
        let put = |(index, range): (usize, &Range<usize>)| {
            let name = shards.name(index);
            same.put(folder, &name, || self.write_file(folder, (shards.of, &name), range.clone(), stop))
        };
        self.files.iter().enumerate().map(put).collect()
    }

    fn write_file(
        &self,
        folder: &Path,
        (of, name): (FilesOf, &str),
        range: Range<usize>,
        stop: &AtomicBool,
    ) -> Result<SavedFile, WeightsError> {
        let names = &self.names[range];
        let stored = |name: &String| self.checkpoint.get(name).expect("a name of this folder's");
        let entry = |name: &String| {
            let Stored { dtype, shape, .. } = stored(name);
            Entry { name: of.in_file(name).to_owned(), dtype: *dtype, shape: shape.clone() }
        };
        let entries: Vec<Entry> = names.iter().map(entry).collect();
        let mut writer = Writer::create(&entries, &[("format", "pt")], folder.into(), name)?;
        let mut block = Vec::new();
        for index in writer.order().to_vec() {
            let Source::Plain(place) = &stored(&names[index]).source else { unreachable!("packed ones were refused") };
            let (file, info) = self.checkpoint.place(place);
            let mut start = 0;
            while start < info.len {
                if stop.load(Relaxed) {
                    let source = std::io::Error::other("the run ends");
                    return Err(WeightsError::Write { path: folder.join(name), source });
                }
                block.resize(BLOCK.min(info.len - start) as usize, 0);
                file.read_at(info, start, &mut block)?;
                writer.write(&block)?;
                start += block.len() as u64;
            }
        }
        writer.finish()
    }
}

impl fmt::Debug for CarriedTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CarriedTensors({} of {})", self.names.len(), self.checkpoint.folder().display())
    }
}
