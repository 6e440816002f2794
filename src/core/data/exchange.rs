//! The end of a conversation: a question and its answer.

use super::locator::Locator;
use super::source::{Captioned, Content, Conversation, MediaSource, Turn};

/// The end of a conversation: what is asked, and the answer that is expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    /// Text of the last turn before the answer.
    pub question: String,
    pub answer: String,
    /// Pictures of the conversation before the answer; files are resolved.
    pub images: Vec<Locator>,
}

impl Exchange {
    /// Returns the question of a conversation, or the prompt of a picture, with the answer that is expected.
    pub(super) fn asked(content: Content) -> Result<Self, String> {
        if let Content::Captioned(Captioned { target, mut captions, answer, .. }) = content {
            let answer = answer.ok_or("has no `answer` to compare with")?;
            let images = match target {
                Some(MediaSource::Image(locator)) => vec![locator],
                _ => Vec::new(),
            };
            return Ok(Self { question: captions.swap_remove(0), answer, images });
        }
        Self::of(content).map(|(exchange, _)| exchange)
    }

    /// Keeps the conversation before the answer.
    pub(super) fn of(content: Content) -> Result<(Self, Conversation), String> {
        let conversation = match content {
            Content::Messages(conversation) => conversation,
            Content::Pair(pair) => pair.chosen,
            Content::Labeled(answer) => answer.conversation,
            _ => return Err("is not a conversation: there is no answer to compare with".to_owned()),
        };
        let found = conversation.split_answer();
        let (asked, answer) = found.ok_or("has no assistant turn: there is no answer to compare with")?;
        let question = asked.turns.last().map_or(String::new(), Turn::joined_text);
        let images = asked.images().cloned().collect();
        Ok((Self { question, answer, images }, asked))
    }
}
