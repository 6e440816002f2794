//! CLIP's text encoder (`CLIPTextModel`, also the one within `CLIPTextModelWithProjection` and `CLIPModel`): learned positions, causal
//! attention, and a last norm. The pooled and projected state of a text is no feature here.
//!
//! Shapes: S tokens of all texts, D width of a state.

use std::rc::Rc;

use tch::{Device, Kind, Tensor};

use crate::device::upload;
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::{Attention, BlockConfig, Mlp, Norm, Part, TowerNorm, beside};
use crate::nn::{Activation, Mask, PackedAttention};
use crate::params::{Init, ParamSpec, ParamStore};
use crate::tape::{Policy, Slot, Tape};

const TOKENS: &str = "embeddings.token_embedding.weight";
const POSITIONS: &str = "embeddings.position_embedding.weight";
const FINAL_NORM: &str = "final_layer_norm";

/// An encoder of texts of at most `max_tokens` tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipTextConfig {
    /// The prefix of all names.
    pub prefix: String,
    pub vocab_size: i64,
    /// Rows of the table of positions.
    pub max_tokens: i64,
    pub num_layers: usize,
    pub block: BlockConfig,
}

/// Returns the encoder of `CLIPTextConfig`, its names under `prefix`.
pub(super) fn read(keys: &Keys<'_>, prefix: &str) -> Result<ClipTextConfig, ModelConfigError> {
    let size = |key: &str, default: i64| Ok(keys.size_or(key)?.unwrap_or(default));
    let (width, num_heads) = (size("hidden_size", 512)?, size("num_attention_heads", 8)?);
    if width % num_heads != 0 {
        let must = format!("must be a multiple of num_attention_heads ({num_heads})");
        return Err(keys.inconsistent("hidden_size", width, must));
    }
    keys.no_dropout("attention_dropout")?;
    let norm = TowerNorm::Layer(keys.number_or("layer_norm_eps")?.unwrap_or(1e-5));
    let initializer_range = keys.number_or("initializer_range")?.unwrap_or(0.02);
    let block = BlockConfig {
        norms: ["layer_norm1", "layer_norm2"],
        qkv: vec!["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        o: "self_attn.out_proj",
        activation: keys.activation_or("hidden_act")?.unwrap_or(Activation::QuickGelu),
        ..BlockConfig::new(width, num_heads, size("intermediate_size", 2048)?, norm, initializer_range)
    };
    Ok(ClipTextConfig {
        prefix: format!("{prefix}text_model."),
        vocab_size: size("vocab_size", 49408)?,
        max_tokens: size("max_position_embeddings", 77)?,
        num_layers: size("num_hidden_layers", 12)? as usize,
        block,
    })
}

impl ClipTextConfig {
    fn layer_prefix(&self, number: usize) -> String {
        format!("{}encoder.layers.{number}.", self.prefix)
    }

    /// Returns the parameters of the first `num_layers` layers, under their names in the checkpoint; with the last norm or without.
    pub(super) fn specs(&self, num_layers: usize, with_norm: bool) -> Vec<ParamSpec> {
        let (width, std) = (self.block.width, self.block.initializer_range);
        let table = |name, rows| ParamSpec::new(format!("{}{name}", self.prefix), &[rows, width], Init::Normal(std));
        let mut specs = vec![table(TOKENS, self.vocab_size), table(POSITIONS, self.max_tokens)];
        specs.extend((0..num_layers).flat_map(|number| self.block.specs(&self.layer_prefix(number))));
        if with_norm {
            specs.extend(self.block.norm.specs(&self.prefix, FINAL_NORM, width));
        }
        specs
    }
}

/// The encoder of a config, up to a layer.
pub(super) struct ClipTextTower {
    is_split: bool,
    /// The tables of tokens and of positions.
    tables: Part<[Tensor; 2]>,
    blocks: Vec<(Part<Attention>, Part<Mlp>)>,
    /// `None` where the last states are not wanted.
    norm: Option<Part<Norm>>,
    device: Device,
}

impl ClipTextTower {
    /// Panics where the store was not made from this config's `specs` for as many layers.
    pub fn new(config: &ClipTextConfig, num_layers: usize, with_norm: bool, params: &ParamStore) -> ClipTextTower {
        let (prefix, block) = (config.prefix.as_str(), &config.block);
        let layer = |number: usize| {
            let prefix = config.layer_prefix(number);
            let attention = Part::new(params, prefix.as_str(), |scope| block.attention(scope));
            (attention, Part::new(params, prefix, |scope| block.mlp(scope)))
        };
        ClipTextTower {
            is_split: block.parallel.tp > 1,
            tables: Part::new(params, prefix, |scope| [TOKENS, POSITIONS].map(|name| scope.take(name))),
            blocks: (0..num_layers).map(layer).collect(),
            norm: with_norm.then(|| Part::new(params, prefix, |scope| block.norm.build(scope, FINAL_NORM))),
            device: params.flat().device(),
        }
    }

    /// Works like [`super::t5_tower::T5Tower::record`], for texts of no more tokens than there are positions.
    pub fn record(&self, tape: &mut Tape, ends: &[usize], ids: Slot, policy: Policy) -> Vec<Slot> {
        let texts = Rc::new(PackedAttention::new(ends, Mask::Causal, self.device));
        let positions: Vec<i64> = ends.windows(2).flat_map(|two| 0..(two[1] - two[0]) as i64).collect();
        let (tables, positions) = (self.tables.part.clone(), upload(&Tensor::from_slice(&positions), self.device));
        let look_up = move |reads: &[Tensor]| {
            let of = |table: &Tensor, rows: &Tensor| Tensor::embedding(table, rows, -1, false, false);
            vec![of(&tables[0], &reads[0].flatten(0, -1).to_kind(Kind::Int64)) + of(&tables[1], &positions)]
        };
        // What is not in a block all ranks compute alike.
        tape.set_alike(self.is_split);
        let mut x = tape.run("embed", &self.tables.ids, policy, &[ids], 1, look_up)[0];
        tape.set_alike(false);
        let mut states = vec![x];
        for (number, (attention, mlp)) in self.blocks.iter().enumerate() {
            let (branch, texts) = (attention.part.clone(), texts.clone());
            let forward = move |reads: &[Tensor]| vec![branch.forward(&reads[0], None, &texts)];
            x = beside(tape, x, self.is_split, |tape, x| {
                tape.run(format!("block {number} attention"), &attention.ids, policy, &[x], 1, forward)[0]
            });
            let branch = mlp.part.clone();
            let forward = move |reads: &[Tensor]| vec![branch.forward(&reads[0])];
            x = beside(tape, x, self.is_split, |tape, x| {
                tape.run(format!("block {number} mlp"), &mlp.ids, policy, &[x], 1, forward)[0]
            });
            states.push(x);
        }
        if let Some(norm) = &self.norm {
            tape.set_alike(self.is_split);
            let part = norm.part.clone();
            let forward = move |reads: &[Tensor]| vec![part.forward(&reads[0])];
            *states.last_mut().expect("the embeddings") = tape.run("norm", &norm.ids, policy, &[x], 1, forward)[0];
        }
        states
    }
}
