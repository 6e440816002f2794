//! The C++ shim beside stock tch, in safe Rust: gradients for given output gradients, operators by schema name,
//! the allocation record, profiles, dry runs, what autograd saves, streams, and c10d's Gloo groups. The only room of this package, with
//! `device`, that may be unsafe.

mod adamw;
mod adamw8bit;
#[cfg(test)]
mod arena_tests;
mod attention;
mod autograd;
mod borrowed;
mod bytes;
mod c10d;
mod chains;
mod cross_entropy;
mod delta;
mod dry_run;
mod dynamic_map;
mod error;
mod exit;
mod ffi;
mod fused;
mod limits;
mod malloc;
mod mapped;
mod memory;
mod modulate;
mod op;
mod products;
mod profile;
mod quantized;
mod resident;
mod saved;
mod storage;
mod store;
mod stream;

pub use adamw::{adamw, sum_of_squares};
pub use adamw8bit::{MOMENT_BLOCK, MOMENT_MAPS, QuantizedMoment, adamw_8bit};
pub use attention::{FlashDocuments, can_attend, can_flash, flash_attention, packed_attention};
pub use autograd::{grad, grad_into};
pub use borrowed::{borrow, own};
pub use bytes::{bytes, bytes_mut};
#[cfg(test)]
pub(crate) use c10d::NCCL_SYMBOLS;
pub use c10d::{Group, Pending, interrupt_by};
pub use chains::{reorder_rows, turn_halves};
pub use cross_entropy::{ScoreScan, scores_to_gradient};
pub use delta::delta_scan;
pub use dry_run::{DryRun, is_dry_run};
pub use dynamic_map::dynamic_map;
pub use error::NativeError;
pub use exit::exit_at_once;
pub use ffi::AdamWStep;
pub use fused::{Turn, can_fuse, gelu_tanh, is_table, norm_rope, norm_rope_parts, swiglu};
pub use limits::fail_writes_at_file_limit;
pub use malloc::keep_freed_memory;
pub use mapped::zeros_on_disk;
pub use memory::{MemoryWatch, Purpose, allocated_for, uncounted};
pub use modulate::{RowSegments, can_modulate, gate_rows, join_rows, modulate_rows, split_rows};
pub use op::{Arg, Op, use_deterministic_operators};
pub use products::{add_product, embedding, expect_products, faster_products, linear, multiply, set_products};
pub use profile::{Profile, Profiler, Spent};
pub use quantized::{NF4_BLOCK, from_int8, from_nf4, to_int8, to_nf4};
pub use resident::resident;
pub use saved::{SavedTensors, Storage, storage};
pub use storage::{allocate, release};
pub use store::StoreServer;
pub use stream::{CopyStream, Mark, pinned};
