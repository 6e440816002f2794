//! A run as data: one YAML file, composed, checked and typed.
//!
//! Precedence, lowest first: schema default, `defaults` list, file, `LOONGFORGE__A__B` environment variables,
//! command-line overrides. Every mistake is reported at once, with its place and a suggestion.

mod schema;
mod units;

pub use schema::*;
pub use units::{Device, Size, Threads, TimeSpan};
