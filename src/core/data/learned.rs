//! Describes which part of a rendered conversation is the assistant's: from behind the turn's header to its closing
//! token.

use std::ops::Range;

use super::error::DataError;
use super::places::Places;
use super::source::{Conversation, Turn};
use super::template::ChatTemplate;
use super::tokenizer::{Token, Tokenizer};
use crate::config::Learn;

const ASSISTANT: &str = "assistant";

/// An assistant turn in a rendered text, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerSpan {
    /// The number of its turn in the record.
    pub turn: usize,
    /// The place where its generation would begin.
    pub begin: usize,
    /// Closing tokens before this place are the content's own.
    pub content_end: usize,
    /// The place where its turn ends at the latest.
    pub limit: usize,
    /// The template says so: all up to `limit` is learned.
    pub exact: bool,
    /// The header of the next turn is before `limit`: the first special token behind the content is the last that is learned.
    pub has_header: bool,
}

/// Returns the numbers of the turns that are learned.
///
/// # Errors
/// One of them says nothing.
fn learned_turns(turns: &[Turn], learn: Learn) -> Result<Vec<usize>, DataError> {
    let mut all = (0..turns.len()).filter(|&index| turns[index].role == ASSISTANT);
    let chosen: Vec<usize> = match learn {
        Learn::All => all.collect(),
        Learn::Last => all.next_back().into_iter().collect(),
    };
    let chosen: Vec<usize> = chosen.into_iter().filter(|&index| turns[index].learn != Some(false)).collect();
    match chosen.iter().find(|&&index| turns[index].is_empty()) {
        Some(&index) => Err(nothing_said(number(turns, index))),
        None => Ok(chosen),
    }
}

/// Returns the number of a turn in its record: a system message that was put before them is none of it.
fn number(turns: &[Turn], index: usize) -> usize {
    index.saturating_sub(usize::from(turns.first().is_some_and(|turn| turn.is_default)))
}

fn nothing_said(turn: usize) -> DataError {
    let reason = "is empty: only the token that ends it would contribute to the loss (`weight: 0` leaves it out)";
    DataError::Line(format!("the assistant's message, number {} of the conversation, {reason}", turn + 1))
}

/// Returns the assistant's turns in `text` that are learned; `text` is the rendering of `turns`, `marked` are the assistant's turns that
/// the template marks itself, `closing` the tokens that end a turn.
///
/// # Errors
/// The template renders turns in a way in which their places cannot be told; a turn says nothing.
pub fn answers(
    template: &ChatTemplate,
    turns: &[Turn],
    text: &str,
    marked: Vec<Range<usize>>,
    (learn, closing): (Learn, &[String]),
) -> Result<Vec<AnswerSpan>, DataError> {
    let chosen = learned_turns(turns, learn)?;
    if template.marks_answers() {
        return exact_answers(turns, &chosen, marked);
    }
    let holds_closing = |index: usize| {
        let content = turns[index].joined_text();
        closing.iter().any(|token| content.contains(token.as_str()))
    };
    let places = Places { template, turns, text };
    chosen
        .into_iter()
        .map(|index| {
            let begin = places.begin(index)?;
            let (limit, is_end) = places.limit(index);
            let limit = limit.max(begin);
            // Calls are behind the content.
            let is_open = !is_end && !turns[index].fields.contains_key("tool_calls");
            let content_end = (is_open || holds_closing(index)).then(|| places.content_end(index)).flatten();
            let has_header = is_open && content_end.is_some();
            let content_end = content_end.unwrap_or(begin).clamp(begin, limit);
            let turn = number(turns, index);
            Ok(AnswerSpan { turn, begin, content_end, limit, exact: false, has_header })
        })
        .collect()
}

/// Returns the answers that the template marks. Marks have no numbers: where not all turns are learned, each turn must
/// have one.
fn exact_answers(turns: &[Turn], chosen: &[usize], marked: Vec<Range<usize>>) -> Result<Vec<AnswerSpan>, DataError> {
    let all: Vec<usize> = (0..turns.len()).filter(|&index| turns[index].role == ASSISTANT).collect();
    let numbered = marked.len() == all.len();
    if !numbered && chosen.len() != all.len() {
        return Err(DataError::Template(format!(
            "marks {} answers of {} assistant messages, so it is unknown which of them to leave out of the loss",
            marked.len(),
            all.len()
        )));
    }
    let turn = |place: usize| if numbered { all[place] } else { all.first().copied().unwrap_or_default() };
    let answers = marked.into_iter().enumerate().filter(|(_, range)| !range.is_empty());
    let answers = answers.filter(|(place, _)| !numbered || chosen.contains(&all[*place]));
    let exact = |(place, range): (usize, Range<usize>)| AnswerSpan {
        turn: number(turns, turn(place)),
        begin: range.start,
        content_end: range.start,
        limit: range.end,
        exact: true,
        has_header: false,
    };
    Ok(answers.map(exact).collect())
}

