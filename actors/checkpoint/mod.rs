//! Publishing checkpoints, of the format that [`loongforge_core::checkpoint`] has.
//!
//! Publishing writes what the engines did not, forces everything to the disk, and renames: a crash at any moment leaves
//! the checkpoints before it as they were and the new one invisible ([`publish`]). What is in the engines' files is
//! theirs.

mod adapters;
mod disk;
mod pipeline;
mod publish;
mod upload;

pub use pipeline::{Extra, extras};
pub use publish::{BEST, DATA, Publication, clean, discard, mark_best, prepare, publish};
pub use upload::{FORMER, UploadSpec, Uploaded, Uploader, Uploads, has_former, remove_staged};
