//! Samples for robot policies: what the robot sees and feels, its instruction, and the actions that follow.
//!
//! ```text
//! step ─┬ pictures ── augment ── resize with pad ── patches ── items of the vision tower ─┐
//!       ├ state ───── normalize ──┬ digits ┐                                   │
//!       │                         └ column │                                   ├ sample
//!       ├ task ───────────────────── prompt ── tokens ─────────────────────────┤
//!       └ actions ─── relative ── normalize ┬ columns `actions`, `action_weights`
//!                                           └ FAST tokens, of policies that learn such
//! ```
//!
//! FastWAM's pictures are a clip for an autoencoder, and its prompt is an item of a text tower (`fastwam.rs`).
//! GR00T is told pictures and task as a chat (`chat.rs`), and has a column `embodiment` beside those; `groot_spec.rs` says what its
//! config means, `groot_files.rs` what is its own in lerobot's processor files.

mod acting;
mod action_space;
mod action_tokens;
mod augment;
mod canvas;
mod chat;
#[cfg(test)]
mod chosen_tests;
mod data_keys;
#[cfg(test)]
mod data_keys_tests;
mod data_names;
#[cfg(test)]
mod data_names_tests;
mod delay;
mod embodiments;
mod fast;
mod fastwam;
mod fastwam_spec;
#[cfg(test)]
mod fastwam_tests;
mod files;
mod groot_files;
mod groot_framing;
mod groot_groups;
#[cfg(test)]
mod groot_relative_tests;
mod groot_spec;
mod kept;
mod maker;
mod modality;
#[cfg(test)]
mod modality_tests;
mod normalizer;
mod observation;
mod pictures;
mod prompt;
mod relative;
mod robots;
#[cfg(test)]
mod robots_tests;
mod sample;
mod scales;
mod spec;
#[cfg(test)]
mod tests;
mod xvla;
#[cfg(test)]
mod xvla_tests;

pub use acting::Compared;
pub use action_space::ActionSpace;
pub use data_names::DataNames;
pub use embodiments::NEW as NEW_EMBODIMENT;
pub use fast::{DecodedActions, FastTokenizer, action_tokenizer_files};
pub use files::is_processor_file;
pub use kept::FILE as EMBODIMENTS_FILE;
pub use maker::PolicyMaker;
pub use observation::Observation;
pub use robots::embodiment_of;
