//! Looks at files and objects, and opens them.

use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use super::archive::Archive;
use super::arrow::Batches;
use super::blob::{Blob, is_packed};
use super::block::Block;
use super::folder::Folder;
use super::indexed::{Documents, ids_of};
use super::lines::Lines;
use super::patience::{is_of_system, patiently};
use super::shard::{Container, Shard};
use super::sheet::Sheet;
use super::table::Table;
use crate::config::Format;
use crate::data::error::DataError;
use crate::data::locator::is_remote;

/// A smaller object is fetched at once and held while it is open.
#[cfg(feature = "cloud")]
const MAX_WHOLE_BYTES: u64 = 64 << 20;

impl Shard {
    /// # Errors
    /// Named: it is not there, is no regular file, or cannot be reached.
    pub fn stat(name: &str) -> Result<Self, DataError> {
        if is_remote(name) {
            #[cfg(feature = "cloud")]
            return super::remote::stat(name).map_err(|reason| DataError::file(Path::new(name), reason));
            #[cfg(not(feature = "cloud"))]
            return Err(DataError::file(Path::new(name), "this program was built without the feature `cloud`"));
        }
        let path = Path::new(name);
        let metadata = crate::files::metadata(path).map_err(|error| DataError::read(path, error))?;
        let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let tag = changed.map_or_else(String::new, |time| time.as_nanos().to_string());
        let shard = Self { name: name.to_owned(), size: metadata.len(), tag };
        if shard.container() != Container::Indexed {
            return Ok(shard);
        }
        // It is known by both files.
        let ids = Self::stat(&ids_of(name))?;
        Ok(Self { size: shard.size + ids.size, tag: format!("{} {}", shard.tag, ids.tag), ..shard })
    }

    /// # Errors
    /// The reason.
    pub fn blob(&self) -> Result<Blob, String> {
        let blob = match is_remote(&self.name) {
            #[cfg(feature = "cloud")]
            true => match super::remote::Object::open(self)? {
                object if self.size <= MAX_WHOLE_BYTES => {
                    let bytes = object.read_at(0, self.size as usize).map_err(|error| error.to_string())?;
                    Blob::Memory(bytes.into())
                }
                object => Blob::Remote(object),
            },
            #[cfg(not(feature = "cloud"))]
            true => return Err("this program was built without the feature `cloud`".to_owned()),
            false => Blob::open(Path::new(&self.name)).map_err(|error| format!("cannot be opened: {error}"))?,
        };
        match is_packed(&self.name) {
            None => Ok(blob),
            Some(_) => blob.unpacked(&self.name).map_err(|error| format!("cannot be decompressed: {error}")),
        }
    }

    /// Returns the error of a shard that cannot be counted for this `reason`; `None`: what it holds is the reason, and nobody can. Where
    /// others can, or a resumed run can, they would have the samples of all shards in another order.
    pub fn refused(&self, reason: &str) -> Option<DataError> {
        if is_remote(&self.name) {
            return Some(DataError::file(Path::new(&self.name), reason));
        }
        is_of_system(reason).then(|| {
            let what = format!(
                "{reason}; how many samples it has decides the order of all: make it readable, or leave it out of the \
                 data"
            );
            DataError::file(Path::new(&self.name), what)
        })
    }

    /// Returns the number of records of each of the shard's blocks.
    ///
    /// # Errors
    /// The reason: it cannot be read at all, or the system does not give a part of it.
    pub fn count(&self, format: Format) -> Result<Vec<u64>, String> {
        patiently(|| self.try_to_count(format), |_| None)
    }

    fn try_to_count(&self, format: Format) -> Result<Vec<u64>, String> {
        match self.container() {
            Container::Parquet => Table::lens(&Arc::new(self.blob()?)),
            Container::Arrow => Batches::lens(&self.blob()?),
            Container::Indexed => Documents::lens(&self.index()?),
            _ => {
                let block = self.open(0, format)?;
                match block.lost().filter(|reason| is_of_system(reason)) {
                    Some(reason) => Err(reason.to_owned()),
                    None => Ok(vec![block.len()]),
                }
            }
        }
    }

    /// Opens the index of tokens that the shard is.
    fn index(&self) -> Result<Blob, String> {
        match is_remote(&self.name) || is_packed(&self.name).is_some() {
            true => Err("is an index of tokens, which must be an uncompressed local file".to_owned()),
            false => self.blob(),
        }
    }

    /// Opens one of its blocks. Lines of the format `plain` are texts, whatever the file's name.
    ///
    /// # Errors
    /// The reason: it cannot be read at all.
    pub fn open(&self, part: u32, format: Format) -> Result<Box<dyn Block>, String> {
        if self.container() == Container::Folder {
            return Ok(Box::new(Folder::open(Path::new(&self.name), format)?));
        }
        if self.container() == Container::Indexed {
            let name = ids_of(&self.name);
            let ids = Blob::open(Path::new(&name)).map_err(|error| format!("{name} cannot be opened: {error}"))?;
            return Ok(Box::new(Documents::open(&self.index()?, Arc::new(ids), part)?));
        }
        let (blob, is_plain) = (Arc::new(self.blob()?), format == Format::Plain);
        Ok(match self.container() {
            Container::Json if !is_plain => Box::new(Lines::json(blob)?),
            Container::Sheet(separator) if !is_plain => Box::new(Sheet::open(blob, separator)?),
            Container::Json | Container::Plain | Container::Sheet(_) => Box::new(Lines::plain(blob)?),
            Container::Tar => Box::new(Archive::open(blob)?),
            Container::Folder | Container::Indexed => unreachable!("they were opened before"),
            Container::Arrow => Box::new(Batches::open(&blob, part)?),
            Container::Parquet => Box::new(Table::open(&blob, part)?),
        })
    }
}
