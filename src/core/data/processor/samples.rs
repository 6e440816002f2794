//! The kinds of samples: to learn from, to be continued, to be answered.

use std::path::Path;

use super::Processor;
use super::guard::guarded;
use super::room::Features;
use crate::config::{Phase, TooLong};
use crate::data::error::DataError;
use crate::data::expand::Expanded;
use crate::data::learned::{answers, mask};
use crate::data::sample::Sample;
use crate::data::source::{Conversation, TextPiece, TokenPiece, Turn};
use crate::data::tokenizer::Token;
use crate::message::SampleId;

/// Returns the reason why a conversation has nothing that counts in the loss. Roles of other formats are named: nobody is an `assistant`
/// there.
fn nothing_to_learn(conversation: &Conversation) -> String {
    let reason = "no assistant message to learn from, or none that counts in the loss";
    let mut roles: Vec<&str> = conversation.turns.iter().map(|turn| turn.role.as_str()).collect();
    roles.sort_unstable();
    roles.dedup();
    match roles.contains(&"assistant") {
        true => reason.to_owned(),
        false => format!("{reason}: the roles are {}, but only messages of `assistant` are learned", roles.join(", ")),
    }
}

/// Returns the sample, if it is one of those that are trained on; others are taken as they are.
pub(super) fn trained(id: SampleId) -> Option<SampleId> {
    id.as_held_out().is_none().then_some(id)
}

impl Processor {
    /// Makes a training sample of a conversation. Files are relative to `base`. In `sft` the assistant's turns count in the loss, from
    /// behind a turn's header to its closing token; else everything but pictures and videos.
    ///
    /// # Errors
    /// The conversation or one of its files cannot be used, nothing in it counts in the loss, or it is too long.
    pub fn training_sample(&self, id: SampleId, conversation: &Conversation, base: &Path) -> Result<Sample, DataError> {
        guarded(|| self.learn(id, conversation, base))
    }

    /// Returns the turns as the template is to read them, with the system message that those without one get.
    fn turns(&self, conversation: &Conversation) -> Vec<Turn> {
        let mut turns = self.written(&conversation.turns);
        if let Some(system) = &self.system {
            Turn::add_system(&mut turns, system);
        }
        turns
    }

    fn learn(&self, id: SampleId, conversation: &Conversation, base: &Path) -> Result<Sample, DataError> {
        let turns = self.turns(conversation);
        let template = self.expect_template()?.of(&turns);
        let (text, marked) = template.render_marked(&turns)?;
        self.notes.of_sample(template, &turns, &text, false);
        let (expanded, expansions) = self.expand(&text, conversation, base, self.too_long, trained(id))?;
        let is_whole = expanded.covers == text.len();
        let mut tokens = self.tokenizer.encode(&expanded.text)?;
        let learned = match self.phase {
            Phase::Sft => {
                let closing = self.tokenizer.closing();
                let mut answers = answers(template, &turns, &text, marked, (self.learn, closing))?;
                // Those that are cut off with their pictures have no place.
                answers.retain(|answer| is_whole || answer.begin < expanded.covers);
                let place = |at| expanded.place(at);
                let learned = mask(&answers, (expanded.text.as_str(), is_whole), &tokens, &self.tokenizer, place)?;
                if is_whole && !learned.contains(&true) {
                    return Err(DataError::Line(nothing_to_learn(conversation)));
                }
                learned
            }
            Phase::Pretrain | Phase::Midtrain => {
                if is_whole {
                    self.end(&mut tokens, expanded.text.len())?;
                }
                vec![true; tokens.len()]
            }
        };
        self.assemble_fitting(id, &tokens, &learned, &expanded, expansions, is_whole)
    }

    /// Makes a training sample of a text, all of which counts in the loss.
    pub(in crate::data) fn text_sample(&self, id: SampleId, piece: &TextPiece) -> Result<Sample, DataError> {
        guarded(|| self.learn_text(id, piece))
    }

