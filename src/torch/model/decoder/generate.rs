//! Decoding for a batch of prompts of different lengths, greedy or sampled, with a cache of what the mixers keep.
//!
//! The prompts are read as one packed row, without padding. In the cache they end at the same column, so that every
//! step writes one column; what lies before a prompt is masked.
//!
//! Shapes: T tokens of all prompts, B prompts, S columns of the cache, D hidden size.

use tch::{Kind, Tensor};

use super::decoding_ranks::DecodingRanks;
use super::transformer::Decoder;
use crate::model::batch::MicroBatch;
use crate::model::columns::POSITION_IDS;
use crate::model::decoding::{Continuations, Continued, Decoding};
use crate::native::NativeError;
use crate::nn::{CacheColumns, LayerCache, RopeConfig, State};

/// The prompt that a continuation starts from.
pub struct Prompt {
    pub input_ids: Vec<i64>,
    /// `[T]`, or `[3, T]` where the model's positions have three axes; float, from 0.
    pub position_ids: Tensor,
    /// The tokens that features replace, in the features' order, by input.
    pub feature_rows: Vec<Vec<i64>>,
    /// The tower's outputs for this prompt's items, `[N, D]` each, by input; empty without items.
    pub features: Vec<Vec<Tensor>>,
}

/// Returns a continuation of each prompt, token by token. Panics where there is no prompt or an empty one.
pub fn generate(model: &Decoder, prompts: &[Prompt], decoding: &Decoding) -> Vec<Vec<i64>> {
    let mut outputs = vec![Vec::new(); prompts.len()];
    generate_each(std::slice::from_ref(model), prompts, &vec![decoding; prompts.len()], &mut |index, continued| {
        if let Continued::Token(token) = continued {
            outputs[index].push(token);
        }
        true
    });
    outputs
}

/// Continues each prompt as its own decoding says. `hear` is told of every token of prompt `index` as it comes, and of the end; it
/// answers whether that continuation goes on. Draws depend on no other prompt. `stages` are those of a model, in order, each on a device
/// of its own or not: this thread goes through them. Panics where there is no prompt or an empty one.
pub fn generate_each(
    stages: &[Decoder],
    prompts: &[Prompt],
    decodings: &[&Decoding],
    hear: &mut dyn FnMut(usize, Continued) -> bool,
) {
    let alone = DecodingRanks::alone();
    generate_among(stages, &alone, prompts, decodings, hear).expect("there is no other rank");
}

/// Works like [`generate_each`] on one of the `ranks` that the model's layers are split among, of which each is given the same
/// prompts and decodings. The first one chooses tokens and hears of them; the others are told.
///
/// # Errors
/// Another rank has ended, or did not answer in time.
pub fn generate_among(
    stages: &[Decoder],
    ranks: &DecodingRanks,
    prompts: &[Prompt],
    decodings: &[&Decoding],
    hear: &mut dyn FnMut(usize, Continued) -> bool,
) -> Result<(), NativeError> {
    let _no_grad = tch::no_grad_guard();
    assert!(prompts.iter().all(|prompt| !prompt.input_ids.is_empty()), "a prompt needs a token");
    let seen = prompts.iter().map(|prompt| prompt.input_ids.clone()).collect();
    let mut continuations = Continuations::new(decodings, seen);
    let max_new_tokens = continuations.max_new_tokens();
    if ranks.is_first() {
        continuations.begin(hear);
    }
    if max_new_tokens == 0 {
        return Ok(());
    }
    let lens: Vec<usize> = prompts.iter().map(|prompt| prompt.input_ids.len()).collect();
    let mut cache = Cache::new(stages, prompts, max_new_tokens);
    let mut scores = cache.read_prompts(stages, ranks, prompts, &lens);
    // What followed each prompt, also behind its end.
    let mut followed = vec![Vec::new(); prompts.len()];
    for step in 0..max_new_tokens {
        ranks.check()?;
        let next = continuations.choose(&scores, step);
        let mut tokens = Vec::<i64>::try_from(&next).expect("one token a prompt");
        if ranks.is_first() {
            continuations.weigh(&scores, &tokens);
            continuations.hear(step, &tokens, hear);
        }
        ranks.agree(&mut tokens, &mut continuations.running, stages[0].device);
        ranks.check()?;
        followed.iter_mut().zip(&tokens).for_each(|(followed, token)| followed.push(*token));
        if continuations.are_done() {
            break;
        }
        let next = Tensor::from_slice(&tokens).to_device(stages[0].device);
        scores = match cache.outgrows(&stages[0]) {
            true => {
                let longer: Vec<Prompt> = prompts.iter().zip(&followed).map(|(prompt, ids)| prompt.with(ids)).collect();
                cache = Cache::new(stages, &longer, max_new_tokens - step - 1);
                cache.read_prompts(stages, ranks, &longer, &lens)
            }
            false => cache.step(stages, ranks, &next),
        };
    }
    Ok(())
}

