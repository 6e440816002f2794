//! Answers of a trained language model as they come: text in pieces, stop strings, and why each has ended.

mod context;
mod stream;

pub use context::{NoRoom, Positions, possible_stretch, room};
pub use stream::{Piece, Wanted, answer_each};
