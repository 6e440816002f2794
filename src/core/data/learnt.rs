//! Which part of a rendered conversation is the assistant's: from behind the turn's header to its closing token.

use std::ops::Range;

use super::error::DataError;
use super::source::{Conversation, Part, Turn};
use super::template::ChatTemplate;
use super::tokenizer::{Token, Tokenizer};

const ASSISTANT: &str = "assistant";

/// A content by which the place of a turn's own is found.
const STAND_IN: &str = "loongforge-stand-in";

/// An assistant turn in a rendered text, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Where it would be generated from.
    pub begin: usize,
    /// Where its turn ends at the latest.
    pub limit: usize,
    /// The template says so: all up to `limit` is learnt.
    pub exact: bool,
}

/// The assistant's turns in `text`, the rendering of `turns`; `marked` are those that the template marks itself.
///
/// # Errors
/// The template renders turns in a way in which their places cannot be told.
pub fn answers(
    template: &ChatTemplate,
    turns: &[Turn],
    text: &str,
    marked: Vec<Range<usize>>,
) -> Result<Vec<Answer>, DataError> {
    if template.marks_answers() {
        let exact = |range: Range<usize>| Answer { begin: range.start, limit: range.end, exact: true };
        return Ok(marked.into_iter().filter(|range| !range.is_empty()).map(exact).collect());
    }
    let indices = (0..turns.len()).filter(|&index| turns[index].role == ASSISTANT);
    indices
        .map(|index| {
            let begin = begin(template, turns, index, text)?;
            // A template may render the last turn in another way; then the closing token says where it ends.
            let until =
                template.render(&turns[..=index], false).ok().filter(|prefix| text.starts_with(prefix.as_str()));
            let limit = until.map_or(text.len(), |prefix| prefix.len()).max(begin);
            Ok(Answer { begin, limit, exact: false })
        })
        .collect()
}

fn begin(template: &ChatTemplate, turns: &[Turn], index: usize, text: &str) -> Result<usize, DataError> {
    let before = &turns[..index];
    let plain = template.render(before, false).ok().filter(|prefix| text.starts_with(prefix.as_str()));
    let floor = plain.as_ref().map_or(0, String::len);
    // What stands before the turn, header included, is what one would generate from.
    let header = template.render(before, true).ok();
    if let Some(header) = &header
        && text.starts_with(header.as_str())
        && header.len() > floor
    {
        return Ok(header.len());
    }
    // The template knows no header, or one that training turns lack: many end theirs in `<think>`. A space before the
    // content is the first token's.
    let content = content_begin(template, turns, index, text).map(|at| text[..at].trim_end_matches(' ').len());
    let shared = header.map_or(usize::MAX, |header| match common_prefix(&header, text) {
        shared if shared > floor => shared,
        _ => usize::MAX,
    });
    match (content, plain) {
        (Some(content), _) => Ok(content.min(shared).max(floor)),
        // Then the header is learnt as well.
        (None, Some(_)) => Ok(floor),
        (None, None) => {
            Err(DataError::Template(format!("turn {index} does not begin with the rendering of the turns before it")))
        }
    }
}

/// Where the content of a turn begins, by putting another in its place.
fn content_begin(template: &ChatTemplate, turns: &[Turn], index: usize, text: &str) -> Option<usize> {
    let mut others = turns.to_vec();
    others[index].parts = vec![Part::Text { text: STAND_IN.to_owned() }];
    let rendered = template.render(&others, false).ok()?;
    let at = rendered.find(STAND_IN)?;
    text.starts_with(&rendered[..at]).then_some(at)
}

fn common_prefix(left: &str, right: &str) -> usize {
    let same = left.chars().zip(right.chars()).take_while(|(a, b)| a == b);
    same.map(|(letter, _)| letter.len_utf8()).sum()
}

impl Conversation {
    /// The turns before the last assistant turn, and what that turn says: a question and its expected answer.
    pub fn split_answer(&self) -> Option<(Conversation, String)> {
        let at = self.turns.iter().rposition(|turn| turn.role == ASSISTANT)?;
        let turns: Vec<Turn> = self.turns[..at].to_vec();
        let num_media = turns.iter().map(Turn::num_media).sum();
        let media = self.media[..num_media].to_vec();
        Some((Conversation { turns, media }, self.turns[at].joined_text()))
    }
}

/// For each token whether it is the assistant's. `place` says where a byte of the rendered text is in the text that
/// the tokens are of.
pub fn mask(answers: &[Answer], tokens: &[Token], tokenizer: &Tokenizer, place: impl Fn(usize) -> usize) -> Vec<bool> {
    let mut learnt = vec![false; tokens.len()];
    for answer in answers {
        let token_at = |at: usize| tokens.partition_point(|token| token.start < at);
        let (mut first, limit) = (token_at(place(answer.begin)), token_at(place(answer.limit)));
        if answer.exact {
            // A token that begins before and reaches into it is its own, as transformers has it.
            let reaches = tokens.get(first).is_none_or(|token| token.start > place(answer.begin));
            first -= usize::from(reaches && first > 0);
            learnt[first..limit.max(first)].fill(true);
            continue;
        }
        // One more: in some templates the next turn's first token is what ends this one.
        let within = &tokens[first..(limit + 1).min(tokens.len()).max(first)];
        let end = within.iter().position(|token| tokenizer.special().end.contains(&token.id));
        let end = end.map_or(limit, |offset| first + offset + 1);
        learnt[first..end.max(first)].fill(true);
    }
    learnt
}
