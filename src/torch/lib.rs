//! The computation of loongforge: models, the tape, training and engines, on libtorch.
//!
//! Modules import lower layers only: `native`, `comm`, `device` ← `params` ← `nn` ← `tape` ← `model` ← `parallel` ← `train` ← `engine`.

pub mod comm;
#[allow(unsafe_code)]
pub mod device;
pub mod engine;
#[allow(non_snake_case)]
pub mod model;
#[allow(unsafe_code)]
pub mod native;
#[allow(non_snake_case)]
pub mod nn;
pub mod parallel;
#[allow(non_snake_case)]
pub mod params;
#[allow(non_snake_case)]
pub mod tape;
pub mod train;
