//! Pictures and videos: files to patches, and the placeholders that stand for them in a text.
//!
//! ```text
//! file ─ decode ─ RGB frames ─ a family's processor ─┬ patches: what the encoder takes
//!        video ───┘                                  └ pieces:  what stands in the text
//! ```
//!
//! A family's processor equals the one of Hugging Face (transformers 5.17); [`open`](open::open) chooses it. The encoders themselves are
//! not here.

mod area;
mod clock;
mod davit;
mod eagle;
mod ernie;
mod expansion;
mod kimi;
mod markers;
pub(super) mod mp4;
mod open;
mod patches;
mod processor;
mod qwen;
mod resize;
mod sampling;
mod settings;
mod slice_plan;
mod slices;
mod smart_resize;
mod split;
#[cfg(test)]
mod tests;
mod tiles;
mod video;
mod video_source;
mod words;

pub(super) use area::resize_area;
pub use clock::Clock;
pub(super) use davit::Convolutions;
pub use expansion::{Expansion, Piece, Run, Timed};
pub use markers::{Marker, Markers};
#[cfg(feature = "mp4")]
pub use mp4::VideoWriter;
pub use mp4::{FileState, Stretch, VideoFile};
pub use open::colors;
pub(super) use open::{open, open_crop};
pub use processor::MediaProcessor;
pub(super) use resize::{middle, resize_as_pillow, resize_bicubic};
pub use sampling::{Sampling, Spread};
pub(super) use settings::Filter;
pub(super) use smart_resize::expect_aspect;
pub use smart_resize::smart_resize;
pub use video::Video;
pub use video_source::VideoSource;
pub(super) use video_source::{in_folder, is_clip, load, natural};

pub use crate::data::kind::MediaKind;
