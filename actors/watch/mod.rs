//! The page that shows a run while it goes on: a read-only server in the scheduler's process.
//!
//! Contract: the run never waits for it. News go into a bounded queue and are dropped, and counted, where it is full. It
//! has a thread of its own, listens on loopback or a Unix socket only, answers GET, and only to whoever has the token
//! that was drawn for this run. A client that sends or reads slowly is cut off and keeps nobody else waiting for long.
//!
//! Stop: with its handle; the timeline of the last steps is then left in the run's folder as `trace.json`.

mod client;
mod door;
mod handle;
mod http;
mod server;

pub use client::{ClientError, Target, get};
pub use handle::{TRACE_FILE, WATCH_FILE, Watch, WatchError};
