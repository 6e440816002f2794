//! The mixer on its parameters, for packed rows.
//!
//! Shapes: T tokens, D hidden size, H heads, C their width, R width of the queries' latent, G groups of heads, B documents
//! of a batch, L their length, Q queries of a chunk, W entries.

use tch::{Kind, Tensor};

use super::compressor::{Compressor, Gated};
use super::config::{CompressedConfig, Compression};
use super::indexer::EntryChooser;
use super::turn::{turn_last, turn_last_back};
use crate::nn::attend::attend_sinking;
use crate::nn::mixer::{CacheColumns, Context, Mixer, State};
use crate::nn::norm::{NormConfig, RmsNorm};
use crate::nn::window::{MIN_CHUNK, attend_window};
use crate::nn::{Linear, PackedAttention, Rope};
use crate::params::{Init, ParamSpec, Scope};

const COMPRESSOR: &str = "compressor.";
const INDEXER: &str = "compressor.indexer.";
const SINKS: &str = "sinks";
const O_A: &str = "o_a_proj.weight";

/// The block on its parameters.
pub struct CompressedAttention {
    pub(super) config: CompressedConfig,
    q_a: Linear,
    q_a_norm: RmsNorm,
    q_b: Linear,
    kv: Linear,
    kv_norm: RmsNorm,
    /// `[G·rank, H·C / G]`: a map for each group.
    o_a: Tensor,
    o_b: Linear,
    /// `[H]`
    pub(super) sinks: Tensor,
    pub(super) compressed: Option<Compressed>,
}

pub(super) struct Compressed {
    pub compressor: Compressor,
    pub chooser: Option<EntryChooser>,
    pub rate: i64,
}

/// The tensors that the attention needs of some tokens.
pub(super) struct TokenRows {
    /// `[T, H, C]`
    pub q: Tensor,
    /// `[T, 1, C]`
    pub kv: Tensor,
    /// The queries' latent, `[T, R]`.
    pub latent: Tensor,
}

/// The entries of a batch of documents, with their positions.
pub(super) struct Entries {
    /// `[B, W, C]`
    pub kv: Tensor,
    /// The entries of the indexer.
    pub index: Option<Tensor>,
}

impl CompressedAttention {
    /// Declares the parameters under `prefix`, by the names of `DeepseekV4Attention`: queries over a latent, one key that is
    /// the value as well, grouped output maps, sinks, and the compressor of layers that have one. `std`: of the weights' first
    /// values.
    pub fn specs(prefix: &str, width: i64, config: &CompressedConfig, std: f64) -> Vec<ParamSpec> {
        let CompressedConfig { num_heads, head_dim, q_lora_rank, o_groups, o_lora_rank, .. } = *config;
        let linear = |name: &str, inputs, outputs| Linear::specs(prefix, name, inputs, outputs, false, std);
        let mut specs = linear("q_a_proj", width, q_lora_rank);
        specs.extend(RmsNorm::specs(prefix, "q_a_norm", q_lora_rank));
        specs.extend(linear("q_b_proj", q_lora_rank, num_heads * head_dim));
        specs.extend(linear("kv_proj", width, head_dim));
        specs.extend(RmsNorm::specs(prefix, "kv_norm", head_dim));
        // No linear map of the input as a whole: PEFT's adapters do not fit it.
        let of_group = num_heads * head_dim / o_groups;
        specs.push(ParamSpec::new(format!("{prefix}{O_A}"), &[o_groups * o_lora_rank, of_group], Init::Normal(std)));
        specs.extend(linear("o_b_proj", o_groups * o_lora_rank, width));
        specs.push(ParamSpec::new(format!("{prefix}{SINKS}"), &[num_heads], Init::Zeros));
        let Some(Compression { rate, indexer }) = &config.compression else { return specs };
        let overlaps = indexer.is_some();
        specs.extend(Compressor::specs(&format!("{prefix}{COMPRESSOR}"), width, [head_dim, *rate], overlaps, std));
        if let Some(indexer) = indexer {
            let prefix = format!("{prefix}{INDEXER}");
            specs.extend(EntryChooser::specs(&prefix, width, q_lora_rank, indexer, *rate, std));
        }
        specs
    }

