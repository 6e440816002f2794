//! LeRobot data sets: recorded episodes of robots, each a row a frame, with pictures in Parquet files or in videos.
//!
//! ```text
//! meta/info.json ── Info ─┬ features, paths                meta/episodes ── Episode: rows of a file, a time of each video
//!                         └ fps ── steps of a window       data/…parquet ── columns;  videos/…mp4 ── frames
//! Set ── blocks ── Step: a frame of an episode ─┬ window of numbers, with what is outside of the episode
//!                                               └ pictures
//! ```

mod ahead;
mod clips;
mod columns;
mod describe;
mod episodes;
mod feature;
mod info;
mod jsonl;
mod modality;
mod names;
mod open;
mod rewrite;
mod rows;
mod running;
mod set;
mod stats;
mod step;
mod summary;
mod table;
mod tasks;
mod template;
#[cfg(test)]
mod tests;
mod videos;
#[cfg(all(test, any(feature = "mp4", feature = "av1")))]
mod videos_tests;
mod writer;

pub use feature::{Dtype, Feature, Value};
pub use info::{Info, Version, is_set};
pub use modality::{Group, MODALITY, Modality};
pub(super) use names::{FOLDERS, INFO};
pub use open::OpenBlock;
pub use rewrite::{Computed, rewrite, write_stats};
pub use running::Running;
pub use set::{Block, Set};
pub use stats::{FeatureStats, Stats, command};
pub use step::{Step, Window, steps_of};
pub use writer::SetWriter;