impl Conversation {
    /// Returns the turns before the last assistant turn, and what that turn says: a question and its expected answer.
    pub fn split_answer(&self) -> Option<(Conversation, String)> {
        let at = self.turns.iter().rposition(|turn| turn.role == ASSISTANT)?;
        let turns: Vec<Turn> = self.turns[..at].to_vec();
        let num_media = turns.iter().map(Turn::num_media).sum();
        let media = self.media[..num_media].to_vec();
        Some((Conversation { turns, media }, self.turns[at].joined_text()))
    }
}

/// Returns for each token of `text` whether it is the assistant's. `place` says where a byte of the rendered text is in `text`.
///
/// # Errors
/// `is_whole`, and of an answer nothing is there but its end.
pub fn mask(
    answers: &[AnswerSpan],
    (text, is_whole): (&str, bool),
    tokens: &[Token],
    tokenizer: &Tokenizer,
    place: impl Fn(usize) -> usize,
) -> Result<Vec<bool>, DataError> {
    let mut learned = vec![false; tokens.len()];
    for answer in answers {
        let token_at = |at: usize| tokens.partition_point(|token| token.start < at);
        let (mut first, mut limit) = (token_at(place(answer.begin)), token_at(place(answer.limit)));
        if answer.exact {
            // A token that begins before and reaches into it is its own, as transformers has it.
            let reaches = tokens.get(first).is_none_or(|token| token.start > place(answer.begin));
            first -= usize::from(reaches && first > 0);
            limit = limit.max(first);
        } else {
            // One more: in some templates the next turn's first token is what ends this one.
            let from = token_at(place(answer.content_end)).max(first);
            let within = &tokens[from..(limit + 1).min(tokens.len()).max(from)];
            let end = within.iter().position(|token| tokenizer.special().end.contains(&token.id));
            let special = || within.iter().position(|token| answer.has_header && tokenizer.is_special(token.id));
            let end = end.or_else(special);
            limit = end.map_or(limit, |offset| from + offset + 1).max(first);
        }
        let place = |token: usize| tokens.get(token).map_or(text.len(), |token| token.start);
        let said = text.get(place(first)..place(limit));
        if is_whole && said.is_some_and(|said| says_nothing(said, tokenizer.closing())) {
            return Err(nothing_said(answer.turn));
        }
        learned[first..limit].fill(true);
    }
    Ok(learned)
}

fn says_nothing(text: &str, closing: &[String]) -> bool {
    closing.iter().fold(text.to_owned(), |text, token| text.replace(token, "")).trim().is_empty()
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::{answers, mask};
    use crate::config::Learn;
    use crate::data::digits::{MODEL, write_model};
    use crate::data::source::Turn;
    use crate::data::template::ChatTemplate;
    use crate::data::tokenizer::Tokenizer;
    use crate::data::tokenizer_file::read_json;

    /// Tests templates such as those of gpt-oss and Phi-3: the last answer ends in another way, and no config names the token that ends
    /// the others.
    #[test]
    fn an_answer_ends_before_the_header_of_the_next_turn() {
        let folder = tempfile::tempdir().unwrap();
        write_model(folder.path(), &MODEL).unwrap();
        let [config, named] =
            ["config.json", "tokenizer_config.json"].map(|name| read_json(&folder.path().join(name)).unwrap());
        let tokenizer = Tokenizer::open(folder.path(), &config, &named).unwrap();
        let source = "{% for m in messages %}<|vision_start|>{{ m.role }}\n{{ m.content }}\
            {% if loop.last and not add_generation_prompt %}<|im_end|>{% else %}<|vision_end|>{% endif %}{% endfor %}\
            {% if add_generation_prompt %}<|vision_start|>assistant\n{% endif %}";
        let template = ChatTemplate::new(source, &Json::Null).unwrap();
        let turns = [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")];
        let turns = turns.map(|(role, text)| Turn::text(role, text));
        let text = template.render(&turns).unwrap();
        let found = answers(&template, &turns, &text, Vec::new(), (Learn::All, tokenizer.closing())).unwrap();
        let tokens = tokenizer.encode(&text).unwrap();
        let learned = mask(&found, (text.as_str(), true), &tokens, &tokenizer, |at| at).unwrap();
        let learned = tokens.iter().zip(learned).filter(|(_, learned)| *learned).map(|(token, _)| token.id);
        let said = tokenizer.decode_all(&learned.collect::<Vec<_>>()).unwrap();
        assert_eq!(said, "b<|vision_end|>d<|im_end|>");
    }
}
