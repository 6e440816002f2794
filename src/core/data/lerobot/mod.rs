//! LeRobot data sets: recorded episodes of robots, each a row a frame, with pictures in Parquet files or in videos.
//!
//! ```text
//! meta/info.json ── Info ─┬ features, paths                meta/episodes ── Episode: rows of a file, a time of each video
//!                         └ fps ── steps of a window       data/…parquet ── columns;  videos/…mp4 ── frames
//! ```

mod feature;
mod writer;

pub use feature::{Dtype, Feature, Value};
pub use writer::SetWriter;
