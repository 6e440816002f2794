//! The projectors from a tower's states to features of the decoder's width. Any projector goes with any tower.
//!
//! Shapes: P states in merge order, D their width, B values of a block (`merge² · D`), N features, E width of the
//! decoder.

use std::rc::Rc;

use loongforge_core::message::Grid;
use tch::Tensor;

use super::resampler::Resampler;
use crate::model::tower_blocks::{Norm, Part, TowerNorm};
use crate::nn::{Activation, Linear};
use crate::params::{Init, ParamSpec, ParamStore, Scope};
use crate::tape::{Policy, Slot, Tape};

/// A projector. Names are relative to `prefix`.
#[derive(Clone, Debug, PartialEq)]
pub struct ProjectorConfig {
    pub prefix: String,
    /// Width of a state.
    pub inputs: i64,
    /// Side of the block of states that becomes one feature.
    pub merge: i64,
    /// Width of a feature.
    pub outputs: i64,
    pub kind: ProjectorKind,
    pub initializer_range: f64,
}

/// Says what a projector computes.
#[derive(Clone, Debug, PartialEq)]
pub enum ProjectorKind {
    /// Two linear maps of a whole block. With the norm before the merge it is Qwen's and Kimi's patch merger, with the
    /// norm after it DeepStack's and, since states come in merge order, InternVL's pixel shuffle. `by_channel` is true if the
    /// values of a block are in the order of `F.pixel_unshuffle`: channel by channel, not state by state.
    Mlp { norm: Option<MergeNorm>, linears: [&'static str; 2], inner: i64, activation: Activation, by_channel: bool },
    /// One linear map of a whole block.
    Linear { name: &'static str, bias: bool },
    /// The mean of a block, a norm and a matrix `[inputs, outputs]`, which is no module in the reference (Gemma 3).
    Mean { norm: &'static str, eps: f64, matrix: &'static str },
    /// ERNIE's resampler: a stack over blocks, one over pairs of frames, and a linear map.
    Resampler { eps: f64, after_eps: f64 },
    /// Features are the states.
    None,
}

/// A projector's norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MergeNorm {
    pub name: &'static str,
    pub norm: TowerNorm,
    /// True if it is over whole blocks, not over single states.
    pub merged: bool,
}

#[allow(clippy::large_enum_variant, reason = "one a model")]
enum Kind {
    Mlp { norm: Option<(Norm, bool)>, linears: [Linear; 2], activation: Activation, by_channel: bool },
    Linear(Linear),
    Mean { norm: Norm, matrix_DE: Tensor },
    Resampler(Resampler),
    None,
}

/// The projector of a config, on its parameters.
pub struct Projector {
    block: i64,
    merge: i64,
    part: Part<Kind>,
}

impl ProjectorConfig {
    /// Returns LLaVA's projector (`LlavaMultiModalProjector`): two maps of a block of states, without a norm.
    pub fn two_maps(
        prefix: &str,
        [inputs, outputs]: [i64; 2],
        merge: i64,
        activation: Activation,
        initializer_range: f64,
    ) -> ProjectorConfig {
        let linears = ["linear_1", "linear_2"];
        let kind = ProjectorKind::Mlp { norm: None, linears, inner: outputs, activation, by_channel: false };
        ProjectorConfig { prefix: prefix.into(), inputs, merge, outputs, kind, initializer_range }
    }

    /// Returns the config of no projector: features are states of this width.
    pub fn none(prefix: &str, width: i64) -> ProjectorConfig {
        ProjectorConfig {
            prefix: prefix.into(),
            inputs: width,
            merge: 1,
            outputs: width,
            kind: ProjectorKind::None,
            initializer_range: 0.0,
        }
    }

    /// Returns the merger of Qwen2-VL, Qwen2.5-VL and RICE (`PatchMerger`): a norm of each patch, then two maps over the patches of a
    /// square of side `merge`. `inputs` and `outputs` are widths.
    pub fn patch_merger(
        prefix: &str,
        [inputs, outputs]: [i64; 2],
        merge: i64,
        norm: TowerNorm,
        initializer_range: f64,
    ) -> ProjectorConfig {
        ProjectorConfig {
            prefix: prefix.into(),
            inputs,
            merge,
            outputs,
            kind: ProjectorKind::Mlp {
                norm: Some(MergeNorm { name: "ln_q", norm, merged: false }),
                linears: ["mlp.0", "mlp.2"],
                inner: inputs * merge.pow(2),
                by_channel: false,
                activation: Activation::Gelu,
            },
            initializer_range,
        }
    }

    /// Returns the number of values of a block.
    pub fn block(&self) -> i64 {
        self.inputs * self.merge.pow(2)
    }

    /// Returns the number of features of an item whose states have this size.
    pub fn num_features(&self, grid: Grid) -> usize {
        let pairs = if let ProjectorKind::Resampler { .. } = self.kind { (grid.t / 2).max(1) } else { grid.t };
        (pairs as usize) * (grid.h * grid.w) as usize / self.merge.pow(2) as usize
    }

    /// Returns the parameters, under their names in the checkpoint.
    pub fn specs(&self) -> Vec<ParamSpec> {
        let (prefix, block, std) = (self.prefix.as_str(), self.block(), self.initializer_range);
        match &self.kind {
            ProjectorKind::Mlp { norm, linears: [first, second], inner, .. } => {
                let width = |norm: &MergeNorm| if norm.merged { block } else { self.inputs };
                let mut specs = norm.map_or(Vec::new(), |norm| norm.norm.specs(prefix, norm.name, width(&norm)));
                specs.extend(Linear::specs(prefix, first, block, *inner, true, std));
                specs.extend(Linear::specs(prefix, second, *inner, self.outputs, true, std));
                specs
            }
            ProjectorKind::Linear { name, bias } => Linear::specs(prefix, name, block, self.outputs, *bias, std),
            ProjectorKind::Mean { norm, eps, matrix } => {
                let mut specs = TowerNorm::CenteredRms(*eps).specs(prefix, norm, self.inputs);
                // As the reference begins.
                specs.push(ParamSpec::new(format!("{prefix}{matrix}"), &[self.inputs, self.outputs], Init::Zeros));
                specs
            }
            ProjectorKind::Resampler { .. } => Resampler::specs(prefix, block, self.outputs, std),
            ProjectorKind::None => Vec::new(),
        }
    }
}

impl Projector {
    /// Panics where the store was not made from this config's `specs`.
    pub fn new(config: &ProjectorConfig, params: &ParamStore) -> Projector {
        let build = |scope: &Scope<'_>| match &config.kind {
            ProjectorKind::Mlp { norm, linears, activation, by_channel, .. } => Kind::Mlp {
                by_channel: *by_channel,
                norm: norm.map(|norm| (norm.norm.build(scope, norm.name), norm.merged)),
                linears: linears.map(|name| Linear::new(scope, name)),
                activation: *activation,
            },
            ProjectorKind::Linear { name, .. } => Kind::Linear(Linear::new(scope, name)),
            ProjectorKind::Mean { norm, eps, matrix } => {
                Kind::Mean { norm: TowerNorm::CenteredRms(*eps).build(scope, norm), matrix_DE: scope.take(matrix) }
            }
            ProjectorKind::Resampler { eps, after_eps } => Kind::Resampler(Resampler::new(scope, *eps, *after_eps)),
            ProjectorKind::None => Kind::None,
        };
        let part = Part::new(params, config.prefix.as_str(), build);
        Projector { block: config.block(), merge: config.merge, part }
    }

    /// Records the projection of the states of items of these sizes.
    pub fn record(&self, tape: &mut Tape, name: String, grids: &[Grid], states: Slot, policy: Policy) -> Slot {
        let (kind, block) = (self.part.part.clone(), self.block);
        let frames: Rc<[[i64; 2]]> =
            grids.iter().map(|grid| [grid.t.into(), i64::from(grid.h * grid.w) / self.merge.pow(2)]).collect();
        let forward = move |reads: &[Tensor]| vec![kind.forward(&reads[0], block, &frames)];
        tape.run(name, &self.part.ids, policy, &[states], 1, forward)[0]
    }
}

impl Kind {
    /// Maps `[P, D]` to `[N, E]`; `frames` are the frames of each item and the blocks of a frame.
    fn forward(&self, x_PD: &Tensor, block: i64, frames: &[[i64; 2]]) -> Tensor {
        let merged = |x: &Tensor| x.reshape([-1, block]);
        match self {
            Kind::Mlp { norm, linears: [first, second], activation, by_channel } => {
                let merged = |x: &Tensor| match by_channel {
                    true => x.unflatten(0, [-1, block / x.size()[1]]).transpose(1, 2).reshape([-1, block]),
                    false => merged(x),
                };
                let x_NB = match norm {
                    Some((norm, true)) => norm.forward(&merged(x_PD)),
                    Some((norm, false)) => merged(&norm.forward(x_PD)),
                    None => merged(x_PD),
                };
                second.forward(&activation.forward(&first.forward(&x_NB)))
            }
            Kind::Linear(linear) => linear.forward(&merged(x_PD)),
            Kind::Mean { norm, matrix_DE } => {
                let x_NPD = merged(x_PD).unflatten(1, [-1, x_PD.size()[1]]);
                norm.forward(&x_NPD.mean_dim(1, false, None)).matmul(matrix_DE)
            }
            Kind::Resampler(resampler) => resampler.forward(&merged(x_PD), frames),
            Kind::None => x_PD.shallow_clone(),
        }
    }
}
