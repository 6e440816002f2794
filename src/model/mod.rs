//! Models as folders and configs: where they lie, what their `config.json` says, and what they cost.

mod alike;
mod beside;
pub(crate) mod composite;
mod decoder_keys;
pub(crate) mod diffusers;
pub(crate) mod error;
pub(crate) mod flow;
pub(crate) mod folder;
pub mod hub;
mod hub_check;
pub mod hub_data;
mod hub_files;
mod hub_lock;
pub(crate) mod locate;
mod overrides;
mod preference;
pub mod push;
mod same_model;
mod shape;
mod single_file;
pub mod size;
pub(crate) mod sources;
mod stored;
mod tied;
mod token_training;

pub use error::FolderError;
pub use folder::ModelFolder;
