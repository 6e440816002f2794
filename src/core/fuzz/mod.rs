//! The readers of untrusted bytes, as functions that must neither panic nor hang nor allocate without bound, whatever the bytes. The
//! fuzzer calls them (`fuzz/`), and a test with inputs mutated in a way that is always the same.

#[cfg(test)]
mod mutate;
mod targets;

pub use targets::{TARGETS, Target, run};
