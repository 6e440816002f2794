//! Describes what an engine sleeps on: one futex word that this process and its peers ring.

use super::map::{Memory, PAGE, Record};
use rustix::thread::futex;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

/// `[0]` counts rings, `[1]` is 1 while the owner sleeps.
type Words = [AtomicU32; 2];

/// A handle on a bell. Clones ring the same one; only its owner waits.
#[derive(Clone)]
pub(in super::super) struct Bell(Arc<BellMemory>);

enum BellMemory {
    Shared { memory: Memory, words: Record<Words> },
    Private(Words),
}

impl Bell {
    /// In shared memory; where the system gives none, in private memory: then no other process can ring it.
    pub(in super::super) fn new() -> Self {
        let shared = Memory::create("loongforge-bell", PAGE).and_then(Self::map);
        shared.unwrap_or_else(|_| Self(Arc::new(BellMemory::Private(Words::default()))))
    }

    /// The bell of another process.
    pub(super) fn adopt(fd: OwnedFd) -> io::Result<Self> {
        Self::map(Memory::adopt(fd, PAGE)?)
    }

    fn map(memory: Memory) -> io::Result<Self> {
        let words = memory.record()?;
        Ok(Self(Arc::new(BellMemory::Shared { memory, words })))
    }

    /// Returns what to pass to a peer; `None` where it is private.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &*self.0 {
            BellMemory::Shared { memory, .. } => Some(memory.fd()),
            BellMemory::Private(_) => None,
        }
    }

    fn words(&self) -> &Words {
        match &*self.0 {
            BellMemory::Shared { words, .. } => words,
            BellMemory::Private(words) => words,
        }
    }

    /// Number of rings so far. Look at it, then for work, then [`Bell::wait`]: a ring in between is not missed.
    pub(in super::super) fn seen(&self) -> u32 {
        self.words()[0].load(SeqCst)
    }

    /// Wakes the owner; a system call only where it sleeps.
    pub(in super::super) fn ring(&self) {
        let [rings, asleep] = self.words();
        rings.fetch_add(1, SeqCst);
        if asleep.load(SeqCst) != 0 {
            // Waking cannot fail on a mapped word.
            let _ = futex::wake(rings, futex::Flags::empty(), 1);
        }
    }

    /// Sleeps until it has rung since `seen`, or `timeout` is over, or for no reason at all.
    pub(in super::super) fn wait(&self, seen: u32, timeout: Duration) {
        let [rings, asleep] = self.words();
        let timeout = timeout.try_into().ok();
        asleep.store(1, SeqCst);
        // The kernel compares and sleeps as one. Whatever ended the sleep, the caller looks again.
        let _ = futex::wait(rings, futex::Flags::empty(), seen, timeout.as_ref());
        asleep.store(0, SeqCst);
    }
}
