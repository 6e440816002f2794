//! The work of `loongforge data` on data sets: look into them, check them, measure them, write them as shards and pack them. Nothing is
//! printed here.

mod convert;
mod energon;
mod html;
mod input;
mod inspect;
mod job;
mod measure;
mod ordered;
mod pack;
mod pack_stats;
mod record;
mod shard;
mod sound;
#[cfg(test)]
mod sound_tests;
mod stats;
mod survey;
#[cfg(test)]
mod tests;
mod verify;

pub use convert::{Convert, convert, merge, num_samples};
pub use html::page;
pub use input::Inputs;
pub use inspect::{Field, FileInfo, Shown, ShownMedia, describe, show};
pub use job::{BAD, Done, Job, Share, list_bad};
pub use ordered::{default_jobs, for_each_ordered};
pub use pack::{PackJob, PackOrder, PackProgress, Packed, model_spec};
pub use pack_stats::PackStats;
pub use record::Look;
pub use shard::write_whole;
pub use stats::{Expected, Histogram, SampleStats, stats};
pub use survey::{Survey, survey, too_long_text};
pub use verify::verify;
