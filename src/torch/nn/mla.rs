//! Multi-head latent attention (DeepSeek-AI 2024, `DeepseekV2Attention` and those that followed): keys and values of
//! all heads come from one narrow latent, positions from a few channels beside it. With an indexer, queries attend to
//! a few chosen keys only (`sparse_attention.rs`).
//!
//! Shapes: T tokens, B sequences, S columns, D hidden size, H heads, N and P channels of a head's queries and keys
//! without and with positions, C = N + P, V channels of a head's values, R width of the latent, L = R + P.

use tch::Tensor;

use super::indexer::{Indexer, IndexerConfig, IndexerTraining};
use super::indexer_loss::indexer_loss;
use super::mixer::{CacheColumns, Context, Mixer, QkvMixer, State};
use super::norm::{NormConfig, RmsNorm};
use super::sparse_attention::{IndexRows, attend_chosen, best, choose, index_scores};
use super::{Linear, Rope};
use crate::params::{ParamSpec, Scope};

/// Names are those of the config.
#[derive(Clone, Debug, PartialEq)]
pub struct MlaConfig {
    pub num_heads: i64,
    /// Width of the queries' latent; `None`: queries come from the hidden states.
    pub q_lora_rank: Option<i64>,
    pub kv_lora_rank: i64,
    pub qk_nope_head_dim: i64,
    pub qk_rope_head_dim: i64,
    pub v_head_dim: i64,
    pub attention_bias: bool,
    /// Multiplies scores; 1/√C without YaRN.
    pub softmax_scale: f64,
    pub keys: KeyChoice,
}

/// Says which keys a query attends to.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyChoice {
    All,
    /// A query attends to the keys that the layer's indexer chooses. The layer has the number `layer`. `q_lora_rank` is needed.
    Indexed {
        indexer: IndexerConfig,
        layer: usize,
    },
    /// A query attends to the keys that the earlier layer `layer` chose.
    Shared {
        layer: usize,
    },
}

/// The norms of the latents, whatever those of the decoder are.
const NORM: NormConfig = NormConfig { eps: 1e-6, zero_centered: false };

/// The block on its parameters.
pub struct Mla {
    config: MlaConfig,
    queries: Queries,
    kv_a: Linear,
    kv_norm: RmsNorm,
    kv_b: Linear,
    o: Linear,
    indexer: Option<Indexer>,
}

enum Queries {
    Direct(Linear),
    Latent { a: Linear, norm: RmsNorm, b: Linear },
}

/// The tensors that the attention needs of some tokens.
struct Rows {
    q_THC: Tensor,
    /// The normed latent, and the turned channels that all heads share.
    latent_TR: Tensor,
    turned_T1P: Tensor,
    /// The latent of queries that an indexer reads.
    q_latent: Option<Tensor>,
}

impl Mla {
    /// Declares the parameters of a hidden size of `width` under `prefix`, by the names of `DeepseekV3Attention`; the indexer's
    /// among them, where a layer has its own. `std`: of the weights' first values.
    pub fn specs(prefix: &str, width: i64, config: &MlaConfig, std: f64) -> Vec<ParamSpec> {
        let MlaConfig { num_heads, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, .. } = *config;
        let linear = |name: &str, inputs: i64, outputs: i64, bias: bool| {
            Linear::specs(prefix, name, inputs, outputs, bias && config.attention_bias, std)
        };
        let queries = num_heads * (qk_nope_head_dim + qk_rope_head_dim);
        let mut specs = match config.q_lora_rank {
            None => linear("q_proj", width, queries, false),
            Some(rank) => {
                let mut specs = linear("q_a_proj", width, rank, true);
                specs.extend(NORM.specs(prefix, "q_a_layernorm", rank));
                specs.extend(linear("q_b_proj", rank, queries, false));
                specs
            }
        };
        specs.extend(linear("kv_a_proj_with_mqa", width, kv_lora_rank + qk_rope_head_dim, true));
        specs.extend(NORM.specs(prefix, "kv_a_layernorm", kv_lora_rank));
        specs.extend(linear("kv_b_proj", kv_lora_rank, num_heads * (qk_nope_head_dim + v_head_dim), false));
        specs.extend(linear("o_proj", num_heads * v_head_dim, width, true));
        if let KeyChoice::Indexed { indexer, .. } = &config.keys {
            let latent = config.q_lora_rank.expect("an indexer reads the queries' latent");
            specs.extend(Indexer::specs(&format!("{prefix}indexer."), width, latent, indexer, std));
        }
        specs
    }

