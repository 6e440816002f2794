//! Shared blocks of models, on one device: parameters, norms, rotary embeddings, attention, MLPs, patches.
//! No communicator comes in here.

mod attention;
mod init;
mod linear;
mod lora;
mod mixer;
mod mlp;
mod norm;
mod params;
mod patch;
mod piece;
mod rope;
mod rope_config;
mod scope;
mod self_attention;

pub use attention::PackedAttention;
pub use init::Init;
pub use linear::Linear;
pub use lora::{LoraConfig, LoraError, LoraTargets};
pub use mixer::{Columns, Context, Mixer, State};
pub use mlp::{Gelu, GeluMlp, SwiGlu};
pub use norm::{LayerNorm, NormConfig, RmsNorm};
pub use params::{GradBuffer, ParamId, ParamSpec, ParamStore, Role};
pub use patch::{frame_cu_seqlens, interpolation, patch_positions};
pub use piece::Piece;
pub use rope::Rope;
pub use rope_config::{RopeAxes, RopeConfig, RopeLayout, RopeScaling, Yarn};
pub use scope::Scope;
pub use self_attention::{AttentionConfig, QkNorm, Qkv, SelfAttention};
