//! What loongforge decides: configuration, data, schedule, messages, transport. No libtorch, no actors.

pub mod config;
