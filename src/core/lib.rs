//! loongforge-core: what is decided. Configuration, data, schedule, messages and transport.
//!
//! No libtorch, no actors, and no sockets in the decisions: everything here builds and tests in seconds.
//! Modules are layered and imports only point down:
//! `clock`, `files`, `numbers`, `rng`, `store`, `text`, `threads` ← `config`, `message` ← `data`, `schedule` ← `simulate`, `checkpoint`,
//! `robot`, `openai` ← `transport`, `engine`, `observe`.

pub mod checkpoint;
pub mod clock;
pub mod config;
pub mod data;
pub mod engine;
pub mod files;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod message;
pub mod numbers;
pub mod observe;
pub mod openai;
pub mod rng;
pub mod robot;
pub mod schedule;
pub mod simulate;
pub mod store;
pub mod text;
pub mod threads;
pub mod transport;
