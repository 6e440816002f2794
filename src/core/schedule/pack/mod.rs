//! Packing: concatenates samples into as few rows as possible, without splitting or losing any.
//!
//! There are three kinds, by what is known of the samples: `pack` gets one global batch and makes packs of equal cost; [`StreamPacker`]
//! sees a window of a stream; [`pack_offline`] knows every length.

mod best_fit;
mod bound;
mod deal;
mod free_space_index;
mod length_set;
mod limits;
mod offline;
mod step;
mod stream;

pub use bound::least_packs;
pub(super) use deal::deal;
pub use limits::{PackLimits, SampleSize, TooLarge};
pub use offline::{OfflinePacks, pack_lengths, pack_offline};
pub(super) use step::pack;
pub use stream::StreamPacker;
