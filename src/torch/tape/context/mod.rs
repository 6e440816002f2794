//! Attention of a packed row whose tokens several ranks hold (context parallelism). The rest of a layer is of single
//! tokens and does not know. A row is split so that every rank has as many tokens and, of causal attention, as many
//! products; keys and values go round a ring, or heads are exchanged for tokens and back.
//!
//! Nothing here holds a communicator: the mesh of whoever executes the tape has the group.

mod attention;
mod blocks;
mod heads;
mod ring;
mod row;
mod split;
#[cfg(test)]
mod tests;

pub use row::{ContextShard, SumOverContext};
pub use split::{Block, RowSplit};
