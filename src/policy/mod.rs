//! Policies that are asked: how they are opened, and how they are judged.

pub mod judge;
mod open;
pub mod open_loop;
mod table;
pub(crate) mod trained;

pub use open::{Choice, Purpose, Wanted, open};
