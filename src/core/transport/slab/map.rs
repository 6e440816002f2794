//! Shared memory: sealed memfds and their mappings. All unsafe operations of the core are here.

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

pub(super) const PAGE: usize = 4096;

/// Rounds up to a multiple of the page size.
pub(super) fn pages(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE)
}

/// Types that any process may write to at any time.
///
/// # Safety
/// Made of atomic integers only, `repr(C)` or transparent, without padding.
pub(super) unsafe trait Shared {}
// SAFETY: an atomic integer.
unsafe impl Shared for AtomicU32 {}
// SAFETY: an atomic integer.
unsafe impl Shared for AtomicU64 {}
// SAFETY: an array has no padding of its own.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

/// An anonymous file whose size is fixed for good: an access inside a mapping of it cannot fault.
pub(super) struct Memory(OwnedFd);

const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

impl Memory {
    /// Creates sealed shared memory, whose size cannot change.
    ///
    /// # Errors
    /// Fails if the system has no memory for it, or no memfds.
    pub(super) fn create(name: &str, len: usize) -> io::Result<Self> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SEALS)?;
        Ok(Self(fd))
    }

    /// Opens a peer's file, if it has this length and can no longer be resized.
    pub(super) fn adopt(fd: OwnedFd, len: usize) -> io::Result<Self> {
        let found = rustix::fs::fstat(&fd)?.st_size as u64;
        if found != len as u64 {
            return Err(io::Error::other(format!("the shared memory has {found} bytes, expected {len}")));
        }
        if !rustix::fs::fcntl_get_seals(&fd)?.contains(SEALS) {
            return Err(io::Error::other("the shared memory can still be resized"));
        }
        Ok(Self(fd))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Maps one `T` at the start of the file.
    pub(super) fn record<T: Shared>(&self) -> io::Result<Record<T>> {
        let map = Map::new(self, 0..pages(size_of::<T>()), ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Record { map, of: PhantomData })
    }

    /// Maps `range` for reading.
    pub(super) fn reader(&self, range: Range<usize>) -> io::Result<Reader> {
        Ok(Reader(Map::new(self, range, ProtFlags::READ)?.undumped()))
    }

    /// Maps `range` for writing.
    pub(super) fn writer(&self, range: Range<usize>) -> io::Result<Writer> {
        Ok(Writer(Map::new(self, range, ProtFlags::READ | ProtFlags::WRITE)?.undumped()))
    }

    /// Returns pages to the system; they then read as zeros.
    pub(super) fn punch(&self, range: Range<usize>) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Where it fails, memory stays in use longer; nothing else depends on it.
        let _ = rustix::fs::fallocate(&self.0, flags, range.start as u64, range.len() as u64);
    }
}

struct Map {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; access is governed by the types below.
unsafe impl Send for Map {}
// SAFETY: as above; `&Map` alone gives no access.
unsafe impl Sync for Map {}

impl Map {
    fn new(memory: &Memory, range: Range<usize>, access: ProtFlags) -> io::Result<Self> {
        // SAFETY: the kernel chooses the place, so no other memory of this process is touched.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                range.len(),
                access,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &memory.0,
                range.start as u64,
            )
        }?;
        let start = NonNull::new(start.cast::<u8>()).expect("mmap never returns null");
        Ok(Self { start, len: range.len() })
    }

    /// Returns the first byte of `range`.
    ///
    /// # Panics
    /// `range` is not inside.
    fn at(&self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of a mapping of {} bytes", self.len);
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.start.as_ptr().add(range.start) }
    }

    /// Keeps it out of core dumps.
    fn undumped(self) -> Self {
        self.advise(0..self.len, Advice::LinuxDontDump);
        self
    }

    fn advise(&self, range: Range<usize>, advice: Advice) {
        let start = self.at(&range);
        // SAFETY: populating and leaving out of dumps change no contents; the range is inside the mapping. Older
        // kernels refuse, harmlessly.
        let _ = unsafe { rustix::mm::madvise(start.cast::<c_void>(), range.len(), advice) };
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; references into it borrow `self`.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast::<c_void>(), self.len) };
    }
}

/// A mapped `T`.
pub(super) struct Record<T> {
    map: Map,
    of: PhantomData<T>,
}

impl<T: Shared> std::ops::Deref for Record<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mapping is page-aligned and at least this long; `T` is atomics, valid for any bytes and for
        // writes by others at any time; the memory lives as long as `self`.
        unsafe { self.map.start.cast::<T>().as_ref() }
    }
}

/// The consumer's view of an arena.
pub(super) struct Reader(Map);

impl Reader {
    /// Returns the bytes that a peer wrote. The producer writes here again only after the slot was returned.
    ///
    /// # Panics
    /// `range` is not inside.
    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: inside the mapping, which lives as long as `self`; any byte is a valid u8; nobody in this process
        // writes through a `Reader`, and by the protocol the producer does not while the slot is lent.
        unsafe { std::slice::from_raw_parts(self.0.at(&range), range.len()) }
    }

    /// Takes the page faults of `range` in one go.
    pub(super) fn populate(&self, range: Range<usize>) {
        self.0.advise(range, Advice::LinuxPopulateRead);
    }
}

/// The producer's view of an arena. There is one, in the edge.
pub(super) struct Writer(Map);

impl Writer {
    /// Returns the bytes to write a tensor to.
    ///
    /// # Panics
    /// `range` is not inside.
    pub(super) fn bytes(&mut self, range: Range<usize>) -> &mut [u8] {
        // SAFETY: inside the mapping; `&mut self` makes it the only reference of this process into this mapping, and
        // consumers read only slots that were published and not returned.
        unsafe { std::slice::from_raw_parts_mut(self.0.at(&range), range.len()) }
    }

    /// Takes the page faults of `range` in one go.
    pub(super) fn populate(&self, range: Range<usize>) {
        self.0.advise(range, Advice::LinuxPopulateWrite);
    }
}
