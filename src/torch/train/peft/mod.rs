//! Adapters in and out in PEFT's format: `adapter_config.json` beside `adapter_model.safetensors`; in single files of other
//! programs; and added to their base.

mod averages;
mod config;
mod error;
mod file;
mod files;
mod folder;
mod forms;
mod forms_write;
mod keys;
mod merge;
mod names;
mod pair;
mod pattern;
#[cfg(test)]
mod tests;
mod whole;
mod written;

pub use config::{AdapterBase, AdapterConfig, adapter_base, read_adapter_config};
pub use error::AdapterError;
pub use file::{AdapterFile, adapted, load_adapter, save_adapter};
pub(super) use file::{names_in_file, save_adapter_among};
pub use folder::{AdapterFolder, Contents, Found};
pub use forms::{DIFFUSERS_LORA_FILE, LoraForm};
pub use forms_write::write_lora;
pub use merge::{Adapters, merge_adapter};
pub(super) use names::PREFIX;
pub use pair::has_adapter;
pub(super) use pair::{merged, merged_among};
pub use whole::{is_within, modules_to_save};
pub use written::{AdapterSettings, adapter_config, dora_without_place};