    /// Takes the parameters that [`CompressedAttention::specs`] declares.
    pub fn new(scope: &Scope<'_>, config: &CompressedConfig) -> CompressedAttention {
        let norm = NormConfig { eps: config.norm_eps, zero_centered: false };
        let linear = |name: &str| Linear::new(scope, name);
        let compressed = config.compression.as_ref().map(|Compression { rate, indexer }| {
            let sizes = [config.head_dim, *rate];
            let chooser = |indexer| EntryChooser::new(scope, INDEXER, indexer, *rate, config.norm_eps);
            Compressed {
                compressor: Compressor::new(scope, COMPRESSOR, sizes, indexer.is_some(), config.norm_eps),
                chooser: indexer.as_ref().map(chooser),
                rate: *rate,
            }
        });
        CompressedAttention {
            q_a: linear("q_a_proj"),
            q_a_norm: norm.build(scope, "q_a_norm"),
            q_b: linear("q_b_proj"),
            kv: linear("kv_proj"),
            kv_norm: norm.build(scope, "kv_norm"),
            o_a: scope.take(O_A),
            o_b: linear("o_b_proj"),
            sinks: scope.take(SINKS),
            compressed,
            config: config.clone(),
        }
    }

    /// Returns queries `[T, H, C]`, keys `[T, 1, C]`, both turned by `rope`, and the queries' latent `[T, R]` of tokens `[T,
    /// D]`.
    pub(super) fn rows(&self, x_TD: &Tensor, rope: &Rope) -> TokenRows {
        let head_dim = self.config.head_dim;
        let latent = self.q_a_norm.forward(&self.q_a.forward(x_TD));
        let q = self.q_b.forward(&latent).unflatten(-1, [-1, head_dim]);
        let q = q.rms_norm([head_dim], None::<Tensor>, self.config.norm_eps);
        let kv = self.kv_norm.forward(&self.kv.forward(x_TD)).unsqueeze(1);
        TokenRows { q: turn_last(&q, rope), kv: turn_last(&kv, rope), latent }
    }

    /// Returns the factor of the products of queries and keys: 1 / √C.
    pub(super) fn scale(&self) -> f64 {
        (self.config.head_dim as f64).powf(-0.5)
    }

    /// Maps attended values `[T, H·C]` to the branch's output `[T, D]`.
    pub(super) fn output(&self, y: &Tensor, rope: &Rope) -> Tensor {
        let CompressedConfig { head_dim, o_groups, .. } = self.config;
        let y_THC = turn_last_back(&y.unflatten(-1, [-1, head_dim]), rope);
        let grouped = y_THC.flatten(1, 2).unflatten(-1, [o_groups, -1]).transpose(0, 1);
        let maps = self.o_a.unflatten(0, [o_groups, -1]).transpose(1, 2);
        self.o_b.forward(&grouped.matmul(&maps).transpose(0, 1).flatten(1, 2))
    }

    /// Returns the attended values `[T, H·C]`, and by batch of documents the entries.
    fn attend(&self, rows: &TokenRows, x_TD: &Tensor, context: &Context) -> (Tensor, Vec<Entries>) {
        let documents = &context.documents;
        let Some(compressed) = &self.compressed else {
            let (window, sinks) = (self.config.window, Some(&self.sinks));
            return (
                attend_window(documents, [&rows.q, &rows.kv, &rows.kv], window, self.scale().into(), sinks),
                vec![],
            );
        };
        if documents.batches().is_empty() {
            return (rows.q.flatten(1, 2), vec![]);
        }
        let gated = compressed.compressor.gated(x_TD);
        let index = compressed.chooser.as_ref().map(|chooser| {
            let _no_grad = tch::no_grad_guard();
            chooser.tokens(x_TD, &rows.latent, &context.rope)
        });
        let split = |x: &Tensor| documents.split(x);
        let split_gated = |Gated { kv, gate }: &Gated| -> Vec<Gated> {
            split(kv).into_iter().zip(split(gate)).map(|(kv, gate)| Gated { kv, gate }).collect()
        };
        let ropes = compressed.entry_ropes(documents, &context.rope);
        let of_index = index.as_ref().map(|it| (split(&it.q), split(&it.weights), split_gated(&it.gated)));
        let (q, kv, gated) = (split(&rows.q), split(&rows.kv), split_gated(&gated));
        let (mut outputs, mut all) = (Vec::new(), Vec::new());
        for (number, rope) in ropes.iter().enumerate() {
            let of_batch = of_index.as_ref().map(|(q, weights, gated)| (&q[number], &weights[number], &gated[number]));
            let entries = compressed.entries(&gated[number], of_batch.map(|of| of.2), rope);
            let choose = of_batch.map(|(q, weights, _)| (q, weights));
            outputs.push(self.attend_batch(&q[number], &kv[number], &entries, choose, compressed));
            all.push(entries);
        }
        (documents.join(outputs), all)
    }

