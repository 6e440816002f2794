//! Checkpoints: Hugging Face folders with a manifest, seen whole or not at all.
//!
//! ```text
//! DIR/.step-00000200.tmp/   engines write here; nobody reads it; removed when the next run starts
//! DIR/step-00000200/        config.json, tokenizer.json …, model*.safetensors, optimizer state, MANIFEST.json
//! ```
//!
//! Publishing writes what the engines did not, forces everything to the disk, and renames: a crash at any moment leaves
//! the checkpoints before it as they were and the new one invisible ([`publish`]). What is in the engines' files is
//! theirs.

mod adapters;
mod carried;
mod disk;
mod error;
mod manifest;
mod publish;

pub use carried::carried;
pub use error::CheckpointError;
pub use manifest::{FORMAT_VERSION, FileEntry, MANIFEST, Manifest, latest};
pub use publish::{BEST, DATA, Publication, clean, discard, mark_best, prepare, publish};
