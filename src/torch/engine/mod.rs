//! Engines on libtorch: what encoder and foundation actors run on their threads.
//!
//! One engine type, [`TorchEngine`], holds an encoder worker, a foundation worker, or both (colocated). The workers do the
//! computing and know nothing of commands; the engine orders their steps.

mod activations;
mod actor_spec;
mod assembler;
mod buffer;
mod build;
mod build_cached;
mod cache;
mod cache_folder;
mod cache_key;
mod cache_name;
mod cache_store;
mod carried;
#[cfg(test)]
mod context_tests;
mod dry_run;
mod elastic;
mod encoder;
mod existing;
mod export_files;
mod exports;
mod feature_encoder;
mod feature_reader;
mod foundation;
mod lora;
mod optimizer;
mod pack_work;
pub mod parity;
mod policy;
mod pool_specs;
mod preflight;
mod routing;
mod samples;
mod saver;
mod share;
mod spill;
mod stages;
mod step_profile;
mod stored_towers;
mod torch_engine;
mod trained;
mod untrained;
mod weight_budget;
mod weights;

#[cfg(test)]
mod chunk_tests;
#[cfg(test)]
mod frozen_tests;
#[cfg(test)]
mod layout_tests;
#[cfg(test)]
mod pipeline_tests;
#[cfg(test)]
mod unlike_ranks_tests;
#[cfg(test)]
mod zero_tests;

pub use activations::{Activations, OverBudget};
pub use actor_spec::{EngineSpec, find_device, open_device, open_device_of};
pub use buffer::{TorchBuffer, copied_bytes};
pub use build::build_engine;
pub use build_cached::{build_feature_encoder, stem_of_features};
pub use cache_folder::stored_items;
pub use cache_key::Key;
pub use cache_name::how_made;
pub use carried::{drops_carried_parts, note_on_carried_parts};
pub use dry_run::memory_of;
pub use encoder::EncoderWorker;
pub use export_files::Exports;
pub use feature_encoder::{FeatureEncoder, KeyedItem};
pub use foundation::{Finish, FoundationWorker, SampleMaking};
pub use lora::{TrainedError, lora_config};
pub use policy::{PolicyError, PolicyModel};
pub use preflight::{adapters_without_base, check_engines, untrained_maps, whole_beside_adapters, without_effect};
pub use samples::{SampleSpec, UntrainedTransformer, WriteClip, decode};
pub use share::Splits;
pub use stages::Stages;
pub use torch_engine::TorchEngine;
pub use trained::{trained, trained_foundation};
pub use weights::{check_weights, random_parts};
