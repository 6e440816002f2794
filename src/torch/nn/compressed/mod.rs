//! The attention of DeepSeek-V4 (`DeepseekV4Attention`): queries from a latent, one vector a token that is key and value
//! of all heads, a window with learned sinks, and beside it entries that each stand for a group of earlier tokens. Values
//! are turned as keys are, so what is attended is turned back by the query's position.
//!
//! 1. `compressor.rs` makes entries of groups of tokens.
//! 2. `indexer.rs` chooses the entries that a query sees, in layers that have an indexer.
//! 3. `attention.rs` is the mixer: projections, and the attention of a packed row's documents, each from its own first
//!    token on.
//! 4. `generation.rs` is the mixer one token at a time.

mod attention;
mod compressor;
mod config;
mod generation;
mod indexer;
mod turn;

pub use attention::CompressedAttention;
pub use config::{CompressedConfig, Compression, EntryIndexer};
