//! Roll call: three voices one after the other, and the question who speaks first, second or third. The speech is acted
//! by people and comes from three Debian packages, which are read and never installed or fetched; whole levels of the
//! game are held out. [`super::spoken_digits`] has the model.

mod compose;
mod package;
mod spoken;
#[cfg(test)]
mod tests;

pub use compose::{Composed, RollCall, compose};
pub use package::PACKAGES;
