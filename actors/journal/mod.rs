//! The scheduler's journal: all of its inputs, in order, so that another process can take over.
//!
//! The coordinator is a function of its inputs. Each input is recorded before it is processed, and synced to disk before a step is
//! committed; an actor's message is acknowledged once it is written. A successor reads the records and replays them in a new
//! coordinator, and then knows what every actor was told and has said: its wires continue with the next numbers, so that messages
//! in flight when the first process died are sent again, once. Engines notice nothing.
//!
//! So that it does not grow with the run, it is truncated from time to time: a new file replaces it that begins with a snapshot of
//! everything before, including the coordinator.
//!
//! The writer holds a lock and increments its life number: actors ignore messages of an earlier life.
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
