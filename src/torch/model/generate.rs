//! Greedy decoding for a batch of prompts of different lengths, with a cache of keys and values.
//!
//! The prompts are read as one packed row, without padding. In the cache they end at the same column, so that every
//! step writes one column; what lies before a prompt is masked.
//!
//! Shapes: T tokens of all prompts, B prompts, S columns of the cache, D hidden size, H query heads, K key and value
//! heads, C head size.

use tch::{Kind, Tensor};

use super::qwen3::TextModel;
use crate::nn::{PackedAttention, RopeAxes};

/// What a continuation starts from.
pub struct Prompt {
    pub input_ids: Vec<i64>,
    /// `[T]`, or `[3, T]` where the model's positions have three axes; int64, from 0.
    pub position_ids: Tensor,
    /// The tokens that features replace, in the features' order.
    pub feature_rows: Vec<i64>,
    /// The encoder's outputs for this prompt's pictures, `[N, D]` each; empty without pictures.
    pub features: Vec<Tensor>,
}

/// The most likely continuation of each prompt, token by token: up to `max_new_tokens`, or to the first of
/// `stop_token_ids`, which is left out. Panics where there is no prompt or an empty one.
pub fn generate(model: &TextModel, prompts: &[Prompt], max_new_tokens: usize, stop_token_ids: &[i64]) -> Vec<Vec<i64>> {
    let _no_grad = tch::no_grad_guard();
    assert!(prompts.iter().all(|prompt| !prompt.input_ids.is_empty()), "a prompt needs a token");
    let mut cache = Cache::new(model, prompts, max_new_tokens);
    let mut scores = cache.read_prompts(model, prompts);
    let mut outputs = vec![Vec::new(); prompts.len()];
    let mut running = vec![true; prompts.len()];
    for step in 0..max_new_tokens {
        let next = scores.argmax(-1, false);
        for (index, token) in Vec::<i64>::try_from(&next).expect("one token a prompt").into_iter().enumerate() {
            running[index] &= !stop_token_ids.contains(&token);
            if running[index] {
                outputs[index].push(token);
            }
        }
        if step + 1 == max_new_tokens || !running.contains(&true) {
            break;
        }
        scores = cache.step(model, &next);
    }
    outputs
}

struct Cache {
    /// Keys and values of each layer, `[B·S, K·C]`.
    layers: Vec<(Tensor, Tensor)>,
    /// Which columns hold something, `[B, 1, 1, S]`.
    filled: Tensor,
    /// The next position of each prompt, `[B]`.
    positions: Tensor,
    num_columns: i64,
    /// Columns in use.
    used: i64,
}

impl Cache {
    fn new(model: &TextModel, prompts: &[Prompt], max_new_tokens: usize) -> Cache {
        let (config, options) = (model.config(), (model.embed.kind(), model.embed.device()));
        let longest = prompts.iter().map(|prompt| prompt.input_ids.len()).max().unwrap_or(0) as i64;
        let (num_prompts, num_columns) = (prompts.len() as i64, longest + max_new_tokens as i64);
        let width = config.num_key_value_heads * config.head_dim;
        let empty = || Tensor::zeros([num_prompts * num_columns, width], options);
        let starts: Vec<i64> = prompts.iter().map(|prompt| longest - prompt.input_ids.len() as i64).collect();
        let columns = Tensor::arange(num_columns, (Kind::Int64, options.1)).view([1, 1, 1, -1]);
        let filled = columns.ge_tensor(&Tensor::from_slice(&starts).to_device(options.1).view([-1, 1, 1, 1]));
        let next: Vec<i64> = prompts.iter().map(|prompt| prompt.position_ids.max().int64_value(&[]) + 1).collect();
        Cache {
            layers: (0..model.layers.len()).map(|_| (empty(), empty())).collect(),
            filled,
            positions: Tensor::from_slice(&next).to_device(options.1),
            num_columns,
            used: longest,
        }
    }

