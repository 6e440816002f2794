//! Policies that are asked: how they are opened, and how they are judged.

pub mod judge;
pub mod open;
mod table;

pub use open::{Choice, open};
