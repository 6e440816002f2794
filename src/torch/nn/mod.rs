//! Shared blocks of models, on one device: parameters, norms, rotary embeddings, attention, MLPs, patches.
//! No communicator comes in here.

mod activation;
mod attention;
mod gated_delta;
mod indexer;
mod indexer_loss;
mod init;
mod linear;
mod lora;
mod mixer;
mod mla;
mod mlp;
pub mod moe;
mod norm;
mod params;
mod patch;
mod piece;
mod rope;
mod rope_config;
mod scope;
mod self_attention;
mod shard;
mod sparse_attention;

pub use activation::Activation;
pub use attention::{DocumentBatch, PackedAttention, take_rows};
pub use gated_delta::{DeltaDocuments, GatedDelta, GatedDeltaConfig, GatedDeltaLayout};
pub use indexer::{Indexer, IndexerConfig, IndexerTraining};
pub use indexer_loss::indexer_loss;
pub use init::{Init, uniform};
pub use linear::Linear;
pub use lora::{AdapterSpec, LinearModule, LoraConfig};
pub use mixer::{Columns, Context, CutMixer, Mixer, Shelf, State};
pub use mla::{KeyChoice, Mla, MlaConfig};
pub use mlp::SwiGlu;
pub use norm::{LayerNorm, NormConfig, RmsNorm};
pub use params::{GradBuffer, ParamId, ParamSpec, ParamStore, Role};
pub use patch::{Resampled, Resampling, coordinates};
pub use piece::Piece;
pub use rope::Rope;
pub use rope_config::{RopeAxes, RopeConfig, RopeLayout, RopeScaling, Yarn};
pub use scope::Scope;
pub use self_attention::{AttentionConfig, QkNorm, Qkv, SelfAttention};
pub use shard::{Cut, Division, PiecePart, Region, Shard, divide, region, share};
pub use sparse_attention::{ChosenKeys, IndexRows, attend_chosen, choose};
