//! A stretch of memory that a child process writes to and its parent reads, in turns that they settle between themselves.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use super::map::{Memory, Reader, Writer, pages};

/// The parent's end.
pub struct LentMemory {
    memory: Memory,
    reader: Reader,
    len: usize,
}

impl LentMemory {
    /// Of `len` bytes, of which only what is written takes memory. The file descriptor is for the child.
    pub fn create(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        let len = pages(len);
        let memory = Memory::create(name, len)?;
        let child = memory.fd().try_clone_to_owned()?;
        Ok((Self { reader: memory.reader(0..len)?, memory, len }, child))
    }

    /// What the child wrote at the beginning, copied: it may write on. `None` where the memory is not that long.
    pub fn copy(&self, len: usize) -> Option<Vec<u8>> {
        (len <= self.len).then(|| self.reader.bytes(0..len).to_vec())
    }

    /// Gives memory from `begin` on back to the system.
    pub fn forget(&self, begin: usize) {
        let range: Range<usize> = pages(begin)..self.len;
        if !range.is_empty() {
            self.memory.punch(range);
        }
    }
}

/// The child's end.
pub struct BorrowedMemory {
    writer: Writer,
    len: usize,
}

impl BorrowedMemory {
    /// # Errors
    /// It is not what [`LentMemory::create`] made with this length.
    pub fn open(fd: OwnedFd, len: usize) -> io::Result<Self> {
        let len = pages(len);
        Ok(Self { writer: Memory::adopt(fd, len)?.writer(0..len)?, len })
    }

    /// Puts bytes at the beginning.
    ///
    /// # Errors
    /// They do not fit.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > self.len {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.writer.bytes(0..bytes.len()).copy_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_forgotten() {
        let (lent, child) = LentMemory::create("test", 10_000).unwrap();
        let mut borrowed = BorrowedMemory::open(child.try_clone().unwrap(), 10_000).unwrap();
        borrowed.write(&[7; 9000]).unwrap();
        assert_eq!(lent.copy(9000).unwrap(), [7; 9000]);
        lent.forget(4096);
        let read = lent.copy(9000).unwrap();
        assert!(read[..4096] == [7; 4096] && read[4096..].iter().all(|&byte| byte == 0));
        assert!(lent.copy(20_000).is_none() && borrowed.write(&[0; 20_000]).is_err());
        assert!(BorrowedMemory::open(child, 100_000).is_err());
    }
}
