//! placeholder
pub mod checkpoint;
