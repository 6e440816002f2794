//! Memory of decoded samples that a thread uses again: pages that the system gives for every clip anew cost as much as decoding.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// The most samples whose memory a thread keeps from one clip to the next: 16 MiB.
pub const MAX_KEPT: usize = 4 << 20;

thread_local! {
    static KEPT: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Samples of one channel, in [-1, 1]. Where they are dropped, the thread keeps their memory for the next clip.
#[derive(Debug, Default, PartialEq)]
pub struct Samples(Vec<f32>);

impl Samples {
    /// Returns an empty buffer of samples, in memory that the thread kept.
    pub fn empty() -> Self {
        let mut kept = KEPT.take();
        kept.clear();
        Self(kept)
    }
}

impl From<Vec<f32>> for Samples {
    fn from(samples: Vec<f32>) -> Self {
        Self(samples)
    }
}

impl Deref for Samples {
    type Target = Vec<f32>;

    fn deref(&self) -> &Vec<f32> {
        &self.0
    }
}

impl DerefMut for Samples {
    fn deref_mut(&mut self) -> &mut Vec<f32> {
        &mut self.0
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        let own = std::mem::take(&mut self.0);
        // A thread that ends has nothing to keep it in.
        let _ = KEPT.try_with(|kept| {
            if let Ok(mut kept) = kept.try_borrow_mut()
                && own.capacity() > kept.capacity()
                && own.capacity() <= MAX_KEPT
            {
                *kept = own;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_kept_up_to_a_limit_and_never_what_was_in_it() {
        let mut clip = Samples::empty();
        clip.extend([0.5; 1000]);
        let memory = clip.as_ptr();
        drop(clip);
        let mut next = Samples::empty();
        assert!(next.is_empty());
        next.extend([0.25; 900]);
        assert_eq!(next.as_ptr(), memory);
        // Two at a time do not share it.
        let mut other = Samples::empty();
        other.push(1.0);
        assert_ne!(other.as_ptr(), memory);
        assert_eq!(next[..], [0.25; 900]);
        drop((next, other));
        drop(Samples::from(Vec::with_capacity(MAX_KEPT + 1)));
        assert!(Samples::empty().capacity() <= MAX_KEPT);
    }
}
