//! Coded frames one after the other, from one that needs no other, of which some are wanted.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::track::Codec;

/// Says how bytes are coded frames, and which of the frames are wanted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stretch {
    pub(super) codec: Codec,
    /// Bytes of each coded frame, in decoding order.
    pub(super) lens: Vec<u32>,
    /// The numbers of the frames that are wanted, in the order in which they are shown; ascending.
    pub(super) taken: Vec<usize>,
}

impl Stretch {
    /// Returns the number of frames that are wanted.
    pub fn num_taken(&self) -> usize {
        self.taken.len()
    }

    /// Returns the place of each coded frame in the bytes.
    ///
    /// # Errors
    /// They have another number of bytes together.
    pub(super) fn samples(&self, num_bytes: usize) -> Result<Vec<Range<usize>>, String> {
        let mut end = 0usize;
        let mut samples = Vec::with_capacity(self.lens.len());
        for &len in &self.lens {
            let next = end.checked_add(len as usize).filter(|&next| next <= num_bytes);
            let next = next.ok_or("coded frames need more bytes than there are")?;
            samples.push(end..next);
            end = next;
        }
        if end == num_bytes { Ok(samples) } else { Err("coded frames need fewer bytes than there are".to_owned()) }
    }
}
