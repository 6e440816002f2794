//! Whole runs of a tiny model: one binary, so that libtorch is linked once.

mod action_tokens;
mod benches;
mod cache;
mod clients;
mod diffusion;
mod disks;
mod drill;
mod equality;
mod evaluating;
mod experts;
mod fastwam;
mod faults;
mod fixture;
mod florence;
mod frozen;
mod hosts;
mod kinds;
mod kto;
mod layouts;
mod memory;
#[path = "../support/must.rs"]
mod must;
mod nonfinite;
mod optimizers;
mod pads;
mod parity;
mod preference;
mod preflight;
mod processes;
mod reference;
mod resume;
mod sandbox;
mod saves;
mod scale;
mod serving;
mod sights;
#[path = "../support/soak.rs"]
mod soak;
mod sound;
mod stages;
mod stores;
mod text;
mod tracking;
mod training_methods;
mod two_transformers;
mod whole_omni;
