//! Communication between the ranks of one pool: process groups as values, never globals.

mod group;
mod mesh;
#[cfg(test)]
pub mod witness;

pub use group::{ProcessGroup, Started};
pub use mesh::Mesh;
