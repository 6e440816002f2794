//! The first tokens of a sample that is longer than a pack (`data.pack.too_long: truncate`). Pictures and videos are whole
//! or not there, so that placeholders and features stay equally many; text is cut anywhere.

use super::Processor;
use crate::config::TooLong;
use crate::data::error::DataError;
use crate::data::expand::Expanded;
use crate::data::media::{Expansion, Piece};
use crate::data::sample::Sample;
use crate::data::tokenizer::Token;
use crate::message::SampleId;

/// Describes how much of a sample is kept, from its beginning.
struct Kept {
    /// A run of placeholders is one of them.
    tokens: usize,
    runs: usize,
    expansions: usize,
}

impl Processor {
    /// Makes a sample of these tokens, or of the first of them where it is to be truncated; not `is_whole`: more was cut off before.
    ///
    /// # Errors
    /// Fails as [`Processor::assemble`] does, and if nothing that is kept counts in the loss.
    pub(super) fn assemble_fitting(
        &self,
        id: SampleId,
        tokens: &[Token],
        learned: &[bool],
        expanded: &Expanded,
        mut expansions: Vec<Expansion>,
        is_whole: bool,
    ) -> Result<Sample, DataError> {
        // Of all tokens: a forged placeholder must not take the place of one that is cut off.
        self.towers.check_placeholders(tokens, &expanded.runs)?;
        let kept = match self.too_long {
            TooLong::Skip | TooLong::Error => {
                Kept { tokens: tokens.len(), runs: expanded.runs.len(), expansions: expansions.len() }
            }
            TooLong::Truncate => self.fitting(tokens, expanded, &expansions),
        };
        let is_whole = is_whole && kept.tokens == tokens.len();
        expansions.truncate(kept.expansions);
        let (tokens, learned) = (&tokens[..kept.tokens], &learned[..kept.tokens]);
        let sample = self.assemble(id, tokens, learned, &expanded.runs[..kept.runs], expansions)?;
        match !is_whole && sample.meta.num_targets == 0 {
            true => Err(DataError::NothingLeft { max_tokens: self.room.max_tokens }),
            false => Ok(sample),
        }
    }

    /// Returns how many tokens, runs and expansions fit a pack.
    fn fitting(&self, tokens: &[Token], expanded: &Expanded, expansions: &[Expansion]) -> Kept {
        let (mut kept, mut room) = (Kept { tokens: 0, runs: 0, expansions: 0 }, self.room.max_tokens);
        for token in tokens {
            let is_run = self.towers.of(token.id).is_some();
            let Some(left) = room.checked_sub(if is_run { expanded.runs[kept.runs].len() } else { 1 }) else { break };
            room = left;
            kept.tokens += 1;
            kept.runs += usize::from(is_run);
        }
        let mut runs_before = 0;
        for expansion in expansions {
            let num_runs = expansion.pieces.iter().filter(|piece| matches!(piece, Piece::Run(_))).count();
            if runs_before + num_runs > kept.runs {
                let begin = expanded.begins[kept.expansions];
                kept.tokens = kept.tokens.min(tokens.partition_point(|token| token.start < begin));
                kept.runs = runs_before;
                break;
            }
            runs_before += num_runs;
            kept.expansions += 1;
        }
        kept
    }
}
