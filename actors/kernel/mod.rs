//! Actor infrastructure, and the only place that uses actix.
//!
//! A [`Link`] is one engine as the scheduler sees it: where commands go, where events come from, how it ended. Beyond it, it makes
//! no difference whether the engine is a thread or a process. Supervision is our own: actix neither restarts nor reports a panic,
//! so the end of an engine is always detected by the end of its link.

mod link;
mod publishing;
mod run_actors;
mod shell;
mod signals;
mod stop;
mod thread;

pub use link::{Commands, Confirm, Link};
pub use run_actors::{Change, RunActors, in_system, run_actors};
pub use signals::StopSignals;
pub(crate) use signals::{Hangups, StopSignal};
pub use stop::{Heeding, Phase, StopOn};
pub(crate) use stop::{Stops, leave_to_the_scheduler};
pub use thread::spawn;
