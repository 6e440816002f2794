//! Data sets: from what a config names to the sample at a position.
//!
//! ```text
//! path ── paths ── shard ─ blob ─┬ lines   ┐                 ┌ messages, sharegpt, alpaca, pairs, labeled, fields
//!                  (remote)      ├ archive ├ block ─ record ─┤ text, tokens ─ cut
//!                                ├ table   │                 └ packed
//!                                ├ arrow   │
//!                                ├ indexed │
//!                                └ sheet   ┘
//! position ── mixture ── order ── (shard, block, index)           index: how many samples a shard has, remembered
//! ```
//!
//! Names in archives are keys and nothing else: nothing of an archive is written to disk or opened. Sizes are limited before memory is
//! taken. Pixels and tokens are made by the processor.

mod archive;
mod arrow;
mod arrow_values;
mod beside;
mod blob;
mod block;
mod captioned;
mod chosen;
mod content;
mod cut;
mod energon;
mod fields;
mod fingerprint;
mod flat;
mod folder;
mod foreign;
mod hub;
mod hub_card;
mod hub_commit;
mod ids;
mod index;
mod indexed;
mod kinds;
mod labeled;
mod layout;
mod lines;
mod locate;
mod messages;
mod mixture;
mod open;
mod order;
mod pairs;
mod parallel;
mod paths;
mod patience;
mod question;
#[cfg(feature = "cloud")]
mod remote;
mod saved;
mod shard;
mod shard_io;
mod sharegpt;
mod sheet;
mod steps;
mod stream;
pub(in crate::data) mod strict;
mod table;
#[cfg(test)]
mod tests;
mod text_len;
mod transcripts;
mod wrong_json;

#[cfg(test)]
pub use archive::tests::tar;
pub use captioned::Captioned;
pub use content::Content;
pub use cut::{TextPiece, TokenPiece};
pub use fingerprint::{Fingerprint, fingerprint};
pub use hub::{HUB_CARD, HubListing, HubPath, choose_hub_files, files_below};
pub use hub_commit::{hub_cache, hub_snapshot, is_plain_hub_name};
pub use labeled::Labeled;
pub use messages::{Conversation, IMAGE_PLACEHOLDER, MediaSource, Part, Turn, VIDEO_PLACEHOLDER, Written};
pub use mixture::{Mixture, SampleLocation};
pub use pairs::Pair;
pub use question::Question;
pub use stream::Source;