    /// Fills the cache with the prompts; scores `[B, V]` of the tokens that follow them.
    fn read_prompts(&mut self, model: &TextModel, prompts: &[Prompt]) -> Tensor {
        let device = model.embed.device();
        let index = |values: &[i64]| Tensor::from_slice(values).to_device(device);
        let (mut input_ids, mut places, mut rows, mut ends) = (Vec::new(), Vec::new(), Vec::new(), vec![0]);
        for (number, prompt) in (0..).zip(prompts) {
            let len = prompt.input_ids.len() as i64;
            let first = number * self.num_columns + self.used - len;
            places.extend(first..first + len);
            rows.extend(prompt.feature_rows.iter().map(|row| row + input_ids.len() as i64));
            input_ids.extend(&prompt.input_ids);
            ends.push(input_ids.len());
        }
        let (places, rows) = (index(&places), index(&rows));
        let num_tensors = prompts.iter().map(|prompt| prompt.features.len()).max().unwrap_or(0);
        let features = |number: usize| {
            let of_prompts: Vec<&Tensor> = prompts.iter().filter_map(|prompt| prompt.features.get(number)).collect();
            Tensor::cat(&of_prompts, 0).to_device(device).to_kind(model.embed.kind())
        };
        let position_ids: Vec<&Tensor> = prompts.iter().map(|prompt| &prompt.position_ids).collect();
        let rope = model.rope(&Tensor::cat(&position_ids, -1));
        let documents = PackedAttention::new(&ends, true, device);
        let mut x_TD = model.embed.index_select(0, &index(&input_ids));
        if num_tensors > 0 {
            x_TD = x_TD.index_copy(0, &rows, &features(0));
        }
        for (number, layer) in model.layers.iter().enumerate() {
            let [q_THC, k_TKC, v_TKC] = layer.attention.heads(&x_TD, &rope);
            let (keys, values) = &mut self.layers[number];
            let _ = keys.index_copy_(0, &places, &k_TKC.flatten(1, 2));
            let _ = values.index_copy_(0, &places, &v_TKC.flatten(1, 2));
            x_TD += layer.attention.o.forward(&documents.forward(&q_THC, &k_TKC, &v_TKC));
            x_TD += layer.mlp.forward(&x_TD);
            if number + 1 < num_tensors {
                x_TD = x_TD.index_add(0, &rows, &features(number + 1));
            }
        }
        let last: Vec<i64> = ends[1..].iter().map(|end| *end as i64 - 1).collect();
        model.logits(&model.norm.forward(&x_TD.index_select(0, &index(&last))))
    }

    /// Appends a token `[B]` to each sequence; scores `[B, V]` of the next.
    fn step(&mut self, model: &TextModel, tokens: &Tensor) -> Tensor {
        let (config, num_prompts) = (model.config(), tokens.size()[0]);
        let rope = match config.rope.axes {
            RopeAxes::Three(_) => model.rope(&self.positions.unsqueeze(0).expand([3, num_prompts], false)),
            RopeAxes::One => model.rope(&self.positions),
        };
        self.positions += 1;
        let column = self.used;
        self.used += 1;
        let mask = self.filled.narrow(3, 0, self.used);
        let grouped = config.num_attention_heads != config.num_key_value_heads;
        let mut x_BD = model.embed.index_select(0, tokens);
        for (layer, (keys, values)) in model.layers.iter().zip(&self.layers) {
            let [q_BHC, k_BKC, v_BKC] = layer.attention.heads(&x_BD, &rope);
            let appended = |cache: &Tensor, new: &Tensor| {
                let cache_BSKC = cache.view([num_prompts, self.num_columns, -1, config.head_dim]);
                cache_BSKC.select(1, column).copy_(new);
                cache_BSKC.narrow(1, 0, self.used).transpose(1, 2)
            };
            let (k, v) = (appended(keys, &k_BKC), appended(values, &v_BKC));
            let q = q_BHC.unsqueeze(2);
            let y = Tensor::scaled_dot_product_attention(&q, &k, &v, Some(&mask), 0.0, false, None, grouped);
            x_BD += layer.attention.o.forward(&y.flatten(1, 3));
            x_BD += layer.mlp.forward(&x_BD);
        }
        model.logits(&model.norm.forward(&x_BD))
    }
}
