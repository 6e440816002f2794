//! A server of a language model for OpenAI's clients: `/v1/chat/completions`, `/v1/completions`, `/v1/audio/transcriptions`,
//! `/v1/models`, `/health`.
//!
//! Contract: no request ends the server, and each is bounded before memory is taken for it: head, body, time to send it, tokens,
//! requests that wait, connections. Each request is read in a thread of its own, and the model answers in another. Requests that wait
//! when it is free are answered together, up to a number; those that come meanwhile wait for the end of these. A client that goes stops
//! its answer.

mod batch;
mod engine;
mod exchange;
mod http;
mod random;
mod reading;
mod server;
mod stream;
mod transcribe;

pub use engine::Engine;
pub use reading::Limits;
pub use server::Server;