impl Prompt {
    /// Returns the prompts of a batch, in which features `[N, D]`, one tensor for each level, replace the tokens `rows`; `rows` and
    /// `features` are given by input. Positions are those of the batch, `[3, T]`.
    pub fn of_batch(batch: &MicroBatch, rows: &[Vec<i64>], features: &[Vec<Tensor>]) -> Vec<Prompt> {
        let (ids, positions) = (batch.input_ids(), batch.columns.get(POSITION_IDS));
        let prompt = |ends: &[usize]| {
            let (start, end) = (ends[0] as i64, ends[1] as i64);
            let own =
                |rows: &Vec<i64>| rows.partition_point(|row| *row < start)..rows.partition_point(|row| *row < end);
            let of_own = |(rows, levels): (&Vec<i64>, &Vec<Tensor>)| {
                let own = own(rows);
                let level = |level: &Tensor| level.narrow(0, own.start as i64, own.len() as i64);
                levels.iter().filter(|_| !own.is_empty()).map(level).collect()
            };
            Prompt {
                input_ids: ids[ends[0]..ends[1]].to_vec(),
                position_ids: positions.narrow(-1, start, end - start),
                feature_rows: rows.iter().map(|it| it[own(it)].iter().map(|row| row - start).collect()).collect(),
                features: rows.iter().zip(features).map(of_own).collect(),
            }
        };
        batch.cu_seqlens.windows(2).map(prompt).collect()
    }

    /// Returns the same prompt on the same tensors, for another rank.
    pub fn share(&self) -> Prompt {
        self.with(&[])
    }

    /// Returns the prompt with these tokens behind it.
    fn with(&self, ids: &[i64]) -> Prompt {
        let last = self.position_ids.to_kind(Kind::Float).max();
        let following = Tensor::arange(ids.len() as i64, (Kind::Float, last.device())) + 1 + last;
        let following = match self.position_ids.dim() {
            1 => following,
            _ => following.unsqueeze(0).expand([3, -1], false),
        };
        Prompt {
            input_ids: [self.input_ids.as_slice(), ids].concat(),
            position_ids: Tensor::cat(&[self.position_ids.to_kind(Kind::Float), following], -1),
            feature_rows: self.feature_rows.clone(),
            features: self.features.iter().map(|of| of.iter().map(Tensor::shallow_clone).collect()).collect(),
        }
    }
}

struct Cache {
    stages: Vec<StageCache>,
    /// The next position of each prompt, `[B]`, where the first stage is.
    positions: Tensor,
}

/// The states that the layers of a stage keep, on its device.
struct StageCache {
    layers: Vec<State>,
    columns: CacheColumns,
}

