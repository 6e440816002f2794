//! Models as folders and configs: where they lie, what their `config.json` says, and what they cost.

mod alike;
pub(crate) mod composite;
pub(crate) mod diffusers;
pub(crate) mod error;
pub(crate) mod folder;
pub mod hub;
pub mod hub_data;
pub(crate) mod locate;
mod preference;
pub mod push;
mod single_file;
pub mod size;
mod stored;
mod token_training;

pub use error::FolderError;
pub use folder::ModelFolder;
