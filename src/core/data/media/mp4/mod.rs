//! Videos in MP4 files: where the frames lie in the file, how large they are, and — with the features `mp4` and `av1` — what they show.
//! H.264 in 8 bits, 4:2:0, not interlaced, and AV1 in 8 bits; files that are not fragmented. Sound is not read here.

#[cfg(feature = "av1")]
mod av1_frames;
mod boxes;
mod decode;
mod file;
mod h264;
#[cfg(feature = "mp4")]
mod h264_frames;
mod shown;
mod stretch;
#[cfg(test)]
mod tests;
mod times;
mod track;
#[cfg(feature = "mp4")]
mod write;
#[cfg(any(feature = "av1", feature = "mp4"))]
mod yuv;

pub use decode::{frames, stretch_frames};
pub use file::{FileState, VideoFile};
pub use stretch::Stretch;
pub use track::is_mp4;
#[cfg(feature = "mp4")]
pub use write::VideoWriter;
