//! The page that shows a run while it goes on: a read-only server in the scheduler's process.
//!
//! Contract: the run never waits for it. News go into a bounded queue and are dropped, and counted, where it is full. It
//! has a thread of its own, listens on loopback or a Unix socket only, answers GET, and only to whoever has the token
//! that was drawn for this run. hyper reads requests, under limits of size and time; connections that say nothing make room
//! for others.
//!
//! With `watch.otlp` another thread sends the same figures to a collector; that is the only thing here that sends unasked.
//!
//! Stop: with its handle; the timeline of the last steps is then left in the run's folder as `trace.json`.

mod client;
mod clients;
mod door;
mod export;
mod handle;
mod http;
mod memory;
mod page;
mod server;
mod word;

pub use client::{ClientError, Target, get};
pub use handle::{TRACE_FILE, Watch, WatchError};
pub use memory::resident_bytes;
pub use page::still_page;
pub use word::{WATCH_FILE, has_ended};
