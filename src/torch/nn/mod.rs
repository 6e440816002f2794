//! Shared blocks of models, on one device: parameters, norms, rotary embeddings, attention, MLPs, patches.
//! No communicator comes in here.

mod init;
mod params;

pub use init::Init;
pub use params::{GradBuffer, ParamId, ParamSpec, ParamStore};
