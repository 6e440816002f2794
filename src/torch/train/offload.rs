//! Optimizer state off the device (`train.optimizer.offload`): in the host's memory, or in files that the system pages in and out.
//!
//! The first parameters of a pool have all of their state there, so many that they are the wished part of what this rank changes;
//! the others keep theirs on the device. The update of what is away is computed on the host, where the state is, as ZeRO-Offload
//! does it (Ren et al. 2021, arXiv:2101.06840): only gradients and new weights cross the bus (`offloaded_step.rs`).

use std::path::PathBuf;

/// The place of the optimizer's state off the device.
#[derive(Clone, Debug, PartialEq)]
pub struct Offload {
    pub to: Tier,
    /// The part of this rank's elements that have their state there, above 0 and up to 1; rounded up to whole parameters.
    pub fraction: f64,
}

/// A place that is not the device's memory.
#[derive(Clone, Debug, PartialEq)]
pub enum Tier {
    /// The host's memory.
    Host,
    /// Files in this folder.
    Disk(PathBuf),
}