impl Cache {
    fn new(stages: &[Decoder], prompts: &[Prompt], max_new_tokens: usize) -> Cache {
        let next: Vec<Tensor> = prompts.iter().map(|prompt| prompt.position_ids.max() + 1).collect();
        Cache {
            stages: stages.iter().map(|stage| StageCache::new(stage, prompts, max_new_tokens)).collect(),
            positions: Tensor::stack(&next, 0).to_device(stages[0].device).to_kind(Kind::Float),
        }
    }

    /// Returns whether the next token makes a sequence longer than the context that a rotary embedding was trained for, beyond
    /// which all its frequencies are others: the keys that the cache has turn by those of a shorter sequence.
    fn outgrows(&self, model: &Decoder) -> bool {
        let mut lens = model.config().ropes().into_iter().filter_map(RopeConfig::changes_beyond);
        lens.any(|len| self.positions.eq(len).any().int64_value(&[]) != 0)
    }

    /// Fills the cache with the prompts, of which the first `lens` tokens are what was asked; scores `[B, V]` of the tokens that
    /// follow them.
    fn read_prompts(
        &mut self,
        stages: &[Decoder],
        ranks: &DecodingRanks,
        prompts: &[Prompt],
        lens: &[usize],
    ) -> Tensor {
        let first = &stages[0];
        let device = first.device;
        let index = |values: &[i64]| Tensor::from_slice(values).to_device(device);
        let num_inputs = prompts.iter().map(|prompt| prompt.feature_rows.len()).max().unwrap_or(0);
        let (mut input_ids, mut rows, mut ends) = (Vec::new(), vec![Vec::new(); num_inputs], vec![0]);
        for prompt in prompts {
            for (rows, own) in rows.iter_mut().zip(&prompt.feature_rows) {
                rows.extend(own.iter().map(|row| row + input_ids.len() as i64));
            }
            input_ids.extend(&prompt.input_ids);
            ends.push(input_ids.len());
        }
        // By input, its rows, and of each level the features of all prompts.
        let level = |input: usize, level: usize| {
            let of_prompt = |prompt: &'_ Prompt| prompt.features.get(input)?.get(level).map(Tensor::shallow_clone);
            let of_prompts: Vec<Tensor> = prompts.iter().filter_map(of_prompt).collect();
            Tensor::cat(&of_prompts, 0).to_device(device).to_kind(first.kind)
        };
        let num_levels = |input: usize| prompts.iter().filter_map(|it| Some(it.features.get(input)?.len())).max();
        let levels = |input: usize| (0..num_levels(input).unwrap_or(0)).map(|number| level(input, number)).collect();
        let features: Vec<(Tensor, Vec<Tensor>)> =
            rows.iter().enumerate().map(|(input, rows)| (index(rows), levels(input))).collect();
        let position_ids: Vec<&Tensor> = prompts.iter().map(|prompt| &prompt.position_ids).collect();
        let position_ids = Tensor::cat(&position_ids, -1);
        let mask = first.config().sees.mask(&input_ids, &ends, lens);
        let ids_T = index(&input_ids);
        let mut x_TD = ranks.sum(first.token_table().look_up(&ids_T));
        for (rows, levels) in &features {
            x_TD = levels.first().map_or_else(|| x_TD.shallow_clone(), |merged| x_TD.index_copy(0, rows, merged));
        }
        x_TD = first.config().first_residual(x_TD);
        for (model, cache) in stages.iter().zip(&mut self.stages) {
            let contexts = model.contexts(&position_ids, &ends, mask.clone());
            let split = model.split(&Tensor::from_slice(&input_ids), false);
            let here = |x: &Tensor| x.to_device(model.device);
            let ids_T = here(&ids_T);
            x_TD = here(&x_TD);
            let StageCache { layers, columns } = cache;
            for ((number, layer), state) in model.numbered_layers().zip(layers) {
                let mixer = &layer.mixer;
                let (context, split) = (&contexts[layer.rope], split.as_ref());
                x_TD = layer.with_branch(0, x_TD, |x| {
                    layer.whole(ranks, mixer.module.prefill(&mixer.input(x), context, columns, state))
                });
                x_TD = layer.with_branch(1, x_TD, |x| ranks.sum(layer.feed_forward.forward(x, &ids_T, split)));
                for (rows, levels) in &features {
                    if let Some(level) = levels.get(number + 1) {
                        x_TD = x_TD.index_add(0, &here(rows), &here(level));
                    }
                }
            }
        }
        let ends: Vec<i64> = ends[1..].iter().map(|end| *end as i64 - 1).collect();
        let ends = Tensor::from_slice(&ends).to_device(x_TD.device());
        last_scores(stages, ranks, &x_TD.index_select(0, &ends))
    }

