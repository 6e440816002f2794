//! One WebDataset shard: a plain tar of regular files and, beside it, where its samples begin (`.tar.idx`, which
//! Megatron-Energon needs). Both get their names when they are complete.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use tar::{EntryType, Header};

use crate::data::error::DataError;
use crate::files::replace_shared;

const BLOCK: usize = 512;
/// Name in the header of plain tar.
const MAX_NAME: usize = 100;
/// The extension of a shard while it is written.
pub const PART: &str = "part";

pub use crate::data::packed::Member;

/// A shard that is being written.
pub struct ShardWriter {
    path: PathBuf,
    part: PathBuf,
    file: BufWriter<File>,
    /// The place where each sample begins.
    starts: Vec<u64>,
    offset: u64,
}

impl ShardWriter {
    /// Begins a shard under a name of its own; it gets `path` when it is finished.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path) -> Result<Self, DataError> {
        let part = path.with_extension(format!("tar.{PART}"));
        let file = File::create(&part).map_err(|error| DataError::write(&part, error))?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(Self { path: path.to_path_buf(), part, file, starts: Vec::new(), offset: 0 })
    }

    /// Returns the number of samples written so far.
    pub fn num_samples(&self) -> u64 {
        self.starts.len() as u64
    }

    /// Returns the number of bytes that the shard has with these members added.
    pub fn num_bytes_with(&self, members: &[Member]) -> u64 {
        self.offset + members.iter().map(|(_, bytes)| (BLOCK + bytes.len().next_multiple_of(BLOCK)) as u64).sum::<u64>()
    }

    /// # Panics
    /// A name is longer than a header holds: keys and member names are ours.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&mut self, key: &str, members: &[Member]) -> Result<(), DataError> {
        self.starts.push(self.offset);
        for (name, bytes) in members {
            self.member(&format!("{key}.{name}"), bytes).map_err(|error| DataError::write(&self.part, error))?;
            self.offset += (BLOCK + bytes.len().next_multiple_of(BLOCK)) as u64;
        }
        Ok(())
    }

    fn member(&mut self, name: &str, bytes: &[u8]) -> std::io::Result<()> {
        assert!(name.len() <= MAX_NAME && name.is_ascii(), "{name:?} is not a valid member name");
        let mut header = Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(EntryType::Regular);
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        // Nothing that changes from one time to the next.
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        self.file.write_all(header.as_bytes())?;
        self.file.write_all(bytes)?;
        self.file.write_all(&[0; BLOCK][..bytes.len().next_multiple_of(BLOCK) - bytes.len()])
    }

    /// Ends the shard and gives it its name; bytes of the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> Result<u64, DataError> {
        let write = |error| DataError::write(&self.part, error);
        self.file.write_all(&[0; 2 * BLOCK]).map_err(write)?;
        let file = self.file.into_inner().map_err(|error| write(error.into_error()))?;
        file.sync_all().map_err(write)?;
        self.starts.push(self.offset);
        let index: Vec<u8> = self.starts.iter().flat_map(|start| start.to_le_bytes()).collect();
        write_whole(&self.path.with_extension("tar.idx"), &index)?;
        fs::rename(&self.part, &self.path).map_err(|error| DataError::write(&self.path, error))?;
        Ok(self.offset + 2 * BLOCK as u64)
    }
}

/// Writes a file that appears when it is complete. Two processes of one job may write the same one at once.
///
/// # Errors
/// It cannot be written.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    replace_shared(path, bytes, 0o666).map_err(|error| DataError::write(path, error))
}

/// Returns `{index}_{basename}` with what a tar, a key and a URL may hold: the end of the name is kept, for its extension.
pub fn member_name(index: usize, frame: Option<usize>, name: &str) -> String {
    const KEPT: usize = 48;
    let base = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let safe =
        |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c.to_ascii_lowercase() } else { '_' };
    let safe: String = base.chars().map(safe).collect();
    let safe = &safe[safe.len().saturating_sub(KEPT)..];
    match frame {
        Some(frame) => format!("{index}_{frame:05}_{safe}"),
        None => format!("{index}_{safe}"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_shard_is_plain_tar_with_an_index() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar");
        let mut shard = ShardWriter::create(&path).unwrap();
        let members = |name: &str, len: usize| vec![(name.to_owned(), Arc::from(vec![7u8; len]))];
        assert_eq!(shard.num_bytes_with(&members("json", 513)), 1536);
        shard.append("000", &members("json", 513)).unwrap();
        shard.append("001", &[members("json", 0), members("0_a.png", 512)].concat()).unwrap();
        assert!(!path.exists());
        assert_eq!(shard.num_samples(), 2);
        let len = shard.finish().unwrap();
        assert_eq!(len, fs::metadata(&path).unwrap().len());
        let index = fs::read(folder.path().join("a.tar.idx")).unwrap();
        let starts: Vec<u64> = index.as_chunks::<8>().0.iter().map(|start| u64::from_le_bytes(*start)).collect();
        assert_eq!(starts, [0, 1536, 1536 + 512 + 1024]);

        let mut archive = tar::Archive::new(File::open(&path).unwrap());
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (name, bytes.len())
        });
        let expected = [("000.json", 513), ("001.json", 0), ("001.0_a.png", 512)];
        assert_eq!(entries.collect::<Vec<_>>(), expected.map(|(name, len)| (name.to_owned(), len)));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing but the shard and its index");
    }

    #[test]
    fn names_of_members_are_safe() {
        assert_eq!(member_name(0, None, "a/b/Ä c.JPG"), "0___c.jpg");
        assert_eq!(member_name(3, Some(12), "..\\..\\x.png"), "3_00012_x.png");
        assert_eq!(member_name(1, None, "../../etc/"), "1_");
        let long = member_name(12, None, &format!("{}.tar.webp", "é".repeat(300)));
        assert!(long.len() < 60 && long.ends_with(".tar.webp"), "{long}");
    }
}
