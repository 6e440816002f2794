//! Communication between the ranks of one pool: process groups as values, never globals.

mod group;

pub use group::ProcessGroup;