    /// Appends a token `[B]` to each sequence; scores `[B, V]` of the next.
    fn step(&mut self, stages: &[Decoder], ranks: &DecodingRanks, tokens: &Tensor) -> Tensor {
        let first = &stages[0];
        let lens = match first.config().depends_on_length() {
            true => Vec::try_from((&self.positions + 1).to_kind(Kind::Int64)).expect("one position a sequence"),
            false => Vec::new(),
        };
        let ends: Vec<usize> = (0..=lens.len()).collect();
        let positions = match first.config().has_three_axes() {
            true => self.positions.unsqueeze(0).expand([3, -1], false),
            false => self.positions.shallow_clone(),
        };
        let mut x_BD = first.config().first_residual(ranks.sum(first.token_table().look_up(tokens)));
        for (model, StageCache { layers, columns }) in stages.iter().zip(&mut self.stages) {
            let ropes = model.ropes(&positions, &ends, &lens);
            let tokens = tokens.to_device(model.device);
            columns.used += 1;
            x_BD = x_BD.to_device(model.device);
            for ((_, layer), state) in model.numbered_layers().zip(layers) {
                let (mixer, rope) = (&layer.mixer, &ropes[layer.rope]);
                x_BD = layer.with_branch(0, x_BD, |x| {
                    layer.whole(ranks, mixer.module.step(&mixer.input(x), rope, columns, state))
                });
                x_BD = layer.with_branch(1, x_BD, |x| ranks.sum(layer.feed_forward.forward(x, &tokens, None)));
            }
        }
        self.positions = &self.positions + 1;
        last_scores(stages, ranks, &x_BD)
    }
}

impl StageCache {
    fn new(model: &Decoder, prompts: &[Prompt], max_new_tokens: usize) -> StageCache {
        let index = |values: &[i64]| Tensor::from_slice(values).to_device(model.device);
        let longest = prompts.iter().map(|prompt| prompt.input_ids.len()).max().unwrap_or(0) as i64;
        let (num_sequences, num_columns) = (prompts.len() as i64, longest + max_new_tokens as i64);
        let starts: Vec<i64> = prompts.iter().map(|prompt| longest - prompt.input_ids.len() as i64).collect();
        let places: Vec<i64> =
            (0..).zip(&starts).flat_map(|(b, start)| (*start..longest).map(move |at| b * num_columns + at)).collect();
        let all = Tensor::arange(num_columns, (Kind::Int64, model.device)).view([1, 1, 1, -1]);
        let columns = CacheColumns {
            num_sequences,
            num_columns,
            used: longest,
            places_T: index(&places),
            filled_B11S: all.ge_tensor(&index(&starts).view([-1, 1, 1, 1])),
            has_gaps: starts.iter().any(|start| *start > 0),
            chosen: LayerCache::default(),
        };
        StageCache { layers: model.numbered_layers().map(|_| State::new()).collect(), columns }
    }
}

/// Scores `[B, V]` of the next tokens, of residuals `[B, D]` behind the last layer.
fn last_scores(stages: &[Decoder], ranks: &DecodingRanks, x_BD: &Tensor) -> Tensor {
    let model = &stages[stages.len() - 1];
    ranks.whole_scores(model.logits(&model.last().norm.forward(x_BD)))
}
