//! Memory shared with a child process: one part that the parent writes and one that the child writes, in turns that they agree on
//! themselves.

use std::io;
use std::os::fd::OwnedFd;

use super::map::{Memory, Reader, Writer, pages};

/// Sizes of the two parts in bytes; memory is used only for what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentSizes {
    pub to_child: usize,
    pub to_parent: usize,
}

impl LentSizes {
    fn whole(self) -> Self {
        Self { to_child: pages(self.to_child), to_parent: pages(self.to_parent) }
    }

    fn sum(self) -> usize {
        self.to_child + self.to_parent
    }
}

/// The parent's end.
pub struct LentMemory {
    memory: Memory,
    sizes: LentSizes,
    to_child: Writer,
    to_parent: Reader,
}

impl LentMemory {
    /// Creates the memory; the file descriptor is for the child.
    ///
    /// # Errors
    /// The system has no memory for it, or no more file descriptors.
    pub fn create(name: &str, sizes: LentSizes) -> io::Result<(Self, OwnedFd)> {
        let sizes = sizes.whole();
        let memory = Memory::create(name, sizes.sum())?;
        let child = memory.fd().try_clone_to_owned()?;
        let to_child = memory.writer(0..sizes.to_child)?;
        let to_parent = memory.reader(sizes.to_child..sizes.sum())?;
        Ok((Self { memory, sizes, to_child, to_parent }, child))
    }

    /// Writes for the child, from the beginning of its part. `None`: it does not fit.
    pub fn give(&mut self, bytes: &[u8]) -> Option<()> {
        (bytes.len() <= self.sizes.to_child).then(|| self.to_child.bytes(0..bytes.len()).copy_from_slice(bytes))
    }

    /// Returns a copy of what the child wrote from the beginning of the other part. `None`: the part is shorter.
    pub fn take(&self, len: usize) -> Option<Vec<u8>> {
        (len <= self.sizes.to_parent).then(|| self.to_parent.bytes(0..len).to_vec())
    }

    /// Appends the numbers that the child wrote from the beginning of the other part. `None`: the part is shorter.
    pub fn take_floats(&self, num: usize, to: &mut Vec<f32>) -> Option<()> {
        let len = num.checked_mul(size_of::<f32>()).filter(|&len| len <= self.sizes.to_parent)?;
        let (numbers, _) = self.to_parent.bytes(0..len).as_chunks();
        to.extend(numbers.iter().map(|&bytes| f32::from_le_bytes(bytes)));
        Some(())
    }

    /// Returns the memory behind the first bytes of either part to the system.
    pub fn keep(&self, len: usize) {
        let LentSizes { to_child, to_parent } = self.sizes;
        for (begin, size) in [(0, to_child), (to_child, to_parent)] {
            let kept = pages(len);
            if kept < size {
                self.memory.punch(begin + kept..begin + size);
            }
        }
    }
}

/// The child's end.
pub struct BorrowedMemory {
    to_child: Reader,
    to_parent: Writer,
    sizes: LentSizes,
}

impl BorrowedMemory {
    /// # Errors
    /// Fails if it was not created by [`LentMemory::create`] with these sizes.
    pub fn open(fd: OwnedFd, sizes: LentSizes) -> io::Result<Self> {
        let sizes = sizes.whole();
        let memory = Memory::adopt(fd, sizes.sum())?;
        let to_child = memory.reader(0..sizes.to_child)?;
        Ok(Self { to_child, to_parent: memory.writer(sizes.to_child..sizes.sum())?, sizes })
    }

    /// Returns this many bytes written by the parent, and the whole part to write to.
    ///
    /// # Errors
    /// The parent cannot have written so much.
    pub fn parts(&mut self, len: usize) -> io::Result<(&[u8], &mut [u8])> {
        if len > self.sizes.to_child {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok((self.to_child.bytes(0..len), self.to_parent.bytes(0..self.sizes.to_parent)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_writes_and_the_other_reads() {
        let sizes = LentSizes { to_child: 10_000, to_parent: 20_000 };
        let (mut lent, child) = LentMemory::create("test", sizes).unwrap();
        let mut borrowed = BorrowedMemory::open(child.try_clone().unwrap(), sizes).unwrap();
        lent.give(&[7; 9000]).unwrap();
        let (given, room) = borrowed.parts(9000).unwrap();
        assert_eq!(given, [7; 9000]);
        room[..12_000].fill(9);
        assert_eq!(lent.take(12_000).unwrap(), [9; 12_000]);
        let mut numbers = vec![1.0];
        lent.take_floats(2, &mut numbers).unwrap();
        assert_eq!(numbers, [1.0, f32::from_le_bytes([9; 4]), f32::from_le_bytes([9; 4])]);
        assert!(
            lent.take_floats(usize::MAX / 2, &mut numbers).is_none() && lent.take_floats(6000, &mut numbers).is_none()
        );
        lent.keep(8192);
        let read = lent.take(12_000).unwrap();
        assert!(read[..8192] == [9; 8192] && read[8192..].iter().all(|&byte| byte == 0));
        assert!(borrowed.parts(9000).unwrap().0[8192..].iter().all(|&byte| byte == 0));
        assert!(lent.give(&[0; 20_000]).is_none() && lent.take(30_000).is_none() && borrowed.parts(20_000).is_err());
        assert!(BorrowedMemory::open(child, LentSizes { to_child: 1, to_parent: 1 }).is_err());
    }
}
