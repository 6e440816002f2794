//! The layer: projections, convolution, delta rule, gated norm. Written after `Qwen3NextGatedDeltaNet` and
//! `Qwen3_5GatedDeltaNet`; norms, decays and the rule are computed in float32.
//!
//! Shapes: T tokens, D hidden size, F channels of the convolution, K key heads, V value heads, C width of a key,
//! E width of a value, B documents, W tokens that the convolution sees.

use tch::{Kind, Tensor};

use super::config::{GatedDeltaConfig, GatedDeltaLayout};
use super::conv::{causal_conv, conv_state, conv_step};
use super::documents::DeltaDocuments;
use super::rule::{DeltaInputs, delta_step, gated_delta_rule};
use crate::native::{can_fuse, norm_rope, swiglu};
use crate::nn::{CacheColumns, Context, Linear, Mixer, RmsNorm, Rope, State};
use crate::params::Scope;

/// The epsilon under the root of a key's or query's length, fixed in the reference.
const L2_EPS: f64 = 1e-6;

enum Projections {
    Grouped { qkvz: Linear, ba: Linear },
    Separate { qkv: Linear, z: Linear, b: Linear, a: Linear },
}

pub struct GatedDelta {
    config: GatedDeltaConfig,
    projections: Projections,
    conv_weight: Tensor,
    dt_bias: Tensor,
    a_log: Tensor,
    norm: RmsNorm,
    out: Linear,
}

impl GatedDelta {
    /// Takes the parameters that the config declares: projections, the short convolution, decays and the norm behind the rule.
    pub fn new(scope: &Scope<'_>, config: &GatedDeltaConfig) -> GatedDelta {
        let linear = |name: &str| Linear::new(scope, name);
        GatedDelta {
            projections: match config.layout {
                GatedDeltaLayout::Grouped => {
                    Projections::Grouped { qkvz: linear("in_proj_qkvz"), ba: linear("in_proj_ba") }
                }
                GatedDeltaLayout::Separate => Projections::Separate {
                    qkv: linear("in_proj_qkv"),
                    z: linear("in_proj_z"),
                    b: linear("in_proj_b"),
                    a: linear("in_proj_a"),
                },
            },
            conv_weight: scope.take("conv1d.weight"),
            dt_bias: scope.take("dt_bias"),
            a_log: scope.take("A_log"),
            norm: RmsNorm::new(scope, "norm", config.rms_norm_eps),
            out: linear("out_proj"),
            config: config.clone(),
        }
    }

    /// Returns the states of the documents, all zeros.
    fn no_states(&self, documents: &DeltaDocuments) -> Tensor {
        let config = &self.config;
        let size = [documents.num_documents, config.num_value_heads, config.key_head_dim, config.value_head_dim];
        Tensor::zeros(size, (Kind::Float, self.a_log.device()))
    }

    /// Returns the inputs of the rule, made of the convolution's outputs, and of β and the decay before their activations.
    fn inputs(&self, qkv_TF: &Tensor, b_TV: &Tensor, a_TV: &Tensor) -> DeltaInputs {
        let config = &self.config;
        let keys = config.key_width();
        let heads = |start: i64, width: i64, head_dim: i64| {
            qkv_TF.narrow(1, start, width).unflatten(1, [-1, head_dim]).to_kind(Kind::Float)
        };
        let scale = (config.key_head_dim as f64).sqrt().recip();
        let a_TV = a_TV.to_kind(Kind::Float) + &self.dt_bias;
        DeltaInputs {
            q_TKC: unit_length(&heads(0, keys, config.key_head_dim), scale),
            k_TKC: unit_length(&heads(keys, keys, config.key_head_dim), 1.0),
            v_TVE: heads(2 * keys, config.value_width(), config.value_head_dim),
            decay_TV: a_TV.softplus() * self.a_log.to_kind(Kind::Float).exp().neg(),
            beta_TV: b_TV.sigmoid().to_kind(Kind::Float),
        }
    }

