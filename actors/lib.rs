//! loongforge-actors: where the parts of a run are executed, and what happens when one dies.
//!
//! Actors are thin: the scheduler actor drives the state machine of `core::schedule`, and one shell per engine passes its commands
//! and events. Tensors never pass through an actor. Nothing here knows libtorch: an engine is anything that implements
//! `core::engine::Engine`.
//!
//! | actor | stop | drain | peer gone |
//! | --- | --- | --- | --- |
//! | [`scheduler`] | on request: after the step in progress and its checkpoint | waits for every actor's end | continues without an encoder; else stops everyone, names the root cause |
//! | data | at once | drops samples read ahead | an encoder: sends its pixels to its successor; else ends with the run |
//! | encoder | between two units | drops activations and gradients in flight | an encoder: takes its units; else ends with the run |
//! | foundation | between two packs | drops activations and gradients in flight | an encoder: returns gradients again; else ends with the run |

pub mod checkpoint;
pub mod drill;
pub mod effect;
pub mod journal;
mod kernel;
pub mod launch;
mod random;
pub mod scheduler;
pub mod watch;

pub use kernel::{Heeding, Phase, StopOn, StopSignals};
pub use launch::{
    Assignment, EngineFactory, Meeting, RunError, RunSpec, Start, run_in_process, serve_role, serve_scheduler,
};
pub use scheduler::{Observer, Publisher};
