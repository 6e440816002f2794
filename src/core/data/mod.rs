//! Samples: read, rendered, tokenized, cut into patches — plain buffers, no tensors.
//!
//! ```text
//! files ─ lines ─ messages ─ template ─ tokenizer ─┐
//!                          └ decode ── pixels ─────┴ processor ─ sample        dataset: position → sample
//! ```
//!
//! A sample that cannot be used is a [`BadSample`], never the end of a run by itself.

mod bad;
mod dataset;
mod decode;
pub mod digits;
mod error;
mod lines;
mod messages;
mod mixture;
mod pixels;
mod positions;
mod processor;
mod rng;
mod sample;
mod template;
mod tokenizer;

pub use bad::BadSampleList;
pub use dataset::{Dataset, Question, Questions};
pub use decode::open_rgb;
pub use error::{BadSample, DataError};
pub use messages::{Conversation, IMAGE_PLACEHOLDER, Part, Turn};
pub use mixture::{Mixture, Place};
pub use pixels::{ImageProcessor, smart_resize};
pub use positions::mrope_position_ids;
pub use processor::Processor;
pub use rng::{Rng, permute};
pub use sample::{IGNORE_INDEX, Image, Sample};
pub use template::ChatTemplate;
pub use tokenizer::{SpecialTokens, Token, Tokenizer};
