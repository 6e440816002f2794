//! The bell that an engine sleeps on: one futex word that this process and its peers ring.

use super::map::{Memory, PAGE, Record};
use rustix::thread::futex;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst, fence};
use std::time::Duration;

/// The word that the owner sleeps on: 1 from when it says that it will sleep until it is woken, or wakes by itself.
type Word = AtomicU32;

/// A handle on a bell. Clones ring the same one; only the owner waits.
#[derive(Clone)]
pub(in super::super) struct Bell(Arc<BellMemory>);

enum BellMemory {
    Shared { memory: Memory, word: Record<Word> },
    Private(Word),
}

impl Bell {
    /// Creates a bell in shared memory; if the system provides none, in private memory, so that no other process can ring it.
    pub(in super::super) fn new() -> Self {
        let shared = Memory::create("loongforge-bell", PAGE).and_then(Self::map);
        shared.unwrap_or_else(|_| Self(Arc::new(BellMemory::Private(Word::default()))))
    }

    /// Opens the bell of another process.
    pub(super) fn adopt(fd: OwnedFd) -> io::Result<Self> {
        Self::map(Memory::adopt(fd, PAGE)?)
    }

    fn map(memory: Memory) -> io::Result<Self> {
        let word = memory.record()?;
        Ok(Self(Arc::new(BellMemory::Shared { memory, word })))
    }

    /// Returns the descriptor to pass to a peer; `None` if the bell is private.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &*self.0 {
            BellMemory::Shared { memory, .. } => Some(memory.fd()),
            BellMemory::Private(_) => None,
        }
    }

    fn asleep(&self) -> &Word {
        match &*self.0 {
            BellMemory::Shared { word, .. } => word,
            BellMemory::Private(word) => word,
        }
    }

    /// Wakes the owner; makes a system call only if the owner sleeps, one per sleep.
    pub(in super::super) fn ring(&self) {
        let asleep = self.asleep();
        // What it is rung for was put there before. Either the owner sees that when it looks once more, or this sees that
        // the owner is about to sleep.
        fence(SeqCst);
        if asleep.load(SeqCst) != 0 && asleep.swap(0, SeqCst) != 0 {
            // Waking cannot fail on a mapped word.
            let _ = futex::wake(asleep, futex::Flags::empty(), 1);
        }
    }

    /// Announces that the owner will sleep. Check for work afterwards, then call [`Bell::sleep`] or [`Bell::stay`].
    pub(in super::super) fn will_sleep(&self) {
        self.asleep().store(1, SeqCst);
        fence(SeqCst);
    }

    /// Sleeps until the bell has rung since [`Bell::will_sleep`], `timeout` has passed, or spuriously.
    pub(in super::super) fn sleep(&self, timeout: Duration) {
        let timeout = timeout.try_into().ok();
        // The kernel compares and sleeps as one. Whatever ended the sleep, the caller looks again.
        let _ = futex::wait(self.asleep(), futex::Flags::empty(), 1, timeout.as_ref());
        self.stay();
    }

    /// Announces that the owner is awake.
    pub(in super::super) fn stay(&self) {
        self.asleep().store(0, SeqCst);
    }
}
