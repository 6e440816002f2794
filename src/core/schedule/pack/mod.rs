//! Packing: samples end to end into as few rows as hold them, nothing cut and nothing lost.
//!
//! By what is known: `pack` is given one global batch and makes packs that cost alike; [`StreamPacker`] sees a window
//! of a stream.

mod length_set;
mod limits;
mod step;
mod stream;

pub use limits::{PackLimits, SampleSize, TooLarge};
pub(super) use step::pack;
pub use stream::StreamPacker;
