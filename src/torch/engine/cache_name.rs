//! The name of the folder that holds what a frozen tower makes.

use crate::model::ModelTower;
use crate::native::bytes;
use loongforge_core::config::Products;
use loongforge_core::engine::EngineError;
use loongforge_core::text::hex;
use sha2::{Digest, Sha256};
use std::fmt;
use tch::{Device, Kind, Tensor};

/// `TOWER-HASH-HOW`: the hash is of the tower's parameters, of what it computes, and of the precision. `HOW` names what features
/// depend on in their last bits alone: the kind of device, the products (ADR 0006), and the number of threads, over which
/// libtorch splits some sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CacheName {
    tower: String,
    how: String,
}

impl CacheName {
    /// Returns the folder of a tower whose parameters have these names and are of `kind`; `value` gives each of them, in any shape and on
    /// any device. The name is for what this thread computes on `device`.
    ///
    /// # Errors
    /// Fails as `value` does.
    pub fn new(
        it: &ModelTower,
        kind: Kind,
        (device, products): (Device, Products),
        mut names: Vec<&str>,
        mut value: impl FnMut(&str) -> Result<Tensor, EngineError>,
    ) -> Result<Self, EngineError> {
        names.sort_unstable();
        let mut hash = Sha256::new();
        hash.update(format!("{:?}", (env!("CARGO_PKG_VERSION"), &it.family, kind)));
        for name in names {
            hash.update(name);
            hash.update(bytes(&value(name)?.detach().to_device(Device::Cpu).contiguous()));
        }
        Ok(Self {
            tower: format!("{}-{}", it.tower, &hex(hash.finalize())[..32]),
            how: how_made(device.is_cuda(), products, tch::get_num_threads() as usize),
        })
    }

    /// Returns what the names of all folders with features of this tower begin with: `TOWER-HASH`.
    pub fn stem(&self) -> &str {
        &self.tower
    }

    /// Returns whether this folder holds features of the same tower, be they computed otherwise.
    pub fn is_of_same_tower(&self, folder: &str) -> bool {
        folder.strip_prefix(&self.tower).is_some_and(|how| how.starts_with('-'))
    }
}

/// Returns what the names of folders end with whose features are computed so, with this number of threads.
pub fn how_made(on_gpu: bool, products: Products, num_threads: usize) -> String {
    let device = if on_gpu { "cuda" } else { "cpu" };
    format!("{device}-{}-{num_threads}", products.name())
}

impl fmt::Display for CacheName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.tower, self.how)
    }
}
