//! Adapters in and out in PEFT's format: `adapter_config.json` beside `adapter_model.safetensors`; and added to their base.

mod config;
mod error;
mod file;
mod merge;
mod names;
#[cfg(test)]
mod tests;

pub use config::{AdapterBase, AdapterFile, adapter_base, read_adapter_config};
pub use error::AdapterError;
pub use file::{ENCODER_PREFIX, adapted, has_adapter, load_adapter, save_adapter};
pub(super) use file::{TENSORS, names_in_file, save_adapter_among};
pub(super) use merge::merged;
pub use merge::{Adapters, merge_adapter};
pub(super) use names::PREFIX;
