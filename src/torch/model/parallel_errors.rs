//! The reasons why ranks cannot share a model as a layout asks.

/// The reasons why the tokens of a decoder's rows cannot be split among ranks. Keys are those of `config.json`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextParallelError {
    #[error("this model does not support context parallelism: set context_parallel to 1")]
    Model,
    #[error(
        "layer {layer} mixes tokens by {what}, which needs all tokens before its own on one rank: set context_parallel to 1"
    )]
    Mixer { layer: usize, what: &'static str },
    #[error(
        "tokens of a picture or of a prompt attend to later tokens, which needs whole rows on one rank: set context_parallel to 1"
    )]
    Ahead,
    #[error("train.preference compares whole answers: set context_parallel to 1")]
    Pairs,
    #[error("multi-token prediction heads read the next token as well: set context_parallel to 1, or train none")]
    Mtp,
    #[error(
        "rotary embeddings that depend on a document's length, with pictures in it, need the whole document on one rank: set \
         context_parallel to 1"
    )]
    Rope,
    #[error(
        "{heads} heads cannot be sharded over context_parallel={ranks}: their number must be a multiple of it with \
         context_attention=ulysses; use ring"
    )]
    Heads { heads: i64, ranks: usize },
    #[error("a diffusion transformer only supports ulysses: set context_attention to ulysses")]
    Ring,
    #[error(
        "{heads} heads cannot be sharded over context_parallel x tensor_parallel={parts}: their number must be a multiple of it"
    )]
    AllHeads { heads: i64, parts: usize },
}

/// The reasons why a decoder's layers cannot be split among tensor-parallel ranks. Keys are those of `config.json`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorParallelError {
    #[error("{key} is {size}, which tensor_parallel={ranks} does not divide")]
    Tensor { key: &'static str, size: i64, ranks: usize },
    #[error("{key} is {size}, which is less than {axis}={ranks}")]
    TooFew { key: &'static str, size: i64, axis: &'static str, ranks: usize },
    #[error(
        "sequence_parallel is not supported by diffusion transformers: set it to false; context_parallel with \
         context_attention=ulysses splits their tokens in all layers"
    )]
    Sequence,
    #[error("tensor_parallel is not implemented for {what}: set it to 1")]
    Unsupported { what: &'static str },
}
