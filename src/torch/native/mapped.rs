//! Tensors whose memory is a file: the system writes to the disk what is not in use, and reads it where it is used again.

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use rustix::mm::{MapFlags, ProtFlags};
use tch::{Device, Kind, Tensor};

use super::borrowed::lend;
use super::error::NativeError;

/// Returns zeros `[len]` of `kind` in a file of their own in `folder`, which is made where it does not exist. The file has no name, so
/// that nothing is left behind whichever way the process ends; its space is taken at once, so that a full disk is an error here.
///
/// # Errors
/// The folder cannot be written to, or the disk is full.
pub fn zeros_on_disk(folder: &Path, len: i64, kind: Kind) -> Result<Tensor, NativeError> {
    if len == 0 {
        return Ok(Tensor::zeros([0], (kind, Device::Cpu)));
    }
    let bytes = len as usize * kind.elt_size_in_bytes();
    let map =
        Map::new(folder, bytes).map_err(|source| NativeError::Disk { folder: folder.to_owned(), bytes, source })?;
    let data = map.start.as_ptr().cast_const();
    // SAFETY: a mapping of so many bytes, at the start of a page, which goes when its owner is dropped.
    Ok(unsafe { lend(data, Box::new(map), &[len], kind) })
}

/// A mapping of a whole file.
struct Map {
    start: NonNull<c_void>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; only the tensor on it reads and writes.
unsafe impl Send for Map {}

impl Map {
    fn new(folder: &Path, len: usize) -> io::Result<Map> {
        std::fs::create_dir_all(folder)?;
        let file = tempfile::tempfile_in(folder)?;
        match retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, len as u64)) {
            // A disk that cannot reserve.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(&file, len)?,
            done => done?,
        }
        // SAFETY: the kernel chooses the place, so no other memory of this process is touched; nobody else can open the file, so
        // that it is not cut short.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file.as_fd(), 0)
        }?;
        Ok(Map { start: NonNull::new(start).expect("mmap never returns null"), len })
    }
}

/// Takes the space of a file by writing it: a disk that is full then says so here, and does not end the process later, when a page
/// has no place.
fn write_zeros(mut file: &File, len: usize) -> io::Result<()> {
    const CHUNK: usize = 1 << 20;
    let zeros = vec![0u8; CHUNK.min(len)];
    let mut left = len;
    while left > 0 {
        let part = left.min(CHUNK);
        file.write_all(&zeros[..part])?;
        left -= part;
    }
    file.sync_data()
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; no tensor is left on it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::{write_zeros, zeros_on_disk};
    use crate::native::MemoryWatch;

    #[test]
    fn a_file_without_a_name_holds_the_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("made");
        let watch = MemoryWatch::start();
        let mut tensor = zeros_on_disk(&inner, 5000, Kind::Float).unwrap();
        assert_eq!(watch.current(), 0, "no memory of tensors");
        let view = tensor.narrow(0, 4000, 10);
        let _ = tensor.g_add_scalar_(2.5);
        drop(tensor);
        assert_eq!(Vec::<f32>::try_from(&view).unwrap(), [2.5; 10]);
        assert_eq!(zeros_on_disk(&inner, 7, Kind::Uint8).unwrap().kind(), Kind::Uint8);
        assert_eq!(zeros_on_disk(&inner, 0, Kind::Float).unwrap().numel(), 0);
        assert_eq!(std::fs::read_dir(&inner).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn a_file_that_cannot_be_reserved_is_written() {
        for len in [0, 5, 3 << 20, (1 << 20) + 1] {
            let file = tempfile::tempfile().unwrap();
            write_zeros(&file, len).unwrap();
            assert_eq!(file.metadata().unwrap().len(), len as u64);
        }
    }

    #[test]
    fn what_cannot_be_made_names_key_and_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let no_folder = zeros_on_disk(&file, 8, Kind::Float).unwrap_err().to_string();
        // 2^50 bytes fit on no disk of a test.
        let too_large = zeros_on_disk(folder.path(), 1 << 50, Kind::Uint8).unwrap_err().to_string();
        for error in [no_folder, too_large] {
            assert!(
                error.contains("train.optimizer.offload.path") && error.contains(folder.path().to_str().unwrap()),
                "{error}"
            );
        }
    }
}
