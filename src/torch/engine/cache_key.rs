//! Tells the content of one media item from another's.

use loongforge_core::message::{Grid, Tower};
use sha2::{Digest, Sha256};
use tch::{Device, Tensor};

/// SHA-256 of an item's pixels and grid. Parameters are no part of it: they never change while a cache lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

impl Key {
    /// Makes the key of an item of a tower, `pixels` `[patches, channels]`.
    pub fn of(tower: Tower, grid: Grid, pixels: &Tensor) -> Self {
        let pixels = pixels.to_device(Device::Cpu).contiguous();
        let mut bytes = vec![0; pixels.numel() * pixels.kind().elt_size_in_bytes()];
        pixels.copy_data_u8(&mut bytes, pixels.numel());
        let mut hash = Sha256::new();
        hash.update(tower.name());
        for side in [grid.t, grid.h, grid.w] {
            hash.update(side.to_le_bytes());
        }
        hash.update(&bytes);
        Self(hash.finalize().into())
    }
}