    /// Returns the branch's output from that of the rule and its gates `[T, V·E]`.
    fn output(&self, y_TVE: &Tensor, z: &Tensor) -> Tensor {
        let (kind, width) = (z.kind(), self.config.value_head_dim);
        let y = self.norm.forward(&y_TVE.to_kind(kind).reshape([-1, width]));
        let z = z.reshape([-1, width]);
        let y = match can_fuse(&y) {
            true => swiglu(&z, &y),
            false => (z.to_kind(Kind::Float).silu() * y).to_kind(kind),
        };
        self.out.forward(&y.view([-1, self.config.value_width()]))
    }

    /// Returns the queries, keys and values `[T, F]`; the output's gates `[T, V·E]`; β and the decay, before their activations, `[T, V]`.
    fn project(&self, x_TD: &Tensor) -> [Tensor; 4] {
        let config = &self.config;
        match &self.projections {
            Projections::Separate { qkv, z, b, a } => [qkv, z, b, a].map(|linear| linear.forward(x_TD)),
            Projections::Grouped { qkvz, ba } => {
                let groups = config.num_value_heads / config.num_key_heads;
                let (key, value) = (config.key_head_dim, groups * config.value_head_dim);
                let of_heads = |y: Tensor, widths: &[i64]| {
                    let parts = y.unflatten(-1, [config.num_key_heads, -1]).split_with_sizes(widths, -1);
                    parts.into_iter().map(|part| part.flatten(1, 2)).collect::<Vec<_>>()
                };
                let mut parts = of_heads(qkvz.forward(x_TD), &[key, key, value, value]);
                let z = parts.pop().expect("the last of four");
                let [b, a] = <[Tensor; 2]>::try_from(of_heads(ba.forward(x_TD), &[groups, groups])).expect("two parts");
                [Tensor::cat(&parts, -1), z, b, a]
            }
        }
    }
}

impl Mixer for GatedDelta {
    fn forward(&self, x_TD: &Tensor, context: &Context) -> Tensor {
        // A micro-batch may be empty.
        if x_TD.size()[0] == 0 {
            return x_TD.zeros_like();
        }
        let documents = context.delta_documents();
        let [qkv_TF, z, b_TV, a_TV] = self.project(x_TD);
        let qkv_TF = causal_conv(&qkv_TF, &self.conv_weight, documents, self.config.act);
        let mut states = self.no_states(documents);
        self.output(&gated_delta_rule(&self.inputs(&qkv_TF, &b_TV, &a_TV), documents, &mut states), &z)
    }

    /// The state: the convolution's last inputs `[B, W-1, F]`, and what the heads keep `[B, V, C, E]`, float32.
    fn prefill(&self, x_TD: &Tensor, context: &Context, _: &CacheColumns, state: &mut State) -> Tensor {
        let documents = context.delta_documents();
        let [qkv_TF, z, b_TV, a_TV] = self.project(x_TD);
        let conv = conv_state(&qkv_TF, documents);
        let qkv_TF = causal_conv(&qkv_TF, &self.conv_weight, documents, self.config.act);
        let mut states = self.no_states(documents);
        let y = gated_delta_rule(&self.inputs(&qkv_TF, &b_TV, &a_TV), documents, &mut states);
        *state = vec![conv, states.empty_like().index_copy(0, &documents.order, &states)];
        self.output(&y, &z)
    }

    fn step(&self, x_BD: &Tensor, _: &Rope, _: &CacheColumns, state: &mut State) -> Tensor {
        let [qkv_BF, z, b_BV, a_BV] = self.project(x_BD);
        let qkv_BF = conv_step(&qkv_BF, &self.conv_weight, &mut state[0], self.config.act);
        let y = delta_step(&self.inputs(&qkv_BF, &b_BV, &a_BV), &mut state[1]);
        self.output(&y, &z)
    }
}

