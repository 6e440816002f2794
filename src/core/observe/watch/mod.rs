//! The state of a run while it goes on, for those who look: a bounded board of the last steps and of every actor.
//!
//! [`News`] go in, JSON, Prometheus text, a chart or a trace come out. No sockets, no clocks: those are `actors::watch`'s.

mod actors;
mod board;
mod clocks;
mod families;
mod news;
mod otlp;
mod prometheus;
mod status;
mod text;
mod timeline;

pub use board::Board;
pub use news::{News, RunInfo};
pub use otlp::Told;
pub use text::{View, describe_run};
