//! Actors with fake engines: on one thread under every order of events, as threads, and as processes that die. One binary, since each
//! that links the library is built for minutes.

mod browser;
mod drill;
mod fake;
mod faults;
mod in_process;
mod journal;
mod meeting;
#[path = "../../../tests/support/must.rs"]
mod must;
mod oom;
mod orders;
mod processes;
mod simulated_network;
mod twinned;
mod watching;
mod witness;
mod world;
