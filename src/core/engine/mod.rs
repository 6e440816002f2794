//! The interface between the loop that runs ([`host`]) and the code that computes ([`Engine`]).
//!
//! An engine is a state machine on its own thread. It receives commands and parcels, and works in bounded pieces between them, so
//! that a gradient that arrives late is handled before the next forward begins. It never blocks: what cannot be sent yet waits in
//! [`Ports`].

mod chain;
mod data;
pub mod fault;
mod held_out;
mod host;
mod interrupt;
mod limits;
mod ports;
mod recorder;

pub use chain::error_chain;
pub use data::{DataEngine, SampleSource};
pub use held_out::WithHeldOut;
pub use host::host;
pub use interrupt::{note_failed_collective, urgent_commands};
pub use limits::memory_limit;
pub use ports::Ports;
pub use recorder::Recorder;

use crate::message::{ActorId, Command};
use crate::transport::Parcel;

/// An engine's error; its chain is printed as the cause of the run's end.
pub type EngineError = Box<dyn std::error::Error + Send + Sync>;

/// A peer that the engine needs is gone.
#[derive(Debug, thiserror::Error)]
#[error("lost {peer}: {reason}")]
pub struct PeerLost {
    pub peer: ActorId,
    pub reason: String,
}

/// The result of one call of [`Engine::work`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A piece of work was done; there may be more.
    Busy,
    /// Nothing can be done until mail arrives.
    Idle,
}

/// Computes one actor's share of every step. Not `Send`: it is built on the thread that it runs on.
pub trait Engine {
    /// Handles a command. `Stop` is handled by the host and never arrives here.
    ///
    /// # Errors
    /// Fails if the engine cannot continue; the run then ends with this cause.
    fn command(&mut self, command: Command, ports: &mut Ports) -> Result<(), EngineError>;

    /// Handles a parcel.
    ///
    /// # Errors
    /// Fails if the engine cannot continue, for example because the parcel is not one that it expects.
    fn arrive(&mut self, from: ActorId, parcel: Parcel, ports: &mut Ports) -> Result<(), EngineError>;

    /// Does one bounded piece of work.
    ///
    /// # Errors
    /// Fails if the engine cannot continue.
    fn work(&mut self, ports: &mut Ports) -> Result<Progress, EngineError>;
}

/// Engines behind a pointer are engines.
impl Engine for Box<dyn Engine> {
    fn command(&mut self, command: Command, ports: &mut Ports) -> Result<(), EngineError> {
        (**self).command(command, ports)
    }

    fn arrive(&mut self, from: ActorId, parcel: Parcel, ports: &mut Ports) -> Result<(), EngineError> {
        (**self).arrive(from, parcel, ports)
    }

    fn work(&mut self, ports: &mut Ports) -> Result<Progress, EngineError> {
        (**self).work(ports)
    }
}
