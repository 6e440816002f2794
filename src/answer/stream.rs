//! Answers to several questions at a time, told piece by piece.

use crate::eval::generator::Reader;
use anyhow::Result;
use loongforge_core::data::{DataError, Sample, StopStrings, TextStream};
use loongforge_core::openai::Finish;
use loongforge_torch::model::{Continued, Decoding, Prompt, Sampling};

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
    /// The first of these ends the answer and is left out, as is a token that ends a turn.
    pub stops: Vec<String>,
    /// The answer goes on with the prompt's own text, and does not begin a turn.
    pub goes_on: bool,
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text that follows what was told before, of whole characters; empty where a token has told none.
    Text(String),
    /// Nothing follows. `num_tokens` were made, without the token that ended it.
    End { finish: Finish, num_tokens: usize },
}

/// One answer that goes on.
struct Answering {
    text: TextStream,
    stops: StopStrings,
    num_tokens: usize,
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
    let prompts: Vec<Prompt> = questions.iter().map(|(sample, _)| reader.model().prompt(sample)).collect();
    let decoding = |(_, wanted): &(&Sample, &Wanted)| Decoding {
        max_new_tokens: wanted.max_new_tokens,
        stop_token_ids: reader.stop_token_ids().to_vec(),
        sampling: wanted.sampling.clone(),
        repetition_penalty: wanted.repetition_penalty,
        presence_penalty: wanted.presence_penalty,
        frequency_penalty: wanted.frequency_penalty,
    };
    let decodings: Vec<Decoding> = questions.iter().map(decoding).collect();
    // What a decoder behind an encoder writes stands for itself.
    let is_apart = reader.processor().encoder_decoder().is_some();
    let begin = |(sample, wanted): &(&Sample, &Wanted)| Answering {
        text: match wanted.goes_on && !is_apart {
            true => TextStream::behind(&sample.input_ids),
            false => TextStream::default(),
        },
        stops: StopStrings::new(wanted.stops.iter().cloned()),
        num_tokens: 0,
    };
    let mut answers: Vec<Answering> = questions.iter().map(begin).collect();
    let mut failed: Option<DataError> = None;
    reader.model().continue_each(&prompts, &decodings, &mut |index, continued| {
        let answer = &mut answers[index];
        let (decoded, end) = match continued {
            Continued::Token(token) => {
                answer.num_tokens += 1;
                (answer.text.push(tokenizer, token), None)
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
        if (end.is_none() || !text.is_empty()) && !hear(index, Piece::Text(text)) {
            return false;
        }
        if let Some(finish) = end {
            hear(index, Piece::End { finish, num_tokens: answer.num_tokens });
        }
        end.is_none()
    })?;
    failed.map_or(Ok(()), |error| Err(error.into()))
}
