//! One file a family: its `config.json` into the data of a decoder and an encoder. The registry names them.

mod common;
pub(super) mod custom;
mod deepseek;
pub(super) mod deepseek_v2;
pub(super) mod deepseek_v3;
pub(super) mod deepseek_v32;
pub(super) mod ernie4_5;
pub(super) mod ernie4_5_moe;
pub(super) mod ernie4_5_vl;
pub(super) mod ernie4_5_vl_text;
mod experts;
pub(super) mod glm_moe_dsa;
pub(super) mod internlm2;
pub(super) mod internvl;
pub(super) mod kimi_k25;
pub(super) mod llama;
pub(super) mod llava_onevision1_5;
pub(super) mod mimo;
pub(super) mod minimax_m2;
pub(super) mod qwen;
pub(super) mod qwen2;
pub(super) mod qwen2_5_vl;
pub(super) mod qwen3;
pub(super) mod qwen3_5;
pub(super) mod qwen3_5_moe;
pub(super) mod qwen3_moe;
pub(super) mod qwen3_next;
pub(super) mod qwen3_vl;
pub(super) mod qwen3_vl_moe;
mod vision;

pub(super) use common::Place;
