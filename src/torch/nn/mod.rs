//! Blocks of models, on one device: norms, rotary embeddings, attention, MLPs, patches.
//! No communicator comes in here.

mod activation;
mod attend;
mod attention;
mod block_attention;
mod conv;
mod cross_attention;
mod gated_delta;
mod indexer;
mod indexer_loss;
mod linear;
mod mask;
mod mixer;
mod mla;
mod mlp;
pub mod moe;
mod norm;
mod patch;
mod piece_attention;
mod rope;
mod rope_config;
mod self_attention;
mod sparse_attention;
mod window;

pub use activation::Activation;
pub use attend::{Scores, take_rows};
pub use attention::{DocumentBatch, PackedAttention};
pub use conv::{RowConv, Taps};
pub use cross_attention::{CrossAttention, DocumentKeys};
pub use gated_delta::{DeltaDocuments, GatedDelta, GatedDeltaConfig, GatedDeltaLayout};
pub use indexer::{Indexer, IndexerConfig, IndexerTraining};
pub use indexer_loss::indexer_loss;
pub use linear::Linear;
pub use mask::Mask;
pub use mixer::{Columns, Context, LayerCache, Mixer, QkvMixer, State};
pub use mla::{KeyChoice, Mla, MlaConfig};
pub use mlp::SwiGlu;
pub use norm::{LayerNorm, NormConfig, RmsNorm};
pub use patch::{Resampled, Resampling, coordinates};
pub use piece_attention::PieceAttention;
pub use rope::Rope;
pub use rope_config::{RopeAxes, RopeConfig, RopeLayout, RopeScaling, Yarn};
pub use self_attention::{AttentionConfig, QkNorm, Qkv, SelfAttention};
pub use sparse_attention::{ChosenKeys, IndexRows, attend_chosen, choose};
