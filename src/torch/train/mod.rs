//! The code that turns gradients into better parameters and keeps them: optimizer, pool state, Hugging Face weights.

mod adamw;
mod adamw8bit;
mod averages;
mod buckets;
mod elastic;
mod ema;
pub mod hf;
mod moments;
mod muon;
mod norms;
mod offload;
mod offloaded_step;
pub mod parity;
mod peft;
mod placed;
mod reduce;
mod restore;
mod rule;
mod shares;
mod slices;
mod state;
mod state_files;
mod train_state;

#[cfg(test)]
mod layout_tests;
#[cfg(test)]
mod offload_tests;
#[cfg(test)]
mod optimizer_tests;
#[cfg(test)]
mod tests;

pub use adamw::{AdamW, Gather};
pub use buckets::Buckets;
pub use hf::{TensorFileError, WeightsError, load_weights, save_weights};
pub use offload::{Offload, Tier};
pub use peft::{
    AdapterBase, AdapterConfig, AdapterError, AdapterFile, AdapterFolder, AdapterSettings, Adapters, Contents,
    DIFFUSERS_LORA_FILE, Found, LoraForm, adapted, adapter_base, adapter_config, dora_without_place, has_adapter,
    is_within, load_adapter, merge_adapter, modules_to_save, read_adapter_config, save_adapter, write_lora,
};
pub use placed::StateSlice;
pub use restore::load_state;
pub use rule::{AdamWConfig, Adjust, MuonConfig, OptimizerConfig, OptimizerMethod};
pub use shares::{gather_piece, gather_whole};
pub use state::{Export, StateError, save_state};
pub use state_files::state_files;
pub use train_state::{Lanes, TrainState};