    /// Takes the parameters that [`Mla::specs`] declares.
    pub fn new(scope: &Scope<'_>, config: &MlaConfig) -> Mla {
        let linear = |name: &str| Linear::new(scope, name);
        let queries = match config.q_lora_rank {
            None => Queries::Direct(linear("q_proj")),
            Some(_) => Queries::Latent {
                a: linear("q_a_proj"),
                norm: NORM.build(scope, "q_a_layernorm"),
                b: linear("q_b_proj"),
            },
        };
        let indexer = match &config.keys {
            KeyChoice::Indexed { indexer, .. } => Some(Indexer::new(scope, "indexer.", indexer)),
            KeyChoice::All | KeyChoice::Shared { .. } => None,
        };
        Mla {
            queries,
            kv_a: linear("kv_a_proj_with_mqa"),
            kv_norm: NORM.build(scope, "kv_a_layernorm"),
            kv_b: linear("kv_b_proj"),
            o: linear("o_proj"),
            indexer,
            config: config.clone(),
        }
    }

    fn rows(&self, x_TD: &Tensor, rope: &Rope) -> Rows {
        let MlaConfig { num_heads, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, .. } = self.config;
        let (q, q_latent) = match &self.queries {
            Queries::Direct(q) => (q.forward(x_TD), None),
            Queries::Latent { a, norm, b } => {
                let latent = norm.forward(&a.forward(x_TD));
                (b.forward(&latent), Some(latent))
            }
        };
        let q_THC = q.unflatten(-1, [num_heads, -1]);
        let (plain, positioned) = two(&q_THC, [qk_nope_head_dim, qk_rope_head_dim]);
        let (latent_TR, k_TP) = two(&self.kv_a.forward(x_TD), [kv_lora_rank, qk_rope_head_dim]);
        Rows {
            q_THC: Tensor::cat(&[plain, rope.apply(&positioned)], -1),
            latent_TR: self.kv_norm.forward(&latent_TR),
            turned_T1P: rope.apply(&k_TP.unsqueeze(1)),
            q_latent,
        }
    }

    /// Returns the keys `[T, H, C]` and values `[T, H, V]` of all heads.
    fn expand(&self, rows: &Rows) -> (Tensor, Tensor) {
        let MlaConfig { num_heads, qk_nope_head_dim, v_head_dim, .. } = self.config;
        let both = self.kv_b.forward(&rows.latent_TR).unflatten(-1, [num_heads, -1]);
        let (plain, v_THV) = two(&both, [qk_nope_head_dim, v_head_dim]);
        let turned = rows.turned_T1P.expand([-1, num_heads, -1], false);
        (Tensor::cat(&[plain, turned], -1), v_THV)
    }

    /// Returns the indexer's rows of the same tokens.
    fn index_rows(&self, indexer: &Indexer, x_TD: &Tensor, rows: &Rows, rope: &Rope) -> IndexRows {
        indexer.rows(x_TD, rows.q_latent.as_ref().expect("an indexer comes with a latent"), rope)
    }

