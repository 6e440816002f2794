//! The heads of Wan's attentions. Queries and keys have a norm over all heads together: where ranks have some of the heads
//! each, it needs the sum of the squares of all of them.
//!
//! Shapes: T rows of queries, K of keys, D width, H heads of this rank, C head size.

use tch::{Kind, Tensor};

use super::config::WanConfig;
use crate::model::dit::maps::map;
use crate::model::tower_blocks::Rotation;
use crate::nn::{Linear, RmsNorm};
use crate::params::{ParamSpec, Scope};

/// A linear map with a norm behind it.
pub(super) struct Normed {
    map: Linear,
    norm: RmsNorm,
    /// Values of all ranks' heads together.
    width: i64,
    head_dim: i64,
}

/// Queries, keys and values of heads.
pub(super) struct Heads {
    pub q: Normed,
    pub k: Normed,
    v: Linear,
    o: Linear,
    head_dim: i64,
}

impl Normed {
    /// `map` and `norm` are Diffusers' names.
    pub fn new(scope: &Scope<'_>, map: &str, norm: &str, config: &WanConfig) -> Normed {
        Normed {
            map: Linear::new(scope, &config.in_block(map)),
            norm: RmsNorm::new(scope, &config.in_block(norm), config.eps),
            width: config.heads_width(),
            head_dim: config.head_dim,
        }
    }

    /// Maps rows `[rows, D]` to heads `[rows, H, C]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        self.by_head(&self.norm.forward(&self.map.forward(x)))
    }

    /// Works like [`Normed::forward`], and turns the heads. `[rows, D]` to `[rows, H, C]`.
    pub fn forward_turned(&self, x: &Tensor, rotation: &Rotation) -> Tensor {
        rotation.apply_normed(&self.norm, &self.by_head(&self.map.forward(x)))
    }

    /// Maps rows `[rows, D]` to this rank's values before their norm, `[rows, H·C]`, and the sums of their squares `[rows, 1]`, float32.
    pub fn project(&self, x: &Tensor) -> [Tensor; 2] {
        let y = self.map.forward(x);
        let squares = y.to_kind(Kind::Float).square().sum_dim_intlist([-1i64].as_slice(), true, Kind::Float);
        [y, squares]
    }

    /// Returns the heads of values of [`Normed::project`], with the sums of squares of all ranks. `[rows, H·C]` and `[rows, 1]` to
    /// `[rows, H, C]`.
    pub fn normed(&self, y: &Tensor, squares: &Tensor) -> Tensor {
        self.by_head(&self.norm.forward_part(y, squares, self.width))
    }

    fn by_head(&self, x: &Tensor) -> Tensor {
        x.unflatten(-1, [-1, self.head_dim])
    }
}

impl Heads {
    /// Returns the parameters of the attention that Diffusers calls `name`, of the block under `prefix`.
    pub fn specs(config: &WanConfig, prefix: &str, name: &str) -> Vec<ParamSpec> {
        let (width, heads) = (config.width(), config.local_width());
        let named = |part: &str| config.in_block(&format!("{name}.{part}"));
        let mut specs: Vec<ParamSpec> =
            ["to_q", "to_k", "to_v"].iter().flat_map(|part| map(prefix, &named(part), width, heads)).collect();
        specs.extend(map(prefix, &named("to_out.0"), heads, width));
        specs.extend(["norm_q", "norm_k"].iter().flat_map(|part| RmsNorm::specs(prefix, &named(part), heads)));
        specs
    }

    /// Takes queries and keys with their norms, values and outputs of the attention `name`: this rank's heads.
    pub fn new(scope: &Scope<'_>, name: &str, config: &WanConfig) -> Heads {
        let normed =
            |map: &str, norm: &str| Normed::new(scope, &format!("{name}.{map}"), &format!("{name}.{norm}"), config);
        Heads {
            q: normed("to_q", "norm_q"),
            k: normed("to_k", "norm_k"),
            v: Linear::new(scope, &config.in_block(&format!("{name}.to_v"))),
            o: Linear::new(scope, &config.in_block(&format!("{name}.to_out.0"))),
            head_dim: config.head_dim,
        }
    }

    /// Maps rows `[K, D]` to values `[K, H, C]`.
    pub fn values(&self, x: &Tensor) -> Tensor {
        self.v.forward(x).unflatten(-1, [-1, self.head_dim])
    }

    /// Returns the factor of the products of queries and keys.
    pub fn scale(&self) -> f64 {
        (self.head_dim as f64).powf(-0.5)
    }

    /// Maps attended values `[T, H·C]` to the branch `[T, D]`.
    pub fn output(&self, y: &Tensor) -> Tensor {
        self.o.forward(y)
    }
}
