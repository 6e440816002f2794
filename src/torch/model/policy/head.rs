//! The head behind the last layer: the norm of actions and the map to their velocity.
//!
//! Shapes: S draws of L rows, H of them actions of A numbers, E width of the stream.

use std::rc::Rc;

use tch::{Kind, Tensor};

use super::config::{PolicyConfig, torch_std};
use super::layer::{Norm, expert_norm};
use crate::model::tower_blocks::Part;
use crate::nn::{Linear, RmsNorm};
use crate::params::{ParamSpec, ParamStore, Scope};

const NAME: &str = "norm";
const OUT: &str = "action_out_proj";

/// Norm and map on their parameters.
pub(super) struct Head {
    norm: Norm,
    out: Linear,
    horizon: i64,
    num_rows: i64,
}

/// Returns the parameters behind the layers.
pub(super) fn specs(config: &PolicyConfig) -> Vec<ParamSpec> {
    let (width, text) = (config.expert.width, config.text.width);
    let of_tokens = config.norm.specs(&config.text_prefix(), NAME, text);
    let mut specs: Vec<ParamSpec> = match config.learns_tokens() {
        true => config.of_prefix(of_tokens),
        // Nothing reads the prefix behind its layers.
        false => of_tokens.into_iter().map(ParamSpec::frozen).collect(),
    };
    specs.extend(expert_norm(config, &config.expert_prefix(), NAME));
    specs.extend(Linear::specs(config.names.all, OUT, width, config.action_dim, true, torch_std(width)));
    specs
}

impl Head {
    /// Panics where the store lacks one of the parameters.
    pub fn part(config: &PolicyConfig, params: &ParamStore) -> Part<Head> {
        let (norms, maps) = (Scope::new(params, config.expert_prefix()), Scope::new(params, config.names.all));
        let head = Head {
            norm: Norm::of_actions(config, &norms, NAME),
            out: Linear::new(&maps, OUT),
            horizon: config.horizon,
            num_rows: config.num_rows(),
        };
        Part { part: Rc::new(head), ids: [norms.into_ids(), maps.into_ids()].concat() }
    }

    /// Returns the norm of the prefix's stream, behind which tokens are predicted.
    pub fn of_tokens(config: &PolicyConfig, params: &ParamStore) -> Part<RmsNorm> {
        Part::new(params, config.text_prefix(), |scope| config.norm.build(scope, NAME))
    }

    /// Maps rows of actions `[S·L, E]` to velocities `[S·H, A]`, float32. `condition` `[S, E]`.
    pub fn forward(&self, x: &Tensor, condition: Option<&Tensor>) -> Tensor {
        let rows = x.unflatten(0, [-1, self.num_rows]).narrow(1, self.num_rows - self.horizon, self.horizon);
        let (x, _) = self.norm.forward(&rows.flatten(0, 1), condition);
        self.out.forward_wide(&x.to_kind(Kind::Float))
    }
}
