//! Publishes checkpoints in the format of [`loongforge_core::checkpoint`].
//!
//! Publishing writes the files that engines did not write, syncs everything to disk, and renames: a crash at any moment leaves
//! earlier checkpoints unchanged and the new one invisible ([`publish`]). The content of the engines' files is up to the engines.

mod adapters;
mod disk;
mod pipeline;
mod publish;
mod upload;

pub use pipeline::{Extra, extras};
pub use publish::{BEST, DATA, Publication, clean, discard, mark_best, prepare, publish, restore};
pub use upload::{FORMER, UploadSpec, Uploaded, Uploader, Uploads, has_former, remove_staged};
