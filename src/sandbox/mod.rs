//! Pictures, videos and sound of training data decoded in processes that may do nothing else: what a hostile file does to a
//! decoder costs one process and one sample, never the run.
//!
//! ```text
//! Sandbox (a Decoder) ── Worker ── socket ──▶ `loongforge decode-worker`: restricts itself, then decodes what it is sent
//!                          └ watches its time on a core; a worker that dies is replaced
//! ```
//!
//! Which samples are bad is not decided here (`loongforge_core::data`), and no program but our own is run.

mod drill;
mod pool;
mod restrict;
mod serve;
mod wire;
mod worker;

pub use pool::Sandbox;
pub use serve::serve;