    fn learn_text(&self, id: SampleId, piece: &TextPiece) -> Result<Sample, DataError> {
        let text = &piece.text;
        let mut tokens = match (piece.begins, piece.ends) {
            (true, true) => self.tokenizer.encode_document(text)?,
            (true, false) => self.tokenizer.encode_begin(text)?,
            (false, _) => self.tokenizer.encode(text)?,
        };
        if piece.ends {
            self.end(&mut tokens, text.len())?;
        }
        if tokens.is_empty() {
            return Err(DataError::Line("the text has no tokens: the tokenizer drops all of it".to_owned()));
        }
        let learned = vec![true; tokens.len()];
        self.assemble_fitting(id, &tokens, &learned, &Expanded::default(), Vec::new(), true)
    }

    /// Makes a training sample of tokens as they are, all of which count in the loss.
    ///
    /// # Errors
    /// The model has no such token.
    pub(in crate::data) fn token_sample(&self, id: SampleId, piece: &TokenPiece) -> Result<Sample, DataError> {
        let rows = self.tokenizer.vocab_size();
        if let Some(token) = piece.ids.iter().find(|token| !(0..rows).contains(*token)) {
            return Err(DataError::Line(format!("has the token {token}, but the model has {rows} tokens")));
        }
        let tokens: Vec<Token> = piece.ids.iter().map(|&id| Token { id, start: 0 }).collect();
        guarded(|| self.assemble(id, &tokens, &vec![true; tokens.len()], &[], Vec::new()))
    }

    /// Makes the sample from which generation starts: the turns up to where the assistant is to speak. Nothing counts in the loss.
    ///
    /// # Errors
    /// The conversation or one of its files cannot be used.
    pub fn prompt(&self, id: SampleId, conversation: &Conversation, base: &Path) -> Result<Sample, DataError> {
        self.prompt_begun(id, conversation, base, "")
    }

    /// Works like [`Processor::prompt`] where the answer has begun with the text `start`.
    ///
    /// # Errors
    /// Fails as that function does.
    pub fn prompt_begun(
        &self,
        id: SampleId,
        conversation: &Conversation,
        base: &Path,
        start: &str,
    ) -> Result<Sample, DataError> {
        guarded(|| self.ask(id, conversation, base, start))
    }

    fn ask(&self, id: SampleId, conversation: &Conversation, base: &Path, start: &str) -> Result<Sample, DataError> {
        let turns = self.turns(conversation);
        let template = self.expect_template()?.of(&turns);
        let text = template.render_prompt(&turns)?;
        self.notes.of_sample(template, &turns, &text, true);
        let text = text + start;
        self.expect_room(&text)?;
        // A question that is cut is another question.
        let (expanded, expansions) = self.expand(&text, conversation, base, TooLong::Skip, None)?;
        let tokens = self.tokenizer.encode(&expanded.text)?;
        self.assemble(id, &tokens, &vec![false; tokens.len()], &expanded.runs, expansions)
    }

    /// Makes the sample of a text that is to be continued as it is.
    ///
    /// # Errors
    /// The text has no tokens, or cannot be made a sample.
    pub fn text_prompt(&self, id: SampleId, text: &str) -> Result<Sample, DataError> {
        self.expect_room(text)?;
        let tokens = self.tokenizer.encode_begin(text)?;
        if tokens.is_empty() {
            return Err(DataError::Line("the prompt is empty: there is no token to continue from".to_owned()));
        }
        self.assemble(id, &tokens, &vec![false; tokens.len()], &[], Vec::new())
    }

    /// # Errors
    /// A prompt is far too long, of which not all is encoded then.
    fn expect_room(&self, text: &str) -> Result<(), DataError> {
        match self.tokenizer.beyond(text, self.room.max_tokens)? {
            Some(num_tokens) => self.room.check_length(num_tokens, Features::default()),
            None => Ok(()),
        }
    }

    /// Ends a document.
    fn end(&self, tokens: &mut Vec<Token>, start: usize) -> Result<(), DataError> {
        let eos = self.tokenizer.special().eos.ok_or_else(|| {
            DataError::Tokenizer("no eos_token in tokenizer_config.json and no eos_token_id in config.json".to_owned())
        })?;
        if tokens.last().is_none_or(|token| token.id != eos) {
            tokens.push(Token { id: eos, start });
        }
        Ok(())
    }
}