    /// Returns the attended values `[T, H·V]`, and the indexer's loss where it is wanted.
    fn attend(
        &self,
        rows: &Rows,
        index: Option<IndexRows>,
        context: &Context,
        want_loss: bool,
    ) -> (Tensor, Option<Tensor>) {
        let ((k_THC, v_THV), scale) = (self.expand(rows), self.config.softmax_scale);
        let (q_THC, documents) = (&rows.q_THC, &context.documents);
        match &self.config.keys {
            KeyChoice::All => (documents.forward_with(q_THC, &k_THC, &v_THV, scale.into()), None),
            KeyChoice::Shared { layer } => {
                let chosen = context.chosen.take(*layer);
                (attend_chosen(documents, [q_THC, &k_THC, &v_THV], &chosen, scale), None)
            }
            KeyChoice::Indexed { indexer, layer } => {
                let index = index.expect("the layer has an indexer");
                let chosen = context.chosen.put(*layer, choose(documents, &index, indexer.num_keys()));
                let y = attend_chosen(documents, [q_THC, &k_THC, &v_THV], &chosen, scale);
                let loss = || indexer_loss(documents, &index, [q_THC, &k_THC], &chosen, scale);
                (y, want_loss.then(loss))
            }
        }
    }
}

impl Mixer for Mla {
    fn forward(&self, x_TD: &Tensor, context: &Context) -> Tensor {
        let rows = self.rows(x_TD, &context.rope);
        let index = self.indexer.as_ref().map(|indexer| self.index_rows(indexer, x_TD, &rows, &context.rope));
        self.o.forward(&self.attend(&rows, index, context, false).0)
    }

    fn has_loss(&self) -> bool {
        self.indexer.as_ref().is_some_and(|indexer| indexer.config().training != IndexerTraining::Frozen)
    }

    /// Works like [`Mixer::forward`], and returns the loss of the indexer.
    fn forward_with_loss(&self, x_TD: &Tensor, context: &Context) -> (Tensor, Option<Tensor>) {
        let rows = self.rows(x_TD, &context.rope);
        let index = self.indexer.as_ref().map(|indexer| self.index_rows(indexer, x_TD, &rows, &context.rope));
        let (y, loss) = self.attend(&rows, index, context, self.has_loss());
        (self.o.forward(&y), loss)
    }

    /// Returns this mixer, except where an indexer chooses keys from the whole document.
    fn cut(&self) -> Option<&dyn QkvMixer> {
        (self.config.keys == KeyChoice::All).then_some(self)
    }

    /// The state is the latents with the turned channels, `[B, S, L]`, and the indexer's keys.
    fn prefill(&self, x_TD: &Tensor, context: &Context, columns: &CacheColumns, state: &mut State) -> Tensor {
        let rows = self.rows(x_TD, &context.rope);
        let index = self.indexer.as_ref().map(|indexer| self.index_rows(indexer, x_TD, &rows, &context.rope));
        *state = vec![columns.store(&Tensor::cat(&[&rows.latent_TR, &rows.turned_T1P.squeeze_dim(1)], -1))];
        state.extend(index.as_ref().map(|index| columns.store(&index.k_TC)));
        self.o.forward(&self.attend(&rows, index, context, false).0)
    }

    /// Keys and values are not made: queries go to the latent's space and come back from it.
    fn step(&self, x_BD: &Tensor, rope: &Rope, columns: &CacheColumns, state: &mut State) -> Tensor {
        let MlaConfig { num_heads, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, .. } = self.config;
        let rows = self.rows(x_BD, rope);
        let all = columns.append(&state[0], &Tensor::cat(&[&rows.latent_TR, &rows.turned_T1P.squeeze_dim(1)], -1));
        let chosen = match (&self.indexer, &self.config.keys) {
            (Some(indexer), KeyChoice::Indexed { layer, .. }) => {
                let index = self.index_rows(indexer, x_BD, &rows, rope);
                let keys_BSC = columns.append(&state[1], &index.k_TC);
                Some(columns.chosen.put(*layer, best_columns(&index, &keys_BSC, indexer.config().num_keys(), columns)))
            }
            (_, KeyChoice::Shared { layer }) => Some(columns.chosen.take(*layer)),
            _ => None,
        };
        let mask = chosen.and_then(|chosen| chosen.as_ref().as_ref().map(Tensor::shallow_clone));
        let mask = mask.unwrap_or_else(|| columns.mask());
        let weight = self.kv_b.merged_weight().view([num_heads, qk_nope_head_dim + v_head_dim, kv_lora_rank]);
        let (to_latent, from_latent) =
            (weight.narrow(1, 0, qk_nope_head_dim), weight.narrow(1, qk_nope_head_dim, v_head_dim));
        let (plain, turned) = two(&rows.q_THC, [qk_nope_head_dim, qk_rope_head_dim]);
        let latent_BHR = plain.transpose(0, 1).matmul(&to_latent).transpose(0, 1);
        let q_B1HL = Tensor::cat(&[latent_BHR, turned], -1).unsqueeze(1);
        let k_B1SL = all.unsqueeze(1);
        let scale = Some(self.config.softmax_scale);
        let y = Tensor::scaled_dot_product_attention(&q_B1HL, &k_B1SL, &k_B1SL, Some(mask), 0.0, false, scale, false);
        let latent_HBR = y.squeeze_dim(1).narrow(2, 0, kv_lora_rank).transpose(0, 1);
        self.o.forward(&latent_HBR.matmul(&from_latent.transpose(1, 2)).transpose(0, 1).flatten(1, 2))
    }
}

