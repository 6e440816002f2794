//! Packing: samples end to end into as few rows as hold them, nothing cut and nothing lost.
//!
//! By what is known: `pack` is given one global batch and makes packs that cost alike; [`StreamPacker`] sees a window
//! of a stream; [`pack_offline`] knows every length.

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
