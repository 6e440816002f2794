//! The sizes of a gated delta net, and the parameters they make.

use crate::nn::{Activation, Linear, RmsNorm};
use crate::params::{Init, ParamSpec};

/// Says how a layer's input projections are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatedDeltaLayout {
    /// `in_proj_qkvz` and `in_proj_ba`, each key head's parts beside each other (`Qwen3NextGatedDeltaNet`).
    Grouped,
    /// `in_proj_qkv`, `in_proj_z`, `in_proj_b` and `in_proj_a` (`Qwen3_5GatedDeltaNet`).
    Separate,
}

/// A gated delta net. Names are Hugging Face's, without their `linear_`.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDeltaConfig {
    pub hidden_size: i64,
    pub num_key_heads: i64,
    /// A multiple of `num_key_heads`.
    pub num_value_heads: i64,
    pub key_head_dim: i64,
    pub value_head_dim: i64,
    /// Tokens that the convolution sees: at least 2.
    pub conv_kernel_dim: i64,
    pub rms_norm_eps: f64,
    /// The activation of the convolution's outputs; that of the output's gate is always a SiLU.
    pub act: Activation,
    pub layout: GatedDeltaLayout,
}

impl GatedDeltaConfig {
    /// Returns the width of all keys, or of all queries.
    pub fn key_width(&self) -> i64 {
        self.num_key_heads * self.key_head_dim
    }

    /// Returns the width of all values of a token together.
    pub fn value_width(&self) -> i64 {
        self.num_value_heads * self.value_head_dim
    }

    /// Returns the number of channels of the convolution: queries, keys and values.
    pub fn conv_width(&self) -> i64 {
        2 * self.key_width() + self.value_width()
    }

    /// Returns the parameters below `prefix`, `….linear_attn.`.
    pub fn specs(&self, prefix: &str, std: f64) -> Vec<ParamSpec> {
        let (width, heads) = (self.hidden_size, self.num_value_heads);
        let projections = match self.layout {
            GatedDeltaLayout::Grouped => {
                vec![("in_proj_qkvz", self.conv_width() + self.value_width()), ("in_proj_ba", 2 * heads)]
            }
            GatedDeltaLayout::Separate => vec![
                ("in_proj_qkv", self.conv_width()),
                ("in_proj_z", self.value_width()),
                ("in_proj_b", heads),
                ("in_proj_a", heads),
            ],
        };
        let named = |name: &str, shape: &[i64], init| ParamSpec::new(format!("{prefix}{name}"), shape, init);
        let conv_bound = 1.0 / (self.conv_kernel_dim as f64).sqrt();
        let mut specs = vec![
            named("dt_bias", &[heads], Init::Ones),
            named("A_log", &[heads], Init::LogUniform(0.01, 16.0)),
            named("conv1d.weight", &[self.conv_width(), 1, self.conv_kernel_dim], Init::Uniform(conv_bound)),
        ];
        let sections = [self.key_width(), self.key_width(), self.value_width()];
        specs[2].sections = Some((0, sections.to_vec()));
        for (name, outputs) in projections {
            let linear = Linear::specs(prefix, name, width, outputs, false, std).into_iter();
            let joint = name == "in_proj_qkv";
            specs.extend(linear.map(|spec| if joint { spec.in_sections(0, &sections) } else { spec }));
        }
        specs.extend(RmsNorm::specs(prefix, "norm", self.value_head_dim));
        specs.extend(Linear::specs(prefix, "out_proj", self.value_width(), width, false, std));
        specs
    }
}