/// Returns heads of length `scale`: `[T, K, C]`, float32.
fn unit_length(x_TKC: &Tensor, scale: f64) -> Tensor {
    let width = x_TKC.size()[2];
    if can_fuse(x_TKC) {
        // An RMS norm is a length of √C.
        let weight = Tensor::full([width], scale / (width as f64).sqrt(), (Kind::Float, x_TKC.device()));
        return norm_rope(x_TKC, Some((&weight, L2_EPS / width as f64)), None);
    }
    let squares = x_TKC.square().sum_dim_intlist(-1, true, None);
    x_TKC * ((squares + L2_EPS).rsqrt() * scale)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::GatedDelta;
    use crate::nn::gated_delta::{DeltaDocuments, GatedDeltaConfig, GatedDeltaLayout};
    use crate::nn::{Activation, CacheColumns, Context, Mask, Mixer, PackedAttention, Rope, RopeConfig, State};
    use crate::params::{ParamStore, Scope};

    fn config(layout: GatedDeltaLayout) -> GatedDeltaConfig {
        GatedDeltaConfig {
            hidden_size: 24,
            num_key_heads: 2,
            num_value_heads: 4,
            key_head_dim: 8,
            value_head_dim: 12,
            conv_kernel_dim: 4,
            rms_norm_eps: 1e-6,
            act: Activation::Silu,
            layout,
        }
    }

    fn rope(tokens: i64) -> Rope {
        let positions = Tensor::zeros([tokens], (Kind::Int64, Device::Cpu));
        Rope::new(&RopeConfig::plain(8, 1e4), &positions, Kind::Float)
    }

    fn context(cu_seqlens: &[usize], config: &GatedDeltaConfig) -> Context {
        Context {
            rope: rope(*cu_seqlens.last().unwrap() as i64),
            documents: PackedAttention::new(cu_seqlens, Mask::Causal, Device::Cpu).into(),
            cu_seqlens: cu_seqlens.to_vec(),
            chosen: Default::default(),
            gated_delta: Some(DeltaDocuments::new(cu_seqlens, config, Device::Cpu).into()),
        }
    }

    #[test]
    fn tokens_read_one_by_one_after_a_prompt_equal_those_read_at_once() {
        for layout in [GatedDeltaLayout::Grouped, GatedDeltaLayout::Separate] {
            let config = config(layout);
            let params = ParamStore::new(config.specs("", 0.3), Kind::Float, Device::Cpu);
            params.init_random(4);
            let layer = GatedDelta::new(&Scope::new(&params, ""), &config);
            tch::manual_seed(1);
            // Prompts of 1, 70 and 2 tokens, and then five more of each.
            let (prompts, more) = ([1, 70, 2], 5);
            let x: Vec<Tensor> =
                prompts.iter().map(|len| Tensor::randn([len + more, 24], (Kind::Float, Device::Cpu))).collect();
            let whole = layer.forward(&Tensor::cat(&x, 0), &context(&[0, 6, 81, 88], &config));

            let columns = CacheColumns {
                num_sequences: 3,
                num_columns: 1,
                used: 1,
                places_T: Tensor::from_slice(&[0i64]),
                filled_B11S: Tensor::from_slice(&[true]),
                has_gaps: true,
                chosen: Default::default(),
            };
            let read: Vec<Tensor> = x.iter().zip(prompts).map(|(x, len)| x.narrow(0, 0, len)).collect();
            let mut state = State::new();
            let y = layer.prefill(&Tensor::cat(&read, 0), &context(&[0, 1, 71, 73], &config), &columns, &mut state);
            let mut found: Vec<Vec<Tensor>> = y.split_with_sizes(prompts, 0).into_iter().map(|y| vec![y]).collect();
            for step in 0..more {
                let next: Vec<Tensor> = x.iter().zip(prompts).map(|(x, len)| x.get(len + step)).collect();
                let y = layer.step(&Tensor::stack(&next, 0), &rope(3), &columns, &mut state);
                (0..3).for_each(|at| found[at].push(y.narrow(0, at as i64, 1)));
            }
            let found: Vec<Tensor> = found.iter().map(|found| Tensor::cat(found, 0)).collect();
            assert!(Tensor::cat(&found, 0).allclose(&whole, 1e-4, 1e-5, false), "{layout:?}");
        }
    }
}
