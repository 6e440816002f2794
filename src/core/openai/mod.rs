//! OpenAI's HTTP interface for answers, as data: requests are read and checked here, and what is sent back is written here.
//! No sockets and no model.
//!
//! Contract: a request is untrusted bytes. A field that is not known, or that cannot be done, is refused by its name; none is
//! passed over. Source: OpenAI's API reference, "Chat", "Completions" and "Audio"; fields of vLLM's server that have no counterpart there
//! (`top_k`, `min_p`, `repetition_penalty`, `chat_template_kwargs`) have vLLM's names.

mod calls;
mod error;
mod fields;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
mod likely;
mod media;
mod messages;
mod multipart;
mod reply;
mod request;
#[cfg(test)]
mod tests;
mod transcription;

pub use calls::{Call, CallStream, Said};
pub use error::ApiError;
pub use likely::{Likely, TokenLogprob};
pub use media::confine;
pub use reply::{Answer, Finish, Reply, Usage, models};
pub use request::{Asked, Chance, Endpoint};
pub use transcription::Transcription;
