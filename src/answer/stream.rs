//! Answers to several questions at a time, told piece by piece.

use crate::eval::generator::Reader;
use anyhow::Result;
use loongforge_core::data::{DataError, Sample, StopStrings, TextStream, Tokenizer};
use loongforge_core::openai::{Finish, Likely, TokenLogprob};
use loongforge_torch::model::{Continued, Decoding, Likelihood, Prompt, Sampling};
use std::collections::BTreeMap;

/// Says how long an answer may get, and how its tokens are chosen.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub max_new_tokens: usize,
    /// `None`: always the most likely token.
    pub sampling: Option<Sampling>,
    pub repetition_penalty: Option<f64>,
    /// Tokens that the answer has lose the first in score, and the second for every time that it has them.
    pub presence_penalty: f64,
    pub frequency_penalty: f64,
    /// Numbers that are added to the scores of tokens, all of which the model has.
    pub logit_bias: BTreeMap<i64, f64>,
    /// The first of these ends the answer and is left out, as is a token that ends a turn.
    pub stops: Vec<String>,
    /// The number of most likely tokens whose likelihoods are told with each token's; `None`: none are told.
    pub top_logprobs: Option<usize>,
    /// The answer goes on with the prompt's own text, and does not begin a turn.
    pub goes_on: bool,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// The likelihood of the token whose text is told next, also if a stop string cuts that off.
    Likely(Likely),
    /// Text that follows what was told before, of whole characters; empty where a token has told none. `num_tokens` were made so far.
    Text { text: String, num_tokens: usize },
    /// Nothing follows. `num_tokens` were made, without the token that ended it.
    End { finish: Finish, num_tokens: usize },
}

/// One answer that goes on.
struct Answering {
    text: TextStream,
    stops: StopStrings,
    num_tokens: usize,
    /// The likelihood of the next token, if that was told.
    likelihood: Option<Likelihood>,
    /// The token before the next one, if its text stands before that of the answer.
    before: Option<i64>,
    /// Characters of the tokens so far.
    num_chars: usize,
}

impl Answering {
    /// Returns the likelihood of this token, if that was told.
    fn likely(&mut self, tokenizer: &Tokenizer, token: i64) -> Result<Option<Likely>, DataError> {
        let before = self.before.replace(token);
        let Some(Likelihood { logprob, top }) = self.likelihood.take() else { return Ok(None) };
        let of = |(id, logprob): (i64, f64)| -> Result<TokenLogprob, DataError> {
            Ok(TokenLogprob { token: text_of(tokenizer, before, id)?, logprob })
        };
        let offset = self.num_chars;
        let (of, top) = (of((token, logprob))?, top.into_iter().map(of).collect::<Result<_, DataError>>()?);
        self.num_chars += of.token.chars().count();
        Ok(Some(Likely { of, top, offset }))
    }
}

/// Returns the text of a token behind another: some tokenizers leave out a space at the beginning of a text.
fn text_of(tokenizer: &Tokenizer, before: Option<i64>, id: i64) -> Result<String, DataError> {
    if let Some(before) = before {
        let (first, both) = (tokenizer.decode_all(&[before])?, tokenizer.decode_all(&[before, id])?);
        if let Some(text) = both.strip_prefix(first.as_str()) {
            return Ok(text.to_owned());
        }
    }
    tokenizer.decode_all(&[id])
}

/// Returns the prompts of questions. Several answers to one sample, which stand side by side, share what the towers make of its pictures.
fn prompts(reader: &Reader, questions: &[(&Sample, &Wanted)]) -> Vec<Prompt> {
    let mut prompts: Vec<Prompt> = Vec::with_capacity(questions.len());
    let mut before: Option<&Sample> = None;
    for &(sample, _) in questions {
        let same = prompts.last().filter(|_| before.is_some_and(|before| std::ptr::eq(before, sample)));
        let prompt = same.map_or_else(|| reader.model().prompt(sample), Prompt::share);
        prompts.push(prompt);
        before = Some(sample);
    }
    prompts
}

/// Answers questions together. `hear` is told of every piece of answer `index` as it comes and says whether that answer goes on;
/// one that does not is told no end. Each answer is what it would be alone, but for the rounding of larger products.
///
/// # Errors
/// The model made tokens that are no text.
pub fn answer_each(
    reader: &Reader,
    questions: &[(&Sample, &Wanted)],
    hear: &mut dyn FnMut(usize, Piece) -> bool,
) -> Result<()> {
    let tokenizer = reader.processor().tokenizer();
    let prompts = prompts(reader, questions);
    let decoding = |(_, wanted): &(&Sample, &Wanted)| Decoding {
        max_new_tokens: wanted.max_new_tokens,
        stop_token_ids: reader.stop_token_ids().to_vec(),
        sampling: wanted.sampling.clone(),
        repetition_penalty: wanted.repetition_penalty,
        presence_penalty: wanted.presence_penalty,
        frequency_penalty: wanted.frequency_penalty,
        logit_bias: wanted.logit_bias.clone(),
        top_logprobs: wanted.top_logprobs,
    };
    let decodings: Vec<Decoding> = questions.iter().map(decoding).collect();
    // What a decoder behind an encoder writes stands for itself.
    let is_apart = reader.processor().encoder_decoder().is_some();
    let begin = |(sample, wanted): &(&Sample, &Wanted)| {
        let goes_on = wanted.goes_on && !is_apart;
        Answering {
            text: if goes_on { TextStream::behind(&sample.input_ids) } else { TextStream::default() },
            stops: StopStrings::new(wanted.stops.iter().cloned()),
            num_tokens: 0,
            likelihood: None,
            before: sample.input_ids.last().copied().filter(|_| goes_on),
            num_chars: 0,
        }
    };
    let mut answers: Vec<Answering> = questions.iter().map(begin).collect();
    let mut failed: Option<DataError> = None;
    reader.model().continue_each(&prompts, &decodings, &mut |index, continued| {
        let answer = &mut answers[index];
        let (decoded, end) = match continued {
            Continued::Likelihood(likelihood) => {
                answer.likelihood = Some(likelihood);
                return true;
            }
            Continued::Token(token) => {
                answer.num_tokens += 1;
                match answer.likely(tokenizer, token) {
                    Ok(likely) => {
                        if let Some(likely) = likely
                            && !hear(index, Piece::Likely(likely))
                        {
                            return false;
                        }
                        (answer.text.push(tokenizer, token), None)
                    }
                    Err(error) => (Err(error), None),
                }
            }
            Continued::Stopped => (answer.text.finish(tokenizer), Some(Finish::Stop)),
            Continued::Full => (answer.text.finish(tokenizer), Some(Finish::Length)),
        };
        let decoded = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                failed.get_or_insert(error);
                return false;
            }
        };
        let mut text = answer.stops.push(&decoded);
        if end.is_some() && !answer.stops.has_stopped() {
            text += &answer.stops.finish();
        }
        let end = if answer.stops.has_stopped() { Some(Finish::Stop) } else { end };
        let num_tokens = answer.num_tokens;
        if (end.is_none() || !text.is_empty()) && !hear(index, Piece::Text { text, num_tokens }) {
            return false;
        }
        if let Some(finish) = end {
            hear(index, Piece::End { finish, num_tokens });
        }
        end.is_none()
    })?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}
