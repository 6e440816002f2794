//! Estimates before a run: seconds from FLOPs or from earlier runs, and the memory that its actors will take.

pub(crate) mod calibrate;
pub(crate) mod flops;
pub mod memory;
