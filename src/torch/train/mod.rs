//! What turns gradients into better parameters and keeps them: optimizer, pool state, Hugging Face weights.

mod adamw;
pub mod parity;
mod peft;
mod pool;
mod state;
mod tensor_file;
mod weights;

#[cfg(test)]
mod tests;

pub use adamw::{AdamW, AdamWConfig};
pub use peft::{AdapterError, adapted, load_adapter, merge_adapter, read_adapter_config, save_adapter};
pub use pool::{Lanes, Pool};
pub use state::{StateError, load_state, save_state};
pub use tensor_file::TensorFileError;
pub use weights::{WeightsError, load_weights, save_weights};
