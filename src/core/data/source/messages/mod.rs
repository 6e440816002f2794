//! The `messages` format: one conversation a line, as Hugging Face's chat data and LLaMA-Factory write it.
//!
//! ```json
//! {"messages": [{"role": "user", "content": "<image>Read the number."},
//!               {"role": "assistant", "content": "4071"}], "images": ["img/000001.png"]}
//! ```
//!
//! Content is a string, in which `<image>` stands for the next of `images` and, where the line has `videos`, `<video>`
//! for the next of them; or a list of parts `{"type": "text", "text": …}`, `{"type": "image", "image": …}` and
//! `{"type": "video", "video": …, "fps": …}`. A video is a folder of pictures, a list of pictures, an animated GIF or an MP4 file;
//! `fps` is the rate of those pictures.

mod conversation;
mod listed;
mod loss;
mod parse;
mod raw;

pub use conversation::{Conversation, MediaSource, Part, Turn, Written};
pub use listed::{AUDIO_PLACEHOLDER, IMAGE_PLACEHOLDER, VIDEO_PLACEHOLDER};
