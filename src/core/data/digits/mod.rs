//! The quick start's task: read a handwritten number from a picture of varying size. The pictures are composed from
//! real scans (see `ATTRIBUTION.md`), and the model that learns it is a tiny Qwen3-VL in Hugging Face layout.

mod compose;
mod model;
mod scans;

pub use compose::{Digits, PROMPT, compose};
pub(super) use compose::{digit_png, png};
pub(super) use model::{MAX_POSITION_EMBEDDINGS, generation_config, preprocessor_config};
pub use model::{MODEL, ModelSize, write_model, write_model_with};
pub(crate) use model::{Tokens, tokenizer, tokenizer_config, write_model_files};
pub(super) use scans::{SIDE, Scan, Scans};
