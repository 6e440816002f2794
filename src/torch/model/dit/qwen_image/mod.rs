//! Qwen-Image: a prompt, and pictures to edit where there are some, to a picture.

mod block;
mod config;
mod embed;
mod layout;
mod model;
#[cfg(test)]
mod tests;

pub use config::QwenImageConfig;
pub(super) use model::QwenImage;
