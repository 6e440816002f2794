//! Describes how long continuations get, and how their tokens are chosen.

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

use super::sampling::{Sampling, discount, favor, penalize};

/// Describes how long continuations get, and how their tokens are chosen.
#[derive(Clone, Debug, Default)]
pub struct Decoding {
    pub max_new_tokens: usize,
    /// The first of these ends a continuation and is left out.
    pub stop_token_ids: Vec<i64>,
    /// `None`: always the most likely token.
    pub sampling: Option<Sampling>,
    /// Numbers that are added to the scores of tokens before anything else; the model has all of these tokens.
    pub logit_bias: BTreeMap<i64, f64>,
    /// Tokens of the prompt and of the continuation so far lose by this factor, above 1; `None`: they do not.
    pub repetition_penalty: Option<f64>,
    /// The number that is subtracted once from the scores of tokens of the continuation so far, and the one that is subtracted for every
    /// time that such a token occurs.
    pub presence_penalty: f64,
    pub frequency_penalty: f64,
    /// The number of most likely tokens whose log probabilities are told with each chosen token's; `None`: none are told.
    pub top_logprobs: Option<usize>,
}

impl Decoding {
    /// Returns whether tokens are chosen by the model's own scores.
    fn keeps_scores(&self) -> bool {
        let has_penalties = self.presence_penalty != 0.0 || self.frequency_penalty != 0.0;
        self.logit_bias.is_empty() && self.repetition_penalty.is_none() && !has_penalties
    }
}

/// The log probability of a token by the model's own scores: before penalties, temperature and what sampling leaves out.
#[derive(Clone, Debug, PartialEq)]
pub struct Likelihood {
    /// Natural logarithm of its probability.
    pub logprob: f64,
    /// The most likely tokens at its place with theirs, the first one first.
    pub top: Vec<(i64, f64)>,
}

/// Says what has become of a continuation.
#[derive(Clone, Debug, PartialEq)]
pub enum Continued {
    /// The log probability of the token that is told next.
    Likelihood(Likelihood),
    /// The continuation has one more token.
    Token(i64),
    /// The continuation has ended with a stop token, which is left out.
    Stopped,
    /// The continuation has as many tokens as it may have.
    Full,
}

/// Continuations of a batch of prompts, token by token.
pub(super) struct Continuations<'a> {
    decodings: &'a [&'a Decoding],
    /// True for the continuations that go on.
    pub running: Vec<bool>,
    /// The tokens that each has seen, those of the prompt first.
    seen: Vec<Vec<i64>>,
    /// How often each has written a token.
    written: Vec<BTreeMap<i64, u32>>,
    /// The log probabilities of the tokens of this step, where they are told.
    likelihoods: Vec<Option<Likelihood>>,
}

