//! Fault injection: a script of faults, and a proxy that injects network faults between the processes of a run.
//!
//! A process with `LOONGFORGE_PROXY=HOST:PORT` in its environment connects through the proxy there and first names its target. The
//! proxy can tell frames from packets, and learns who is at both ends from the first messages of a connection; on an encrypted
//! connection it knows neither, and can only inject byte-level faults. What happens to which message is a function of the seed, the
//! two ends and the message's number.
//!
//! Processes to kill or freeze are handled by whoever started them.

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