    /// Returns attention of queries `[B, L, H, C]` of like documents, `[B, L, H·C]`, in chunks of queries.
    fn attend_batch(
        &self,
        q: &Tensor,
        kv: &Tensor,
        entries: &Entries,
        index: Option<(&Tensor, &Tensor)>,
        compressed: &Compressed,
    ) -> Tensor {
        let (docs, len, device) = (q.size()[0], q.size()[1], q.device());
        let window = self.config.window;
        let step = window.max(MIN_CHUNK);
        let chunk = |first: i64| {
            let queries = step.min(len - first);
            let before = first.min(window - 1);
            let tokens = kv.narrow(1, first - before, before + queries);
            let seen = Tensor::ones([queries, before + queries], (Kind::Bool, device));
            let seen = seen.tril(before).triu(before - window + 1).unsqueeze(0);
            let count = (first + queries) / compressed.rate;
            if count == 0 {
                let (q, mask) = (q.narrow(1, first, queries), seen.unsqueeze(1));
                return attend_sinking(
                    &q,
                    &tokens,
                    &tokens,
                    Some(&mask),
                    false,
                    self.scale().into(),
                    Some(&self.sinks),
                );
            }
            let ready = Tensor::arange_start(first + 1, first + queries + 1, (Kind::Int64, device));
            let ready = ready.divide_scalar_mode(compressed.rate, "floor").unsqueeze(1);
            let numbers = Tensor::arange(count, (Kind::Int64, device)).unsqueeze(0);
            let mut visible = numbers.lt_tensor(&ready).unsqueeze(0);
            if let (Some(chooser), Some((iq, weights)), Some(keys)) = (&compressed.chooser, index, &entries.index) {
                let _no_grad = tch::no_grad_guard();
                let of = |x: &Tensor| x.narrow(1, first, queries);
                visible = chooser.choose(&of(iq), &of(weights), &keys.narrow(1, 0, count), &visible);
            }
            let whole = |mask: &Tensor| mask.expand([docs, -1, -1], false);
            let mask = Tensor::cat(&[whole(&seen), whole(&visible)], -1).unsqueeze(1);
            let keys = Tensor::cat(&[tokens, entries.kv.narrow(1, 0, count).unsqueeze(2)], 1);
            let q = q.narrow(1, first, queries);
            attend_sinking(&q, &keys, &keys, Some(&mask), false, self.scale().into(), Some(&self.sinks))
        };
        Tensor::cat(&(0..len).step_by(step as usize).map(chunk).collect::<Vec<_>>(), 1)
    }
}

impl Compressed {
    /// Returns the rotations of the entries of each batch of documents; entries stand where their first tokens do.
    fn entry_ropes(&self, documents: &PackedAttention, rope: &Rope) -> Vec<Rope> {
        let [cos, sin] = rope.tables().map(|table| documents.split(table));
        let of_entries = |table: &Tensor| {
            let whole = table.size()[1] / self.rate * self.rate;
            table.narrow(1, 0, whole).slice(1, 0, None, self.rate).flatten(0, 1)
        };
        cos.iter().zip(&sin).map(|(cos, sin)| rope.with_tables([of_entries(cos), of_entries(sin)])).collect()
    }

    /// Returns the entries of a batch, turned by `rope`.
    fn entries(&self, gated: &Gated, index: Option<&Gated>, rope: &Rope) -> Entries {
        let turned = |entries: Tensor| match entries.numel() {
            0 => entries,
            _ => turn_last(&entries.flatten(0, 1).unsqueeze(1), rope).reshape(entries.size().as_slice()),
        };
        let index = self.chooser.as_ref().zip(index).map(|(chooser, index)| {
            let _no_grad = tch::no_grad_guard();
            turned(chooser.compressor.entries(index))
        });
        Entries { kv: turned(self.compressor.entries(gated)), index }
    }
}

impl Mixer for CompressedAttention {
    fn forward(&self, x_TD: &Tensor, context: &Context) -> Tensor {
        let rows = self.rows(x_TD, &context.rope);
        self.output(&self.attend(&rows, x_TD, context).0, &context.rope)
    }

    fn prefill(&self, x_TD: &Tensor, context: &Context, columns: &CacheColumns, state: &mut State) -> Tensor {
        let rows = self.rows(x_TD, &context.rope);
        let (y, entries) = self.attend(&rows, x_TD, context);
        *state = self.first_state(&rows, x_TD, context, columns, &entries);
        self.output(&y, &context.rope)
    }

    fn step(&self, x_BD: &Tensor, rope: &Rope, columns: &CacheColumns, state: &mut State) -> Tensor {
        let rows = self.rows(x_BD, rope);
        let y = self.next(&rows, x_BD, rope, columns, state);
        self.output(&y, rope)
    }
}
