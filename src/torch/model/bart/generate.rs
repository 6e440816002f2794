//! Answers token by token, greedy or sampled: the encoder reads all prompts once as one packed row, without padding, and the decoder
//! keeps keys and values of the tokens before. All answers begin at the same step, so that no cache is padded either.
//!
//! Shapes: T tokens of all prompts, B prompts, D width, V vocabulary.

use tch::Tensor;

use super::encoder::Sequences;
use super::network::EncoderDecoder;
use crate::model::decoder::Prompt;
use crate::model::decoding::{Continuations, Continued, Decoding};
use crate::nn::{CrossAttention, DocumentKeys, Mask, take_rows};

impl EncoderDecoder {
    /// Answers each prompt as its own decoding says. `hear` is told of every token of answer `index` as it comes, and of the end; it
    /// answers whether that answer goes on. Draws depend on no other prompt. An answer ends where positions do.
    ///
    /// # Panics
    /// There is no prompt or an empty one.
    pub fn answer_each(
        &self,
        prompts: &[Prompt],
        decodings: &[&Decoding],
        hear: &mut dyn FnMut(usize, Continued) -> bool,
    ) {
        let _no_grad = tch::no_grad_guard();
        assert!(prompts.iter().all(|prompt| !prompt.input_ids.is_empty()), "a prompt needs a token");
        let rules = self.config.answers;
        let fitting = |decoding: &&Decoding| Decoding {
            max_new_tokens: decoding.max_new_tokens.min(rules.max),
            ..(*decoding).clone()
        };
        let fitting: Vec<Decoding> = decodings.iter().map(fitting).collect();
        let fitting: Vec<&Decoding> = fitting.iter().collect();
        let mut answers = Continuations::new(&fitting, vec![vec![rules.start]; prompts.len()]);
        answers.begin(hear);
        if answers.are_done() {
            return;
        }
        let (encoded, crossing) = self.read(prompts);
        let mut caches = self.decoder.begin(&encoded);
        let mut tokens = vec![rules.start; prompts.len()];
        for step in 0..answers.max_new_tokens() {
            let x_BD = self.tokens.part.look_up(&self.index(&tokens));
            let states = self.decoder.step(&x_BD, step as i64, &crossing, &mut caches);
            let scores = states.matmul(&self.tokens.part.table().tr());
            tokens = Vec::try_from(answers.choose(&scores, step)).expect("one token an answer");
            let chosen = tokens.clone();
            for (token, decoding) in tokens.iter_mut().zip(&fitting) {
                *token = rules.forced_at(step, decoding.max_new_tokens).unwrap_or(*token);
            }
            answers.weigh(&scores, &tokens);
            answers.hear_forced(step, &chosen, &tokens, hear);
            if answers.are_done() {
                break;
            }
        }
    }

    /// Returns the states `[T, D]` of all prompts behind the encoder, and which of them an answer's next token meets.
    fn read(&self, prompts: &[Prompt]) -> (Tensor, CrossAttention) {
        let (mut ids, mut rows, mut ends, mut keys) = (Vec::new(), Vec::new(), vec![0], Vec::new());
        let mut features = Vec::new();
        for prompt in prompts {
            let begin = ids.len() as i64;
            rows.extend(prompt.feature_rows.iter().flatten().map(|row| row + begin));
            features.extend(prompt.features.iter().flatten());
            ids.extend(&prompt.input_ids);
            keys.push(DocumentKeys { rows: begin..ids.len() as i64, extra: None });
            ends.push(ids.len());
        }
        let mut x_TD = self.tokens.part.look_up(&self.index(&ids));
        if !rows.is_empty() {
            let features = Tensor::cat(&features, 0).to_device(self.device).to_kind(self.kind);
            x_TD = x_TD.index_copy(0, &self.index(&rows), &features);
        }
        let all: Vec<i64> = (0..ids.len() as i64).collect();
        let sequences = Sequences::new(&all, &ends, Mask::Full, self.device);
        let next: Vec<usize> = (0..=prompts.len()).collect();
        let crossing = CrossAttention::new(&next, &keys, ids.len() as i64, self.device);
        (self.encoder.forward(&x_TD, &sequences, take_rows), crossing)
    }

    fn index(&self, values: &[i64]) -> Tensor {
        Tensor::from_slice(values).to_device(self.device)
    }
}
