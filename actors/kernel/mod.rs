//! Actors as such, and the only place that knows actix.
//!
//! A [`Link`] is one engine as the scheduler sees it: where commands go, where events come from, how it ended. Whether
//! the engine is a thread or a process makes no difference beyond it. Supervision is ours: actix neither restarts nor
//! reports a panic, so an engine's end is always learned from the end of its link.

mod link;
mod publishing;
mod run_actors;
mod shell;
mod stop;
mod thread;

pub use link::{Commands, Confirm, Link};
pub use run_actors::{Change, RunActors, in_system, run_actors};
pub(crate) use stop::leave_to_the_scheduler;
pub use stop::{Heeding, Phase, StopOn};
pub use thread::spawn;
