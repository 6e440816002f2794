//! The Qwen3 decoder (`Qwen3ForCausalLM`), which is also the text part of Qwen3-VL (`Qwen3VLTextModel`): there,
//! features of pictures replace placeholder tokens, and DeepStack adds more of them after the first layers.
//!
//! Shapes: T tokens of one packed row, N features, D hidden size, H query heads, K key and value heads, C head size,
//! V vocabulary, L counted targets.

use std::rc::Rc;

use tch::{Kind, Tensor};

use super::loss::LinearCrossEntropy;
use super::text_config::TextConfig;
use crate::nn::{Init, Linear, PackedAttention, ParamId, ParamSpec, ParamStore, RmsNorm, Rope, Scope, SwiGlu};
use crate::tape::{Policy, Slot, Tape};

/// One packed row of documents.
pub struct TextBatch {
    /// `[T]`, int64.
    pub input_ids: Tensor,
    /// Restarting with every document: `[T]`, or `[3, T]` where the model's positions have three axes; int64.
    pub position_ids: Tensor,
    /// Where documents end: `[0, …, T]`.
    pub cu_seqlens: Vec<usize>,
    /// The tokens that features replace, in the features' order.
    pub feature_rows: Vec<i64>,
}

/// What the loss counts.
pub struct Targets {
    /// For each token the one to predict (already shifted), or -100: `[T]`.
    pub labels: Vec<i64>,
    /// Multiplies the sum of the counted tokens' losses; for a mean, one over the number of targets of the whole step.
    pub scale: f64,
}

/// A decoder's tape and the slots of interest.
pub struct TextTape {
    pub tape: Tape,
    /// Inputs, in the order of the encoder's outputs, `[N, D]` each. Empty where the batch has no features.
    pub features: Vec<Slot>,
    /// The hidden states after the last norm: `[T, D]`, or `[L, D]`, those of counted targets, where there is a loss.
    pub hidden: Slot,
    /// A scalar, float64.
    pub loss: Option<Slot>,
}

/// How a decoder's tape is laid out.
pub struct TextOptions {
    /// How many tensors of features there are: one, and one more for each DeepStack layer.
    pub num_feature_tensors: usize,
    /// Whether gradients of the features are wanted.
    pub train_features: bool,
    pub policy: Policy,
}

pub(super) struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    pub(super) o: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    norm: RmsNorm,
    head_dim: i64,
}

pub(super) struct Mlp {
    norm: RmsNorm,
    mlp: SwiGlu,
}

pub(super) struct Layer {
    pub(super) attention: Rc<Attention>,
    attention_ids: Vec<ParamId>,
    pub(super) mlp: Rc<Mlp>,
    mlp_ids: Vec<ParamId>,
}

/// The decoder, on the parameters of a store.
pub struct TextModel {
    config: TextConfig,
    pub(super) embed: Tensor,
    embed_id: ParamId,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Rc<RmsNorm>,
    norm_ids: Vec<ParamId>,
    head: Tensor,
    head_id: ParamId,
}

/// The prefix of a decoder's names; the head stands outside of it.
fn prefix(config: &TextConfig) -> &'static str {
    if config.rope.axes.count() == 3 { "model.language_model." } else { "model." }
}

impl TextModel {
    /// The parameters, under their names in `model.safetensors`.
    pub fn specs(config: &TextConfig) -> Vec<ParamSpec> {
        let (prefix, width, std) = (prefix(config), config.hidden_size, config.initializer_range);
        let table = [config.vocab_size, width];
        let mut specs = vec![ParamSpec::new(format!("{prefix}embed_tokens.weight"), &table, Init::Normal(std))];
        let (queries, keys) =
            (config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim);
        for layer in 0..config.num_hidden_layers {
            let prefix = format!("{prefix}layers.{layer}.");
            specs.extend(RmsNorm::specs(&prefix, "input_layernorm", width));
            for (name, inputs, outputs) in [
                ("self_attn.q_proj", width, queries),
                ("self_attn.k_proj", width, keys),
                ("self_attn.v_proj", width, keys),
                ("self_attn.o_proj", queries, width),
            ] {
                specs.extend(Linear::specs(&prefix, name, inputs, outputs, config.attention_bias, std));
            }
            specs.extend(RmsNorm::specs(&prefix, "self_attn.q_norm", config.head_dim));
            specs.extend(RmsNorm::specs(&prefix, "self_attn.k_norm", config.head_dim));
            specs.extend(RmsNorm::specs(&prefix, "post_attention_layernorm", width));
            specs.extend(SwiGlu::specs(&format!("{prefix}mlp."), width, config.intermediate_size, std));
        }
        specs.extend(RmsNorm::specs(prefix, "norm", width));
        if !config.tie_word_embeddings {
            specs.push(ParamSpec::new("lm_head.weight", &table, Init::Normal(std)));
        }
        specs
    }

