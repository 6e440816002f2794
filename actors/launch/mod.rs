//! Starting a run: who is connected with whom, threads or processes, and what the caller gets back.

mod assignment;
mod child;
mod children;
mod edges;
mod environment;
mod in_process;
pub mod jobs;
pub mod join;
mod keeper;
mod meeting;
pub mod net;
mod requests;
mod run_to_end;
mod scale;
mod serve;
mod serve_scheduler;
mod signals;
mod spec;
mod take_over;
mod topology;
mod wanted;
mod wires;

pub use assignment::Assignment;
pub use children::{Process, Start, beside, bind_to_parent};
pub use environment::{JOIN_PORT, LOCAL_RANKS, LaunchedPart, Launcher, PlaceError, local_rank, place};
pub use in_process::run_in_process;
pub use keeper::{is_takeover, keep, keeper};
pub use meeting::Meeting;
pub use run_to_end::run_to_end;
pub use scale::scale_run;
pub use serve::serve_role;
pub use serve_scheduler::serve_scheduler;
pub use spec::{EngineFactory, RunError, RunSpec};
pub use take_over::Keep;
pub use topology::{EdgeSpec, topology};
pub use wanted::{PoolError, WantedActor};
