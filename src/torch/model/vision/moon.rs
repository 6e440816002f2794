//! MoonViT-3D and its patch merger (`Kimi_K25VisionModel`): learned positions and sinusoids of frames, complex rotary
//! embeddings, attention among all frames of an item, and their mean at the end.

use super::encoder::VisionConfig;
use super::keys::{activation, axial_theta, check_heads, square};
use super::layout::{PatchOrder, Span};
use super::projector::{MergeNorm, ProjectorConfig, ProjectorKind};
use super::tower_config::{PatchEmbed, PositionTable, TowerConfig};
use crate::model::keys::{Keys, ModelConfigError};
use crate::model::tower_blocks::{AxialOrder, AxialRope, BlockConfig, MlpNames, TowerNorm};
use crate::nn::{Activation, Resampling};
use serde_json::json;

/// Fixed in the reference, not configured.
const NORM: TowerNorm = TowerNorm::Layer(1e-5);

/// Returns whether a config is a published one: its checkpoint has the patch embedding elsewhere than transformers writes it. The configs
/// differ as well: published ones call the width `vt_hidden_size`.
fn is_published(keys: &Keys<'_>) -> bool {
    keys.value("vt_hidden_size").is_some()
}

/// Returns the encoder of `Kimi_K25VisionConfig` or `MoonViT3dConfig`, its names under `prefix` and `projector`; `eps` is of the
/// projector's norm.
pub(in crate::model) fn read(
    keys: &Keys<'_>,
    prefix: &str,
    projector: &str,
    eps: f64,
    outputs: i64,
) -> Result<VisionConfig, ModelConfigError> {
    let published = is_published(keys);
    let name = |plain: &'static str, published_name: &'static str| if published { published_name } else { plain };
    let (width, num_heads) = (
        keys.size(name("hidden_size", "vt_hidden_size"))?,
        keys.size(name("num_attention_heads", "vt_num_attention_heads"))?,
    );
    check_heads(keys, ("hidden_size", width), "num_attention_heads", num_heads, true)?;
    keys.only("merge_type", &[json!("sd2_tpool")])?;
    keys.only("pos_emb_type", &[json!("divided_fixed")])?;
    keys.only("video_attn_type", &[json!("spatial_temporal")])?;
    keys.only("mm_projector_type", &[json!("patchmerger")])?;
    keys.only("projector_hidden_act", &[json!("gelu")])?;
    keys.only("mm_hidden_size", &[json!(width)])?;
    let side = keys.size_or(name("pos_emb_height", "init_pos_emb_height"))?.unwrap_or(64);
    let columns = keys.size_or(name("pos_emb_width", "init_pos_emb_width"))?.unwrap_or(64);
    if side != columns {
        let key = name("pos_emb_width", "init_pos_emb_width");
        return Err(keys.inconsistent(key, columns, format!("must equal the table's height ({side})")));
    }
    let merge = square(keys, "merge_kernel_size")?.unwrap_or(2);
    let patch_size = square(keys, "patch_size")?.unwrap_or(14);
    let initializer_range = keys.number_or("initializer_range")?.unwrap_or(0.02);
    let embed = PatchEmbed {
        name: name("encoder.patch_embed.proj", "patch_embed.proj"),
        kernel: vec![3, patch_size, patch_size],
        bias: true,
    };
    let inner = keys.size(name("intermediate_size", "vt_intermediate_size"))?;
    let block = BlockConfig {
        norms: ["norm0", "norm1"],
        qkv: vec!["wqkv"],
        o: "wo",
        mlp: MlpNames::Plain(["mlp.fc0", "mlp.fc1"]),
        activation: activation(keys, "hidden_act", Activation::GeluTanh)?,
        ..BlockConfig::new(width, num_heads, inner, NORM, initializer_range)
    };
    let tower = TowerConfig {
        order: PatchOrder::Raster,
        positions: Some(PositionTable {
            name: "patch_embed.pos_emb.weight",
            shape: vec![side, side, width],
            side,
            with_class: false,
            resampling: Resampling::Bicubic,
        }),
        frame_sinusoids: true,
        block_prefix: "encoder.blocks.",
        rope: Some(AxialRope { theta: axial_theta(keys)?, order: AxialOrder::Interleaved }),
        span: Span::Item,
        final_norm: Some(("encoder.final_layernorm", NORM)),
        frame_mean: true,
        ..TowerConfig::new(prefix, embed, merge, keys.size(name("num_hidden_layers", "vt_num_hidden_layers"))?, block)
    };
    let projector = ProjectorConfig {
        prefix: projector.into(),
        inputs: width,
        merge,
        outputs,
        kind: ProjectorKind::Mlp {
            norm: Some(MergeNorm { name: "pre_norm", norm: TowerNorm::Layer(eps), merged: false }),
            linears: ["proj.0", "proj.2"],
            inner: width * merge.pow(2),
            by_channel: false,
            activation: Activation::Gelu,
        },
        initializer_range,
    };
    Ok(VisionConfig { tower, projector, deepstack: Vec::new() })
}
