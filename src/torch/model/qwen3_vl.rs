//! Qwen3-VL's encoder (`Qwen3VLVisionModel`): a vision transformer of native resolution, a merger that makes one
//! feature of each block of patches, and DeepStack mergers after some blocks. Its decoder is in `qwen3`.
//!
//! Shapes: P patches, N features, D hidden size, H heads, C head size, X values of a patch.

use std::rc::Rc;

use loongforge_core::message::Grid;
use tch::{Kind, Tensor};

use super::interface::{EncoderFamily, EncoderModel, EncoderTape};
use super::vision_config::VisionConfig;
use crate::nn::{
    Gelu, GeluMlp, Init, LayerNorm, Linear, PackedAttention, ParamId, ParamSpec, ParamStore, Rope, Scope,
    frame_cu_seqlens, interpolation, patch_positions,
};
use crate::tape::{Policy, Slot, Tape};

const PREFIX: &str = "model.visual.";
/// Fixed in the reference, not configured.
const LAYER_NORM_EPS: f64 = 1e-6;

struct Embed {
    weight_DX: Tensor,
    bias: Tensor,
    positions: Tensor,
}

struct Attention {
    norm: LayerNorm,
    qkv: Linear,
    proj: Linear,
    head_dim: i64,
}

struct Mlp {
    norm: LayerNorm,
    mlp: GeluMlp,
}

struct Merger {
    norm: LayerNorm,
    mlp: GeluMlp,
    /// Values of a merged block.
    inner: i64,
    /// Whether the norm comes after the merge.
    norm_merged: bool,
}

/// A part of the model with the parameters it uses.
struct Part<T> {
    part: Rc<T>,
    ids: Vec<ParamId>,
}

/// The encoder, on the parameters of a store.
pub struct VisionEncoder {
    config: VisionConfig,
    kind: Kind,
    embed: Part<Embed>,
    blocks: Vec<(Part<Attention>, Part<Mlp>)>,
    merger: Part<Merger>,
    deepstack: Vec<Part<Merger>>,
}

impl VisionEncoder {
    /// The parameters, under their names in `model.safetensors`.
    pub fn specs(config: &VisionConfig) -> Vec<ParamSpec> {
        let (width, std) = (config.hidden_size, config.initializer_range);
        let kernel = [width, config.in_channels, config.temporal_patch_size, config.patch_size, config.patch_size];
        let named = |name: &str, shape: &[i64], init| ParamSpec::new(format!("{PREFIX}{name}"), shape, init);
        let mut specs = vec![
            named("patch_embed.proj.weight", &kernel, Init::Normal(std)),
            named("patch_embed.proj.bias", &[width], Init::Zeros),
            named("pos_embed.weight", &[config.num_position_embeddings, width], Init::Normal(std)),
        ];
        for block in 0..config.depth {
            let prefix = format!("{PREFIX}blocks.{block}.");
            specs.extend(LayerNorm::specs(&prefix, "norm1", width));
            specs.extend(LayerNorm::specs(&prefix, "norm2", width));
            specs.extend(Linear::specs(&prefix, "attn.qkv", width, 3 * width, true, std));
            specs.extend(Linear::specs(&prefix, "attn.proj", width, width, true, std));
            specs.extend(GeluMlp::specs(&format!("{prefix}mlp."), width, config.intermediate_size, width, std));
        }
        let inner = width * config.spatial_merge_size.pow(2);
        let mut merger = |name: String, norm_width| {
            let prefix = format!("{PREFIX}{name}.");
            specs.extend(LayerNorm::specs(&prefix, "norm", norm_width));
            specs.extend(GeluMlp::specs(&prefix, inner, inner, config.out_hidden_size, std));
        };
        merger("merger".into(), width);
        (0..config.deepstack_visual_indexes.len()).for_each(|i| merger(format!("deepstack_merger_list.{i}"), inner));
        specs
    }

    /// Panics where the store was not made from this config's `specs`.
    pub fn new(config: &VisionConfig, params: &ParamStore) -> VisionEncoder {
        let embed = part(params, "", |scope| Embed {
            weight_DX: scope.take("patch_embed.proj.weight"),
            bias: scope.take("patch_embed.proj.bias"),
            positions: scope.take("pos_embed.weight"),
        });
        let block = |block: i64| {
            let prefix = format!("blocks.{block}.");
            let attention = part(params, &prefix, |scope| Attention {
                norm: LayerNorm::new(scope, "norm1", LAYER_NORM_EPS),
                qkv: Linear::new(scope, "attn.qkv"),
                proj: Linear::new(scope, "attn.proj"),
                head_dim: config.hidden_size / config.num_heads,
            });
            let mlp = part(params, &prefix, |scope| Mlp {
                norm: LayerNorm::new(scope, "norm2", LAYER_NORM_EPS),
                mlp: GeluMlp::new(scope, "mlp.", config.hidden_act),
            });
            (attention, mlp)
        };
        let merger = |name: String, norm_merged| {
            part(params, &format!("{name}."), |scope| Merger {
                norm: LayerNorm::new(scope, "norm", LAYER_NORM_EPS),
                mlp: GeluMlp::new(scope, "", Gelu::Exact),
                inner: config.hidden_size * config.spatial_merge_size.pow(2),
                norm_merged,
            })
        };
        let num_deepstack = config.deepstack_visual_indexes.len();
        VisionEncoder {
            kind: embed.part.bias.kind(),
            embed,
            blocks: (0..config.depth).map(block).collect(),
            merger: merger("merger".into(), false),
            deepstack: (0..num_deepstack).map(|i| merger(format!("deepstack_merger_list.{i}"), true)).collect(),
            config: config.clone(),
        }
    }

