//! The parameters of a model as data beside it: what they are called, which part a rank holds, and the flat buffers that
//! hold them and their gradients, whole or sharded (ZeRO).

mod division;
mod flat_param;
mod grads;
mod id;
mod init;
mod lora;
mod piece;
mod scope;
mod shard;
mod sharded_store;
mod sharding;
mod spec;
mod store;

pub use division::{Division, divide, share};
pub use flat_param::{OwnedPart, Unit};
pub use grads::GradBuffer;
pub use id::ParamId;
pub use init::{Init, uniform};
pub(crate) use lora::Adapter;
pub use lora::{ADAPTER_PARTS, LinearModule, LoraConfig, merged_weight, row_norms};
pub use piece::Piece;
pub use scope::Scope;
pub use shard::{Cut, PiecePart, Region, Shard, region};
pub use sharding::{Sharding, Shared, Slices};
pub use spec::{AdapterSpec, ParamSpec, Role};
pub use store::{Keeper, ParamStore};
