//! Reads a launch script as bash would, without running anything: assignments, arrays, conditions whose words are all in the
//! script. What commands or the environment would say is not known, and what depends on it is marked.

mod arithmetic;
mod condition;
mod lex;
mod script;
mod value;

pub(super) use script::{Conditional, read};
pub(super) use value::Word;
