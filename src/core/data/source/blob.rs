//! Bytes that are read at any place: a file, an object of a store, or a compressed file whole in memory.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes that a compressed shard may have when it is unpacked: it is held in memory.
pub const MAX_UNPACKED_BYTES: u64 = 2 << 30;
/// The bytes that are read at a time where the length is not known beforehand.
const CHUNK: usize = 64 << 10;

pub enum Blob {
    File {
        file: File,
        len: u64,
    },
    Memory(Arc<[u8]>),
    #[cfg(feature = "cloud")]
    Remote(super::remote::Object),
    /// A disk that fails: bytes from `from` on cannot be read, so many times, for the reason `errno`.
    #[cfg(test)]
    Faulty {
        bytes: Arc<[u8]>,
        from: u64,
        errno: rustix::io::Errno,
        left: std::sync::atomic::AtomicU32,
    },
}

impl Blob {
    /// Opens a regular file.
    ///
    /// # Errors
    /// [`open`](crate::files::open) lists them.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = crate::files::open(path)?;
        let len = file.metadata()?.len();
        Ok(Self::File { file, len })
    }

    /// Returns the number of bytes, of an unpacked file those after unpacking.
    pub fn len(&self) -> u64 {
        match self {
            Self::File { len, .. } => *len,
            Self::Memory(bytes) => bytes.len() as u64,
            #[cfg(feature = "cloud")]
            Self::Remote(object) => object.len(),
            #[cfg(test)]
            Self::Faulty { bytes, .. } => bytes.len() as u64,
        }
    }

    /// Reads exactly `len` bytes.
    ///
    /// # Errors
    /// The end comes before, which is seen before memory is taken; it cannot be read.
    pub fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len()) {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "ends too early: truncated"));
        }
        match self {
            Self::File { file, .. } => {
                let mut bytes = vec![0; len];
                file.read_exact_at(&mut bytes, offset)?;
                Ok(bytes)
            }
            Self::Memory(bytes) => Ok(bytes[offset as usize..offset as usize + len].to_vec()),
            #[cfg(feature = "cloud")]
            Self::Remote(object) => object.read_at(offset, len),
            #[cfg(test)]
            Self::Faulty { bytes, from, errno, left } => {
                use std::sync::atomic::Ordering::Relaxed;
                let fails = offset + len as u64 > *from
                    && left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
                match fails {
                    true => Err(io::Error::from_raw_os_error(errno.raw_os_error())),
                    false => Ok(bytes[offset as usize..offset as usize + len].to_vec()),
                }
            }
        }
    }

    /// Works like [`Blob::read_at`] for bytes of which the next ones will be asked soon.
    ///
    /// # Errors
    /// Fails as [`Blob::read_at`] does.
    pub fn scan_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        match self {
            #[cfg(feature = "cloud")]
            Self::Remote(object) if offset.checked_add(len as u64).is_some_and(|end| end <= object.len()) => {
                object.scan_at(offset, len)
            }
            _ => self.read_at(offset, len),
        }
    }

    /// Returns a reader of the bytes from `offset` on, in chunks.
    pub fn reader(self: &Arc<Self>, offset: u64) -> Reader {
        Reader { blob: self.clone(), at: offset, chunk: Vec::new(), begin: offset }
    }

    /// Returns the contents of a `.gz` or `.zst` file, in memory.
    ///
    /// # Errors
    /// It cannot be read or decompressed, or is larger than what may be held in memory.
    pub fn unpacked(self, name: &str) -> io::Result<Self> {
        let blob = Arc::new(self);
        let mut bytes = Vec::new();
        let limited = |reader: &mut dyn Read, bytes: &mut Vec<u8>| -> io::Result<()> {
            reader.take(MAX_UNPACKED_BYTES + 1).read_to_end(bytes)?;
            match bytes.len() as u64 > MAX_UNPACKED_BYTES {
                true => Err(io::Error::other(format!("decompresses to more than {} GiB", MAX_UNPACKED_BYTES >> 30))),
                false => Ok(()),
            }
        };
        match is_packed(name) {
            Some("zst") => limited(&mut zstd::stream::read::Decoder::new(blob.reader(0))?, &mut bytes)?,
            _ => limited(&mut flate2::read::MultiGzDecoder::new(blob.reader(0)), &mut bytes)?,
        }
        Ok(Self::Memory(bytes.into()))
    }
}

/// Returns the compression that a name tells.
pub fn is_packed(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    match () {
        () if name.ends_with(".gz") || name.ends_with(".tgz") => Some("gz"),
        () if name.ends_with(".zst") => Some("zst"),
        () => None,
    }
}

/// A place in a blob.
pub struct Reader {
    blob: Arc<Blob>,
    at: u64,
    chunk: Vec<u8>,
    begin: u64,
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let within = self.at.wrapping_sub(self.begin) as usize;
        if self.at < self.begin || within >= self.chunk.len() {
            let len = (self.blob.len().saturating_sub(self.at)).min(CHUNK as u64) as usize;
            if len == 0 {
                return Ok(0);
            }
            (self.chunk, self.begin) = (self.blob.scan_at(self.at, len)?, self.at);
        }
        let rest = &self.chunk[(self.at - self.begin) as usize..];
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.blob.len().checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "cannot seek before the beginning"))?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn packed_files_are_read_whole_and_ends_are_seen_before_memory_is_taken() {
        let text = b"0123456789".repeat(20_000);
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&text).unwrap();
        for (name, packed) in [("a.tar.gz", gz.finish().unwrap()), ("a.ZST", zstd::encode_all(&text[..], 1).unwrap())] {
            let blob = Blob::Memory(packed.clone().into()).unpacked(name).unwrap();
            assert_eq!((blob.len(), blob.read_at(199_995, 5).unwrap()), (200_000, b"56789".to_vec()));
            assert!(blob.read_at(199_995, 6).is_err() && blob.read_at(u64::MAX, 2).is_err());
            assert!(blob.read_at(0, usize::MAX).is_err());
            let mut reader = Arc::new(blob).reader(65_530);
            let mut bytes = [0; 12];
            reader.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"012345678901");
            assert_eq!(reader.seek(SeekFrom::Current(-12)).unwrap(), 65_530);
            let torn = packed[..packed.len() / 2].to_vec();
            assert!(Blob::Memory(torn.into()).unpacked(name).is_err());
        }
    }
}
