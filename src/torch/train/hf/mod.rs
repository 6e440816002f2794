//! Weights in and out of Hugging Face folders: safetensors, single or sharded, plain or packed.
//!
//! Weights are read in slices: a [`Checkpoint`] reads headers only, [`compare_weights`] says what does not fit, and [`load_weights`]
//! reads what a pool owns. Files that are written are always plain.

mod among;
mod carried;
mod checkpoint;
mod compare;
mod components;
mod dtype;
mod error;
mod file;
mod header;
mod layout;
mod load;
mod mismatches;
mod names_in;
mod narrow;
mod opening;
mod origin;
mod packed;
mod parallel;
mod pattern;
mod rewrite;
mod same_files;
mod save;
mod shards;
mod snapshot;
mod stored;

#[cfg(test)]
mod tests;

pub use among::save_weights_among;
pub(crate) use among::{write_among, writer_of};
pub use carried::CarriedTensors;
pub use checkpoint::{ADAPTER_FILE, Checkpoint, INDEX_FILE, SINGLE_FILE, is_adapter};
pub use compare::{LoadOptions, compare_origin, compare_weights};
pub use dtype::Dtype;
pub use error::WeightsError;
pub use file::{TensorFile, TensorFileError};
pub use header::{Header, TensorInfo};
pub use load::{load_weights, load_weights_from};
pub use mismatches::Mismatches;
pub use narrow::{Beyond, narrowed};
pub use origin::Origin;
pub use parallel::{Filling, fill};
pub use pattern::collapse;
pub use rewrite::{Rewrite, index_of, renamed, rewrite};
pub use same_files::SameFiles;
pub(crate) use save::{Entry, write_plain_file};
pub use save::{Target, num_shards, save_specs, save_weights, write_tensor_file};
pub use shards::{FilesOf, MAX_SHARD_SIZE, Shards, shard_name};
pub use snapshot::Snapshot;
pub use stored::Stored;
