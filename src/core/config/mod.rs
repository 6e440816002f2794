//! The config of a run: one YAML file, composed, checked and typed.
//!
//! Precedence, lowest first: schema default, `defaults` list, file, `LOONGFORGE__A__B` environment variables,
//! command-line overrides. Every mistake is reported at once, with its place and a suggestion. `docs/configuration.md`
//! lists every key.

mod address;
mod area;
mod builtin;
mod check;
mod compose;
mod defaults;
#[cfg(test)]
mod docs;
mod edit;
mod editor;
mod episodes;
mod error;
mod folder_kind;
mod foreign;
mod import;
mod interpolate;
mod kind;
mod layout;
mod load;
mod node;
mod offline;
mod origin;
mod overrides;
mod pattern;
mod read;
mod save_points;
mod scalar;
mod schema;
mod shape;
mod source;
mod stages;
mod suggest;
mod units;
mod validate;
mod validate_cache;
mod validate_checkpoint;
mod validate_data;
mod validate_eval;
mod validate_flow;
mod validate_memory;
mod validate_model;
mod validate_pack;
mod validate_policy;
mod validate_preference;
mod validate_tracking;
mod variables;
mod yaml;

#[cfg(test)]
mod tests;

pub use address::Address;
pub use area::{Area, FrameSize, Shift};
pub use builtin::{ModelFile, model_files};
pub use check::{key_called, remark_on};
pub use editor::editor_schema;
pub use episodes::EpisodeRange;
pub use error::{ConfigError, Origin, Report, Snippet, code};
pub use folder_kind::{MODEL_INDEX, is_low_noise_file, lora_files_of_two};
pub use import::{Fate, ImportError, Imported, KeyFate, import, import_words};
pub use kind::{KindError, ModelKind};
pub use layout::{Axis, Layout, RankCoords};
pub use load::{Loaded, load, load_elsewhere, load_stage, load_text, load_text_with, stages};
pub use origin::KeyOrigin;
pub use pattern::glob;
pub use save_points::SavePoints;
pub use schema::*;
pub use source::{HubId, Source, hub_data_set};
pub use stages::{ListedStage, StageStart};
pub(crate) use suggest::{folders_in, folders_within};
pub use units::{Device, Size, Threads, TimeSpan};
pub use yaml::read_yaml;
