//! Whole runs of a tiny model: one binary, so that libtorch is linked once.

mod cache;
mod drill;
mod equality;
mod experts;
mod faults;
mod fixture;
mod hosts;
mod kinds;
mod layouts;
#[path = "../support/must.rs"]
mod must;
mod nonfinite;
mod parity;
mod preflight;
mod processes;
mod resume;
mod sandbox;
mod saves;
mod scale;
// A soak here need not use all of it.
#[allow(dead_code)]
#[path = "../support/soak.rs"]
mod soak;
