//! The format of checkpoints: Hugging Face folders with a manifest, seen whole or not at all.
//!
//! ```text
//! DIR/.step-00000200.tmp/   engines write here; nobody reads it; removed when the next run starts
//! DIR/step-00000200/        config.json, tokenizer.json …, model*.safetensors, optimizer state, MANIFEST.json
//! ```

mod carried;
mod error;
mod manifest;
mod names;
mod stored;

pub use carried::{SPEAKERS, carried};
pub use error::CheckpointError;
pub use manifest::{FileEntry, Manifest, entries, latest, published, sha256};
pub use names::{FORMAT_VERSION, MANIFEST};
pub use stored::{StoredCheckpoints, StoredError, fetch_file, fetch_files};
