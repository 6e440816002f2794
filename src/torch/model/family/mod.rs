//! One file a family: its `config.json` into the data of a decoder and an encoder. The registry names them.

mod common;
mod experts;
pub(super) mod internlm2;
pub(super) mod llama;
pub(super) mod mimo;
pub(super) mod minimax_m2;
pub(super) mod qwen;
pub(super) mod qwen2;
pub(super) mod qwen3;
pub(super) mod qwen3_moe;
pub(super) mod qwen3_vl;

pub(super) use common::Place;
