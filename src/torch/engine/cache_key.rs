//! Tells the content of one media item from another's.

use crate::native::bytes;
use loongforge_core::message::{Grid, Tower};
use loongforge_core::text::hex;
use sha2::{Digest, Sha256};
use std::fmt;
use tch::{Device, Tensor};

/// SHA-256 of an item's pixels and grid. Parameters are no part of it: a cache has features of the same ones only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(self.0))
    }
}

impl Key {
    /// Makes the key of an item of a tower, `pixels` `[patches, channels]`.
    pub fn of(tower: Tower, grid: Grid, pixels: &Tensor) -> Self {
        let pixels = pixels.to_device(Device::Cpu).contiguous();
        let mut hash = Sha256::new();
        hash.update(tower.name());
        for side in [grid.t, grid.h, grid.w] {
            hash.update(side.to_le_bytes());
        }
        hash.update(bytes(&pixels));
        Self(hash.finalize().into())
    }

    /// Returns the key that `hex` writes, in 64 hexadecimal digits; `None` where it is another text.
    pub fn parse(hex: &str) -> Option<Self> {
        let byte = |at: usize| u8::from_str_radix(hex.get(2 * at..2 * at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..32).map(byte).collect();
        bytes.filter(|_| hex.len() == 64)?.try_into().ok().map(Self)
    }
}
