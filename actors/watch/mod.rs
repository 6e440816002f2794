//! The web page of a running job: a read-only server in the scheduler's process.
//!
//! Contract: the run never waits for it. Events go into a bounded queue, and are dropped and counted if it is full. It has its own
//! thread, listens only on loopback or a Unix socket, and answers only GET requests with the token drawn for this run. hyper reads
//! requests, with limits on size and time; idle connections make room for others.
//!
//! If `watch.otlp` is set, another thread sends the same figures to a collector; nothing else here sends data unasked.
//!
//! Stop: when its handle is dropped; the timeline of the last steps is then written to the run's folder as `trace.json`.

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
pub use door::is_same;
pub use handle::{TRACE_FILE, Watch, WatchError};
pub use memory::resident_bytes;
pub use page::still_page;
pub use word::{WATCH_FILE, has_ended};
