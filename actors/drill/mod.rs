//! Faults on purpose: a script of them, and a proxy that puts those of the network between the processes of a run.
//!
//! A process with `LOONGFORGE_PROXY=HOST:PORT` in its environment connects through the proxy there, saying first whom it
//! means. The proxy knows frames and packets from each other, and who is at both ends from the first words of a
//! connection; of an encrypted one it knows neither, and only what is about bytes can be done there. What happens to which
//! message is a function of the seed, the two ends and the message's number.
//!
//! Processes that are to be killed or frozen are the business of who started them.

mod active;
mod injector;
mod parse;
mod proxy;
mod relay;
mod script;

pub use parse::ScriptError;
pub(crate) use proxy::words;
pub use proxy::{Injected, PROXY, Proxy};
pub use script::{Fault, FaultRule, Pattern, Rate, Script, Span, Target};
