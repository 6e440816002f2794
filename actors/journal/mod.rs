//! The scheduler's journal: everything that it was told, in order, so that another process can go on in its place.
//!
//! The coordinator is a function of its inputs. A record of each is written before it is heeded, and forced to the disk
//! before a step is committed; what an actor has said is acknowledged once it is written. Who takes over reads the
//! records, has a new coordinator hear them, and knows then what every actor was told and has said: its wires go on with
//! the numbers that follow, so that what was on its way when the first process died is said again, once. Engines notice
//! nothing.
//!
//! So that it does not grow with the run, it is cut now and then: a new file takes its place that begins with all that the
//! records before have come to, the coordinator itself among it.
//!
//! Whoever writes holds a lock, and counts its life up: actors do not listen to an earlier life's.
//!
//! ```text
//! journal  LFJL  version u16  records
//! record   length u32  crc32c u32  postcard of Record
//! ```

mod error;
mod file;
mod outstanding;
mod record;
mod recovered;

pub use error::JournalError;
pub use file::Journal;
pub use outstanding::OutstandingMessages;
pub use record::{Beginning, Record, Snapshot};
pub use recovered::{RecoveredRun, ReplayEntry, is_open, unfinished};
