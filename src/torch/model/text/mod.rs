//! Text towers: hidden states of an encoder (T5, UMT5, CLIP) or of a decoder, as features of a caption. A caption is an item of as
//! many rows as it has tokens, with the id of a token in each.

mod clip;
mod decoder;
mod encoder;
pub(super) mod parts;
mod pictured;
mod relative;
mod t5;
mod t5_tower;

pub use encoder::{Pictures, TextConfig, TextTowerConfig};
pub(super) use pictured::{head_of, picture_of, take_patches};
pub use t5::T5Config;
