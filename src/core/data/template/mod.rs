//! Chat templates: messages to one string, as Hugging Face's `apply_chat_template` renders them.
//!
//! A template comes with a model somebody else made, so it runs with bounded work, depth and output and reads no files.
//! What it makes in between is bounded by work alone: one that doubles a text again and again takes memory.

mod answers;
mod built_in;
mod chat;
mod environment;
#[cfg(test)]
mod oracle;
mod output;
mod python;
#[cfg(test)]
mod tests;

pub use built_in::{FLORENCE2, QWEN, built_in, qwen_with_sound};
pub use chat::{ChatTemplate, NAMED_TEMPLATES, TOOLS_TEMPLATE};
