//! The parameters of a model as data beside it: what they are called, which part a rank holds, and the flat buffers that
//! hold them and their gradients, whole or sharded (ZeRO).

mod flat_param;
mod float8;
mod frozen_unit;
mod grads;
mod id;
mod init;
mod lora;
mod matrices;
mod nf4;
mod parallel_rank;
mod rounded;
mod rounding;
mod scope;
mod shard;
mod sharded_store;
mod sharding;
mod spec;
mod store;
mod stored_tensor;
mod weight_budget;

#[cfg(test)]
mod quantized_tests;

pub use flat_param::{FlatParam, OwnedPart};
pub use frozen_unit::FrozenUnit;
pub use grads::GradBuffer;
pub use id::ParamId;
pub use init::{Init, sinusoids, uniform};
pub use lora::{ADAPTER_PARTS, LinearModule, LoraConfig, Masks, merged_weight, row_norms};
pub(crate) use lora::{Adapter, kept};
pub use matrices::{is_hidden_matrix, matrices_of};
pub use parallel_rank::{ParallelRank, divide, share};
pub use rounding::Rounding;
pub use scope::Scope;
pub use shard::{Cut, PiecePart, Region, Shard, region};
pub use sharding::{Sharding, Slices, ZeroStage};
pub use spec::{AdapterSpec, Held, ParamSpec, Role};
pub use store::{ParamStore, Unsharder};
pub use stored_tensor::StoredTensor;
pub use weight_budget::within_weight_budget;