    /// Panics where the store was not made from this config's `specs`.
    pub fn new(config: &TextConfig, params: &ParamStore) -> TextModel {
        let (prefix, eps) = (prefix(config), config.rms_norm_eps);
        let layer = |layer: i64| {
            let prefix = format!("{prefix}layers.{layer}.");
            let (attention, mlp) = (Scope::new(params, prefix.clone()), Scope::new(params, prefix));
            let linear = |name: &str| Linear::new(&attention, name);
            Layer {
                attention: Rc::new(Attention {
                    norm: RmsNorm::new(&attention, "input_layernorm", eps),
                    q: linear("self_attn.q_proj"),
                    k: linear("self_attn.k_proj"),
                    v: linear("self_attn.v_proj"),
                    o: linear("self_attn.o_proj"),
                    q_norm: RmsNorm::new(&attention, "self_attn.q_norm", eps),
                    k_norm: RmsNorm::new(&attention, "self_attn.k_norm", eps),
                    head_dim: config.head_dim,
                }),
                mlp: Rc::new(Mlp {
                    norm: RmsNorm::new(&mlp, "post_attention_layernorm", eps),
                    mlp: SwiGlu::new(&mlp, "mlp."),
                }),
                attention_ids: attention.into_ids(),
                mlp_ids: mlp.into_ids(),
            }
        };
        let scope = Scope::new(params, prefix);
        let norm = Rc::new(RmsNorm::new(&scope, "norm", eps));
        let embed = format!("{prefix}embed_tokens.weight");
        let head = if config.tie_word_embeddings { embed.as_str() } else { "lm_head.weight" };
        TextModel {
            embed: params.get(&embed),
            embed_id: params.id(&embed),
            layers: (0..config.num_hidden_layers).map(layer).collect(),
            norm,
            norm_ids: scope.into_ids(),
            head: params.get(head),
            head_id: params.id(head),
            config: config.clone(),
        }
    }

    pub fn config(&self) -> &TextConfig {
        &self.config
    }

    /// The tape of one micro-batch; without `targets` it ends at the hidden states.
    pub fn tape(&self, batch: &TextBatch, targets: Option<&Targets>, options: &TextOptions) -> TextTape {
        let policy = options.policy;
        let mut tape = Tape::new();
        let rows = index(&batch.feature_rows, self.embed.device());
        let num_features = if batch.feature_rows.is_empty() { 0 } else { options.num_feature_tensors };
        let features: Vec<Slot> = (0..num_features).map(|_| tape.input(options.train_features)).collect();

        let (embed, input_ids) = (self.embed.shallow_clone(), batch.input_ids.to_device(self.embed.device()));
        let padding = self.config.pad_token_id.unwrap_or(-1);
        let look_up = move |_: &[Tensor]| vec![Tensor::embedding(&embed, &input_ids, padding, false, false)];
        let mut x = tape.run("embed", &[self.embed_id], policy, &[], 1, look_up)[0];
        if let Some(&merged) = features.first() {
            x = tape.put_rows(x, rows.clone(), merged);
        }

        let rope = Rc::new(self.rope(&batch.position_ids));
        let documents = Rc::new(PackedAttention::new(&batch.cu_seqlens, true, self.embed.device()));
        for (number, layer) in self.layers.iter().enumerate() {
            let (attention, rope, documents) = (layer.attention.clone(), rope.clone(), documents.clone());
            let forward = move |reads: &[Tensor]| vec![attention.forward(&reads[0], &rope, &documents)];
            let y = tape.run(format!("layer {number} attention"), &layer.attention_ids, policy, &[x], 1, forward)[0];
            x = tape.add(x, y);
            let mlp = layer.mlp.clone();
            let forward = move |reads: &[Tensor]| vec![mlp.forward(&reads[0])];
            let y = tape.run(format!("layer {number} mlp"), &layer.mlp_ids, policy, &[x], 1, forward)[0];
            x = tape.add(x, y);
            if let Some(&deep) = features.get(1 + number) {
                x = tape.add_rows(x, rows.clone(), deep);
            }
        }
        self.finish(tape, x, features, targets, policy)
    }