impl<'a> Continuations<'a> {
    /// Makes continuations behind the tokens `seen`, each as its own decoding says.
    pub fn new(decodings: &'a [&'a Decoding], seen: Vec<Vec<i64>>) -> Continuations<'a> {
        let running = decodings.iter().map(|it| it.max_new_tokens > 0).collect();
        let written = vec![BTreeMap::new(); decodings.len()];
        Continuations { decodings, running, seen, written, likelihoods: vec![None; decodings.len()] }
    }

    /// Returns the largest number of tokens that a continuation may get.
    pub fn max_new_tokens(&self) -> usize {
        self.decodings.iter().map(|decoding| decoding.max_new_tokens).max().unwrap_or(0)
    }

    /// Returns whether no sequence goes on.
    pub fn are_done(&self) -> bool {
        !self.running.contains(&true)
    }

    /// Tells `hear` of those that may have no token.
    pub fn begin(&self, hear: &mut dyn FnMut(usize, Continued) -> bool) {
        for index in (0..self.running.len()).filter(|&index| !self.running[index]) {
            hear(index, Continued::Full);
        }
    }

    /// Returns the next token of each, `[B]`, from its scores `[B, V]` and the tokens that it has seen.
    pub fn choose(&self, scores: &Tensor, step: usize) -> Tensor {
        let next = scores.argmax(-1, false);
        for (((row, decoding), seen), written) in (0..).zip(self.decodings).zip(&self.seen).zip(&self.written) {
            if decoding.keeps_scores() && decoding.sampling.is_none() {
                continue;
            }
            let mut own = scores.get(row);
            if !decoding.logit_bias.is_empty() {
                own = favor(&own, &decoding.logit_bias);
            }
            if let Some(penalty) = decoding.repetition_penalty {
                own = penalize(&own, seen, penalty);
            }
            if decoding.presence_penalty != 0.0 || decoding.frequency_penalty != 0.0 {
                own = discount(&own, written, decoding.presence_penalty, decoding.frequency_penalty);
            }
            let own = own.unsqueeze(0);
            let chosen = match &decoding.sampling {
                Some(sampling) => sampling.choose(&own, step),
                None => own.argmax(-1, false),
            };
            next.narrow(0, row, 1).copy_(&chosen);
        }
        next
    }

    /// Finds how likely the `tokens` of this step are by their scores `[B, V]`, for those that are told.
    pub fn weigh(&mut self, scores: &Tensor, tokens: &[i64]) {
        for (row, (decoding, &token)) in self.decodings.iter().zip(tokens).enumerate() {
            let Some(count) = decoding.top_logprobs.filter(|_| self.running[row]) else { continue };
            let logprobs_V = scores.get(row as i64).log_softmax(-1, Kind::Float);
            let count = (count as i64).min(logprobs_V.size()[0]);
            let mut top = Vec::new();
            if count > 0 {
                let (best, tokens) = logprobs_V.topk(count, -1, true, true);
                let best = Vec::<f32>::try_from(&best).expect("a row of numbers");
                let tokens = Vec::<i64>::try_from(&tokens).expect("a row of integers");
                top.extend(tokens.into_iter().zip(best.into_iter().map(f64::from)));
            }
            self.likelihoods[row] = Some(Likelihood { logprob: logprobs_V.double_value(&[token]), top });
        }
    }

    /// Tells `hear` of the `tokens` of this step, one each, and of ends; it answers whether that continuation goes on.
    pub fn hear(&mut self, step: usize, tokens: &[i64], hear: &mut dyn FnMut(usize, Continued) -> bool) {
        self.hear_forced(step, tokens, tokens, hear);
    }

    /// Works like `hear` of `tokens` some of which stand in place of those that were `chosen`: a stop token that was not chosen, where
    /// there may be no more, does not mean that the continuation has come to its end.
    pub fn hear_forced(
        &mut self,
        step: usize,
        chosen: &[i64],
        tokens: &[i64],
        hear: &mut dyn FnMut(usize, Continued) -> bool,
    ) {
        for (index, (&token, chosen)) in tokens.iter().zip(chosen).enumerate() {
            if !self.running[index] {
                continue;
            }
            let Decoding { max_new_tokens, stop_token_ids, .. } = self.decodings[index];
            let is_last = step + 1 == *max_new_tokens;
            if stop_token_ids.contains(&token) {
                let is_cut = is_last && !stop_token_ids.contains(chosen);
                hear(index, if is_cut { Continued::Full } else { Continued::Stopped });
                self.running[index] = false;
                continue;
            }
            self.seen[index].push(token);
            *self.written[index].entry(token).or_insert(0) += 1;
            if let Some(likelihood) = self.likelihoods[index].take() {
                hear(index, Continued::Likelihood(likelihood));
            }
            self.running[index] = hear(index, Continued::Token(token));
            if self.running[index] && is_last {
                hear(index, Continued::Full);
                self.running[index] = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_end_is_a_cut_unless_it_was_chosen() {
        let decoding = Decoding { max_new_tokens: 2, stop_token_ids: vec![9], ..Decoding::default() };
        let heard = |step, chosen: i64, token: i64| {
            let (decodings, mut heard) = ([&decoding], Vec::new());
            let mut answers = Continuations::new(&decodings, vec![Vec::new()]);
            answers.hear_forced(step, &[chosen], &[token], &mut |_, continued| {
                heard.push(continued);
                true
            });
            (heard, answers.are_done())
        };
        assert_eq!(heard(1, 5, 9), (vec![Continued::Full], true));
        assert_eq!(heard(1, 9, 9), (vec![Continued::Stopped], true));
        assert_eq!(heard(0, 9, 9), (vec![Continued::Stopped], true));
        assert_eq!(heard(0, 5, 9), (vec![Continued::Stopped], true));
        assert_eq!(heard(0, 9, 5), (vec![Continued::Token(5)], false));
        assert_eq!(heard(1, 5, 5), (vec![Continued::Token(5), Continued::Full], true));
    }

    #[test]
    fn tokens_are_as_likely_as_the_model_has_them_whatever_is_chosen() {
        let plain = Decoding { max_new_tokens: 9, ..Decoding::default() };
        let sampling = Some(Sampling { temperature: 0.1, top_k: 1, top_p: 1.0, min_p: 0.0, seed: 1 });
        let told = Decoding { top_logprobs: Some(2), sampling, repetition_penalty: Some(9.0), ..plain.clone() };
        let none = Decoding { top_logprobs: Some(0), ..plain.clone() };
        let decodings = [&told, &plain, &none];
        let mut answers = Continuations::new(&decodings, vec![vec![2]; 3]);
        // Less a constant, which changes nothing.
        let scores = (Tensor::from_slice(&[0.1f32, 0.2, 0.7]).log() - 3.0).repeat([3, 1]);
        let mut heard = Vec::new();
        answers.weigh(&scores, &[1, 1, 0]);
        answers.hear(0, &[1, 1, 0], &mut |index, continued| {
            heard.push((index, continued));
            true
        });
        let [(0, Continued::Likelihood(first)), (0, Continued::Token(1)), (1, Continued::Token(1)), last @ ..] =
            &heard[..]
        else {
            panic!("{heard:?}")
        };
        let is_near = |one: f64, other: f64| (one - other.ln()).abs() < 1e-5;
        assert!(is_near(first.logprob, 0.2), "{first:?}");
        let [(2, best), (1, second)] = first.top[..] else { panic!("{first:?}") };
        assert!(is_near(best, 0.7) && is_near(second, 0.2), "{first:?}");
        let [(2, Continued::Likelihood(alone)), (2, Continued::Token(0))] = last else { panic!("{heard:?}") };
        assert!(is_near(alone.logprob, 0.1) && alone.top.is_empty(), "{alone:?}");
    }

    #[test]
    fn penalties_of_written_tokens_spare_the_prompt() {
        let decoding = Decoding { max_new_tokens: 9, presence_penalty: 1.0, ..Decoding::default() };
        let decodings = [&decoding, &decoding];
        let mut answers = Continuations::new(&decodings, vec![vec![2], vec![1]]);
        let scores = Tensor::from_slice(&[0.0f32, 0.5, 1.0, 0.0, 0.5, 1.0]).view([2, 3]);
        let chosen = |answers: &Continuations<'_>, step| Vec::<i64>::try_from(answers.choose(&scores, step)).unwrap();
        assert_eq!(chosen(&answers, 0), [2, 2]);
        answers.hear(0, &[2, 0], &mut |_, _| true);
        assert_eq!(chosen(&answers, 1), [1, 2]);
    }

    #[test]
    fn a_biased_token_is_chosen_and_as_likely_as_the_model_has_it() {
        let plain = Decoding { max_new_tokens: 9, ..Decoding::default() };
        let sampling = Some(Sampling { temperature: 2.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 1 });
        let greedy = Decoding { logit_bias: [(0, 100.0)].into(), top_logprobs: Some(1), ..plain.clone() };
        let drawn = Decoding { sampling, ..greedy.clone() };
        let banned = Decoding { logit_bias: [(2, -100.0)].into(), ..plain.clone() };
        // Added before the penalty, which then halves 1 + 0.8.
        let penalized = Decoding { logit_bias: [(2, 0.8)].into(), repetition_penalty: Some(2.0), ..plain.clone() };
        let decodings = [&greedy, &drawn, &banned, &plain, &penalized];
        let mut answers = Continuations::new(&decodings, vec![vec![2]; 5]);
        let scores = Tensor::from_slice(&[0.0f32, 0.92, 1.0]).repeat([5, 1]);
        let chosen = Vec::<i64>::try_from(answers.choose(&scores, 0)).unwrap();
        assert_eq!(chosen, [0, 0, 1, 2, 1]);
        let mut likelihoods = Vec::new();
        answers.weigh(&scores, &chosen);
        answers.hear(0, &chosen, &mut |_, continued| {
            if let Continued::Likelihood(likelihood) = continued {
                likelihoods.push(likelihood);
            }
            true
        });
        let [first, second] = &likelihoods[..] else { panic!("{likelihoods:?}") };
        assert_eq!(first, second);
        assert!(first.top[0].0 == 2 && first.logprob < first.top[0].1, "{first:?}");
    }
}
