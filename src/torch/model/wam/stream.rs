//! One stream on its parameters: Wan's blocks at a width of its own, with what they are told of times and texts.
//!
//! Shapes: R rows, D width of the stream, K rows of text.

use tch::Tensor;

use super::config::WamConfig;
use crate::model::dit::{FeedForward, PromptAttention, SelfAttention, Tables, Time, TwoMaps, WanConfig, block_specs};
use crate::model::tower_blocks::Part;
use crate::params::{ParamSpec, ParamStore};

/// A stream without what comes before its blocks and behind them.
pub(super) struct Stream {
    pub name: &'static str,
    /// Channels of what a time is told as.
    pub freq_dim: i64,
    pub time: Part<Time>,
    pub text: Part<TwoMaps>,
    pub blocks: Vec<Block>,
}

/// A block: attention over both streams, attention to the text, and a feed-forward.
pub(super) struct Block {
    pub attention: Part<SelfAttention>,
    pub prompt: Part<PromptAttention>,
    pub mlp: Part<FeedForward>,
}

impl Stream {
    /// Declares the parameters of the stream `name`: the embeddings of times and texts, and the blocks.
    pub fn specs(config: &WamConfig, own: &WanConfig, name: &str) -> Vec<ParamSpec> {
        let mut specs = [Time::specs(own), TwoMaps::specs_of_text(own)].concat();
        specs.extend((0..own.num_layers).flat_map(|number| block_specs(own, &config.block_prefix(number, name))));
        specs
    }

    /// Panics where the store lacks one of the parameters.
    pub fn new(config: &WamConfig, own: &WanConfig, name: &'static str, params: &ParamStore) -> Stream {
        let block = |number: usize| {
            let prefix = config.block_prefix(number, name);
            Block {
                attention: Part::new(params, prefix.as_str(), |scope| SelfAttention::new(scope, own)),
                prompt: Part::new(params, prefix.as_str(), |scope| PromptAttention::new(scope, own)),
                mlp: Part::new(params, prefix.as_str(), |scope| FeedForward::new(scope, own)),
            }
        };
        Stream {
            name,
            freq_dim: own.freq_dim,
            time: Part::new(params, own.prefix.as_str(), |scope| Time::new(scope, own)),
            text: Part::new(params, own.prefix.as_str(), |scope| TwoMaps::of_text(scope, own)),
            blocks: (0..own.num_layers).map(block).collect(),
        }
    }
}

impl Block {
    /// Returns the rows `[R, D]` behind attention `y` `[R, H·C]` of their heads, text `[K, D]` and feed-forward, without gradients.
    pub fn finish(&self, x: &Tensor, y: &Tensor, modulations: &Tensor, text: &Tensor, tables: &Tables) -> Tensor {
        let x = x + self.attention.part.finish(y, modulations, tables);
        let x = &x + self.prompt.part.forward(&x, text, None, tables);
        &x + self.mlp.part.forward(&x, modulations, tables)
    }
}