    /// The last norm and the loss.
    fn finish(
        &self,
        mut tape: Tape,
        x: Slot,
        features: Vec<Slot>,
        targets: Option<&Targets>,
        policy: Policy,
    ) -> TextTape {
        let norm = self.norm.clone();
        let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
        let Some(targets) = targets else {
            let hidden = tape.run("norm", &self.norm_ids, policy, &[x], 1, forward)[0];
            return TextTape { tape, features, hidden, loss: None };
        };
        let counted: Vec<i64> =
            (0..).zip(&targets.labels).filter(|(_, label)| **label >= 0).map(|(at, _)| at).collect();
        let labels: Vec<i64> = targets.labels.iter().copied().filter(|label| *label >= 0).collect();
        let taken = tape.take_rows(x, index(&counted, self.embed.device()));
        let hidden = tape.run("norm", &self.norm_ids, policy, &[taken], 1, forward)[0];
        let labels = Tensor::from_slice(&labels).to_device(self.embed.device());
        let loss = LinearCrossEntropy::new(self.head.shallow_clone(), labels, targets.scale);
        let loss = tape.custom("loss", &[self.head_id], &[hidden], 1, Box::new(loss))[0];
        TextTape { tape, features, hidden, loss: Some(loss) }
    }

    /// Scores `[…, V]` of the next token, for hidden states `[…, D]` after the last norm.
    pub fn logits(&self, hidden: &Tensor) -> Tensor {
        hidden.linear(&self.head, None::<Tensor>)
    }

    pub(super) fn rope(&self, position_ids: &Tensor) -> Rope {
        Rope::new(&self.config.rope, &position_ids.to_device(self.embed.device()), self.embed.kind())
    }
}

impl Attention {
    /// The attention branch, without the residual: `[T, D]` to `[T, D]`.
    fn forward(&self, x_TD: &Tensor, rope: &Rope, documents: &PackedAttention) -> Tensor {
        let [q_THC, k_TKC, v_TKC] = self.heads(x_TD, rope);
        self.o.forward(&documents.forward(&q_THC, &k_TKC, &v_TKC))
    }

    /// Queries `[T, H, C]`, keys and values `[T, K, C]`.
    pub(super) fn heads(&self, x_TD: &Tensor, rope: &Rope) -> [Tensor; 3] {
        let x_TD = self.norm.forward(x_TD);
        let heads = |y: Tensor| y.unflatten(-1, [-1, self.head_dim]);
        let q_THC = self.q_norm.forward_rotated(&heads(self.q.forward(&x_TD)), rope);
        let k_TKC = self.k_norm.forward_rotated(&heads(self.k.forward(&x_TD)), rope);
        [q_THC, k_TKC, heads(self.v.forward(&x_TD))]
    }
}

impl Mlp {
    /// The feed-forward branch, without the residual: `[T, D]` to `[T, D]`.
    pub(super) fn forward(&self, x_TD: &Tensor) -> Tensor {
        self.mlp.forward(&self.norm.forward(x_TD))
    }
}

fn index(rows: &[i64], device: tch::Device) -> Rc<Tensor> {
    Rc::new(Tensor::from_slice(rows).to_kind(Kind::Int64).to_device(device))
}