impl QkvMixer for Mla {
    fn before(&self, x_TD: &Tensor, rope: &Rope) -> Vec<Tensor> {
        let rows = self.rows(x_TD, rope);
        let (k_THC, v_THV) = self.expand(&rows);
        vec![rows.q_THC, k_THC, v_THV]
    }

    fn num_cut(&self) -> usize {
        3
    }

    fn scale(&self) -> f64 {
        self.config.softmax_scale
    }

    fn after(&self, y: &Tensor, _: &[Tensor]) -> Tensor {
        self.o.forward(y)
    }
}

/// Returns the columns `[B, 1, 1, used]` that the present tokens attend to; `None`: all that hold something.
fn best_columns(index: &IndexRows, keys_BSC: &Tensor, topk: i64, columns: &CacheColumns) -> Option<Tensor> {
    if columns.used <= topk {
        return None;
    }
    let (q, w) = (index.q_TIC.unsqueeze(1), index.w_TI.unsqueeze(1));
    let held = columns.mask().squeeze_dim(1);
    let scores = index_scores(&q, keys_BSC, &w, columns.used - 1).masked_fill(&held.logical_not(), f64::NEG_INFINITY);
    Some(best(&scores, topk).logical_and(&held).unsqueeze(1))
}

/// Returns `x` cut in two along its last dimension.
fn two(x: &Tensor, sizes: [i64; 2]) -> (Tensor, Tensor) {
    (x.narrow(-1, 0, sizes[0]), x.narrow(-1, sizes[0], sizes[1]))
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{KeyChoice, Mla, MlaConfig};
    use crate::nn::{
        CacheColumns, Context, IndexerConfig, IndexerTraining, LayerCache, Mask, Mixer, PackedAttention, Rope,
        RopeConfig, RopeLayout, State,
    };
    use crate::params::{ParamStore, Scope};

    const WIDTH: i64 = 24;

    fn config(keys: KeyChoice, q_lora_rank: Option<i64>) -> MlaConfig {
        MlaConfig {
            num_heads: 3,
            q_lora_rank,
            kv_lora_rank: 12,
            qk_nope_head_dim: 10,
            qk_rope_head_dim: 6,
            v_head_dim: 7,
            attention_bias: true,
            softmax_scale: 0.3,
            keys,
        }
    }

    fn layers(topk: i64) -> Vec<Mla> {
        let training = IndexerTraining::Frozen;
        let indexer = IndexerConfig { num_heads: 5, head_dim: 8, topk, layout: RopeLayout::HalfSplit, training };
        let configs = [
            config(KeyChoice::Indexed { indexer, layer: 0 }, Some(9)),
            config(KeyChoice::Shared { layer: 0 }, Some(9)),
            config(KeyChoice::All, None),
        ];
        let build = |(seed, config): (u64, &MlaConfig)| {
            let params = ParamStore::new(Mla::specs("m.", WIDTH, config, 0.4), Kind::Float, Device::Cpu);
            params.init_random(seed);
            Mla::new(&Scope::new(&params, "m."), config)
        };
        (1..).zip(&configs).map(build).collect()
    }

    fn rope(positions: &[i64]) -> Rope {
        let config = RopeConfig { layout: RopeLayout::Interleaved, ..RopeConfig::plain(6, 100.0) };
        Rope::new(&config, &Tensor::from_slice(positions), Kind::Float)
    }

    fn context(lens: &[usize]) -> Context {
        let positions: Vec<i64> = lens.iter().flat_map(|len| 0..*len as i64).collect();
        let mut cu_seqlens = vec![0];
        lens.iter().for_each(|len| cu_seqlens.push(cu_seqlens[cu_seqlens.len() - 1] + len));
        Context {
            rope: rope(&positions),
            documents: PackedAttention::new(&cu_seqlens, Mask::Causal, Device::Cpu).into(),
            cu_seqlens,
            chosen: Default::default(),
            gated_delta: None,
        }
    }

    fn forward(layers: &[Mla], x: &Tensor, lens: &[usize]) -> Tensor {
        let context = context(lens);
        layers.iter().fold(x.shallow_clone(), |x, layer| &x + layer.forward(&x, &context))
    }

    /// Tokens one by one through the cache give what the whole documents give, whether or not keys are chosen.
    #[test]
    fn steps_equal_the_forward_of_the_whole() {
        let _no_grad = tch::no_grad_guard();
        tch::manual_seed(2);
        let lens = [9usize, 5];
        let x = Tensor::randn([14 + 6, WIDTH], (Kind::Float, Device::Cpu));
        let prompts = x.narrow(0, 0, 14);
        for topk in [4, 100] {
            let layers = layers(topk);
            let context = context(&lens);
            let mut columns = CacheColumns {
                num_sequences: 2,
                num_columns: 12,
                used: 9,
                places_T: Tensor::from_slice(&[0i64, 1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 18, 19, 20]),
                filled_B11S: Tensor::arange(12, (Kind::Int64, Device::Cpu))
                    .view([1, 1, 1, -1])
                    .ge_tensor(&Tensor::from_slice(&[0i64, 4]).view([-1, 1, 1, 1])),
                has_gaps: true,
                chosen: LayerCache::default(),
            };
            let mut states = vec![State::new(), State::new(), State::new()];
            let mut read = prompts.shallow_clone();
            for (layer, state) in layers.iter().zip(&mut states) {
                read = &read + layer.prefill(&read, &context, &columns, state);
            }
            assert!(read.allclose(&forward(&layers, &prompts, &lens), 1e-5, 1e-5, false));
            let mut whole = [prompts.narrow(0, 0, 9), prompts.narrow(0, 9, 5)];
            for step in 0..3 {
                let token = x.narrow(0, 14 + 2 * step, 2);
                columns.used += 1;
                let mut y = token.shallow_clone();
                for (layer, state) in layers.iter().zip(&mut states) {
                    y = &y + layer.step(&y, &rope(&[9 + step, 5 + step]), &columns, state);
                }
                for (row, whole) in (0..).zip(&mut whole) {
                    *whole = Tensor::cat(&[&*whole, &token.narrow(0, row, 1)], 0);
                    let len = whole.size()[0];
                    let expected = forward(&layers, whole, &[len as usize]).get(len - 1);
                    assert!(y.get(row).allclose(&expected, 1e-4, 1e-5, false), "top {topk}, step {step}, row {row}");
                }
            }
        }
    }

    #[test]
    fn a_document_is_what_it_is_alone() {
        let _no_grad = tch::no_grad_guard();
        tch::manual_seed(3);
        let (lens, layers) = ([6usize, 20, 13], layers(5));
        let x = Tensor::randn([39, WIDTH], (Kind::Float, Device::Cpu));
        let packed = forward(&layers, &x, &lens);
        let mut start = 0;
        for len in lens {
            let alone = forward(&layers, &x.narrow(0, start, len as i64), &[len]);
            assert!(packed.narrow(0, start, len as i64).allclose(&alone, 1e-4, 1e-5, false), "{len} tokens");
            start += len as i64;
        }
    }
}