    /// The tape for pictures of these sizes, each a multiple of the merge size in height and width.
    pub fn tape(&self, grids: &[Grid], policy: Policy) -> EncoderTape {
        let (merge, device) = (self.config.spatial_merge_size as u32, self.embed.part.bias.device());
        let side = self.config.side() as u32;
        let head_dim = self.config.hidden_size / self.config.num_heads;
        let rope = Rope::axial(&patch_positions(grids, merge, device), head_dim, self.config.rope_theta);
        let (rope, table) = (Rc::new(rope), Rc::new(interpolation(grids, merge, side, device)));
        let frames = Rc::new(PackedAttention::new(&frame_cu_seqlens(grids), false, device));

        let mut tape = Tape::new();
        let pixels = tape.input(false);
        let (embed, kind) = (self.embed.part.clone(), self.kind);
        let forward = move |reads: &[Tensor]| vec![embed.forward(&reads[0].to_kind(kind), &table)];
        let mut x = tape.run("embed", &self.embed.ids, policy, &[pixels], 1, forward)[0];
        let mut deep = Vec::new();
        for (number, (attention, mlp)) in self.blocks.iter().enumerate() {
            let (branch, rope, frames) = (attention.part.clone(), rope.clone(), frames.clone());
            let forward = move |reads: &[Tensor]| vec![branch.forward(&reads[0], &rope, &frames)];
            let y = tape.run(format!("block {number} attention"), &attention.ids, policy, &[x], 1, forward)[0];
            x = tape.add(x, y);
            let branch = mlp.part.clone();
            let forward = move |reads: &[Tensor]| vec![branch.mlp.forward(&branch.norm.forward(&reads[0]))];
            let y = tape.run(format!("block {number} mlp"), &mlp.ids, policy, &[x], 1, forward)[0];
            x = tape.add(x, y);
            let listed = self.config.deepstack_visual_indexes.iter().position(|index| *index == number as i64);
            if let Some(listed) = listed {
                deep.push(self.deepstack[listed].merge(&mut tape, x, format!("deepstack {listed}"), policy));
            }
        }
        let mut outputs = vec![self.merger.merge(&mut tape, x, "merger".into(), policy)];
        outputs.extend(deep);
        EncoderTape { tape: Rc::new(tape), pixels, outputs }
    }
}

impl Part<Merger> {
    fn merge(&self, tape: &mut Tape, x: Slot, name: String, policy: Policy) -> Slot {
        let merger = self.part.clone();
        tape.run(name, &self.ids, policy, &[x], 1, move |reads| vec![merger.forward(&reads[0])])[0]
    }
}

fn part<T>(params: &ParamStore, prefix: &str, build: impl FnOnce(&Scope<'_>) -> T) -> Part<T> {
    let scope = Scope::new(params, format!("{PREFIX}{prefix}"));
    Part { part: Rc::new(build(&scope)), ids: scope.into_ids() }
}

impl Embed {
    /// Patches `[P, X]` to `[P, D]`. The reference's convolution steps by its own size: it is a linear map.
    fn forward(&self, pixels_PX: &Tensor, (entries_P4, weights_P4): &(Tensor, Tensor)) -> Tensor {
        let patches_PD = pixels_PX.linear(&self.weight_DX.flatten(1, -1), Some(&self.bias));
        let table_P4D = Tensor::embedding(&self.positions, entries_P4, -1, false, false);
        let positions_PD = (table_P4D * weights_P4.unsqueeze(-1)).sum_dim_intlist(1i64, false, None);
        let kind = patches_PD.kind();
        patches_PD + positions_PD.to_kind(kind)
    }
}

impl Attention {
    /// The attention branch, without the residual: `[P, D]` to `[P, D]`.
    fn forward(&self, x_PD: &Tensor, rope: &Rope, frames: &PackedAttention) -> Tensor {
        let qkv_P3HC = self.qkv.forward(&self.norm.forward(x_PD)).unflatten(-1, [3, -1, self.head_dim]);
        let heads = qkv_P3HC.unbind(1);
        let (q_PHC, k_PHC) = (rope.apply(&heads[0]), rope.apply(&heads[1]));
        self.proj.forward(&frames.forward(&q_PHC, &k_PHC, &heads[2]))
    }
}

impl Merger {
    /// `[P, D]` to `[N, D of the decoder]`.
    fn forward(&self, x_PD: &Tensor) -> Tensor {
        let merged = |x: &Tensor| x.view([-1, self.inner]);
        let x = if self.norm_merged { self.norm.forward(&merged(x_PD)) } else { merged(&self.norm.forward(x_PD)) };
        self.mlp.forward(&x)
    }
}

impl EncoderFamily for VisionConfig {
    fn specs(&self) -> Vec<ParamSpec> {
        VisionEncoder::specs(self)
    }

    fn build(&self, params: &ParamStore, policy: Policy) -> Box<dyn EncoderModel> {
        let encoder = VisionEncoder::new(self, params);
        Box::new(move |grids: &[Grid]| encoder.tape(grids, policy))
    }

    fn num_outputs(&self) -> usize {
        1 + self.deepstack_visual_indexes.len()
    }

    fn patch_dim(&self) -> i64 {
        VisionConfig::patch_dim(self)
    }

    fn num_features(&self, grid: Grid) -> usize {
        grid.num_patches() / self.spatial_merge_size.pow(2) as usize
    }
}
