//! Tokens, positions and targets of a sample, put together.

use super::Processor;
use super::answered::answered;
use super::room::Features;
use crate::data::error::DataError;
use crate::data::media::{Expansion, Run};
use crate::data::positions::Span;
use crate::data::sample::{IGNORE_INDEX, Sample};
use crate::data::tokenizer::Token;
use crate::message::SampleId;

impl Processor {
    /// Repeats the placeholders, one token of each run, and numbers the positions.
    pub(super) fn assemble(
        &self,
        id: SampleId,
        tokens: &[Token],
        learned: &[bool],
        runs: &[Run],
        expansions: Vec<Expansion>,
    ) -> Result<Sample, DataError> {
        self.towers.check_placeholders(tokens, runs)?;
        let counts = Features::of(&expansions);
        let num_features = counts.total();
        debug_assert_eq!(runs.iter().map(|run| run.len()).sum::<usize>(), num_features);
        self.room.check_length(tokens.len() - runs.len(), counts)?;

        let num_items = expansions.iter().map(|expansion| expansion.media.len()).sum();
        self.room.check_media(num_items, counts)?;

        let num_tokens = tokens.len() - runs.len() + num_features;
        let (mut input_ids, mut counted) = (Vec::with_capacity(num_tokens), Vec::with_capacity(num_tokens));
        let (mut spans, mut runs, mut num_text) = (Vec::new(), runs.iter(), 0);
        for (token, &learned) in tokens.iter().zip(learned) {
            let run = self.towers.of(token.id).and_then(|_| runs.next());
            let count = run.map_or(1, |run| run.len());
            if self.has_prefixes && run.is_some() && counted.contains(&true) {
                return Err(DataError::Line(
                    "a picture comes after a message that is learned; this model sees pictures only before it"
                        .to_owned(),
                ));
            }
            input_ids.extend(std::iter::repeat_n(token.id, count));
            counted.extend(std::iter::repeat_n(learned && run.is_none(), count));
            match run {
                None => num_text += 1,
                Some(&run) => spans.extend([Span::Text(std::mem::take(&mut num_text)), Span::Run(run)]),
            }
        }
        spans.push(Span::Text(num_text));
        let (input_ids, position_ids, targets) = match &self.encoder_decoder {
            Some(rules) => answered(rules, &input_ids, &counted)?,
            None => {
                let next = (1..=num_tokens)
                    .map(|next| if next < num_tokens && counted[next] { input_ids[next] } else { IGNORE_INDEX });
                let targets = next.collect();
                (input_ids, self.positions.ids(&spans), targets)
            }
        };
        let num_sources = expansions.len();
        let media = expansions.into_iter().flat_map(|expansion| expansion.media).collect();
        let sample = Sample::new(id, input_ids, position_ids, targets, media);
        Ok(Sample { num_sources, ..sample })
    }
}
