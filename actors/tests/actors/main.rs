//! Actors with fake engines: on one thread under every order of events, as threads, and as processes that die. One binary, since each
//! that links the library is built for minutes.

mod browser;
mod drill;
mod fake;
mod faults;
mod in_process;
mod journal;
#[path = "../../../tests/support/must.rs"]
mod must;
mod oom;
mod orders;
mod processes;
mod recording_observer;
mod simulated_network;
mod snapshot_equivalence;
mod test_endpoint;
mod watching;
mod world;
