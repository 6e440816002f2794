//! loongforge trains language, vision-language, audio and diffusion models and robot policies, with encoders and the main model in
//! separate pools.
//!
//! Three packages and a thin root: [`core`] decides, [`torch`] computes, [`actors`] run. The root puts engines into
//! actors ([`run::engines`]), lets programs compose runs of their own ([`compose`]) and is the command line ([`cli`]).

pub mod answer;
pub mod checkpoint;
pub mod cli;
pub mod drill;
pub mod estimate;
pub mod eval;
pub mod model;
pub mod policy;
pub mod preflight;
pub mod run;
pub mod sandbox;
pub mod serve;

pub use loongforge_actors as actors;
pub use loongforge_core as core;
pub use loongforge_torch as torch;
pub use model::{FolderError, ModelFolder};
pub use run::compose;
