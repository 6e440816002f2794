//! Long texts and documents as several samples each: how long a piece is, and how many there are.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use super::Source;
use crate::config::Format;
use crate::data::error::DataError;
use crate::data::source::block::Block;
use crate::data::source::content::Content;
use crate::data::source::cut::{NUM_PROBES, num_pieces, num_token_pieces, piece_bytes};
use crate::data::source::ids::IDS;
use crate::data::source::index::Index;
use crate::data::source::layout::RecordLayout;
use crate::data::source::order::sums;
use crate::data::source::parallel::in_parallel;
use crate::data::source::patience::is_of_system;

use super::Unit;

impl Source {
    /// Pieces of a record. Its text may be much shorter than the record, and is measured where that would be several.
    pub(super) fn pieces_in(&self, block: &dyn Block, record: u64) -> u64 {
        let most = self.piece_bytes;
        if self.layout == RecordLayout::Tokens {
            return num_token_pieces(block.num_ids(record, self.key(IDS), most), most);
        }
        // A map may take a text from a member whose name does not tell that it is one.
        let of_map = match &self.layout {
            RecordLayout::Fields(map) => map.get("text").map_or(0, |place| block.member_bytes(record, place)),
            _ => 0,
        };
        match num_pieces(block.num_bytes(record).max(of_map), most) {
            2.. if self.layout == RecordLayout::Text => num_pieces(block.text_bytes(record, self.key("text")), most),
            pieces => pieces,
        }
    }

    /// Returns the name that the set's files have for a field.
    fn key<'a>(&'a self, field: &'a str) -> &'a str {
        self.columns.get(field).map_or(field, String::as_str)
    }

    /// Returns the most bytes of a piece of a text, or tokens of a piece of a document.
    ///
    /// # Errors
    /// The system does not give one of the texts by which it is told.
    fn longest(&self, max_tokens: usize, num_tokens: &dyn Fn(&str) -> usize) -> Result<u64, DataError> {
        if self.layout == RecordLayout::Tokens {
            return Ok(max_tokens as u64);
        }
        let step = self.len().div_ceil(NUM_PROBES);
        let mut refused = None;
        let texts = (0..self.len()).step_by(step).filter_map(|at| match self.read(at) {
            Ok(Content::Text(piece)) => Some(piece.text),
            Err(bad) if is_of_system(&bad.reason) => {
                refused = refused.take().or_else(|| self.shard(self.unit(at as u64).0).refused(&bad.reason));
                None
            }
            _ => None,
        });
        let most = piece_bytes(texts, max_tokens, num_tokens);
        refused.map_or(Ok(most), Err)
    }

    /// Counts pieces instead of texts where texts are long.
    ///
    /// # Errors
    /// A shard cannot be measured that others may be able to.
    pub(super) fn cut(
        &mut self,
        max_tokens: usize,
        num_tokens: &dyn Fn(&str) -> usize,
        index: &mut Index,
    ) -> Result<(), DataError> {
        let most = self.longest(max_tokens, num_tokens)?;
        if most >= u64::MAX / 8 {
            return Ok(());
        }
        self.piece_bytes = most;
        // Blocks that are open were not cut.
        let held = std::mem::take(self.open.get_mut().unwrap_or_else(PoisonError::into_inner));
        let kind = match (&self.layout, self.asked == Format::Plain) {
            (RecordLayout::Tokens, _) => format!("token {:?}", self.key(IDS)),
            (RecordLayout::Text, _) => format!("{:?}", self.key("text")),
            (_, true) => "plain".to_owned(),
            // Counts that are kept as those of `text` left out members that only a map names.
            (_, false) => "member".to_owned(),
        };
        let what = format!("{kind} pieces of {most}");
        let known = |unit: &Unit, index: &Index| {
            let counts = index.get(&self.shards[unit.shard], &what)?;
            counts.get(unit.part as usize).copied()
        };
        let mut lens: Vec<Option<u64>> = self.units.iter().map(|unit| known(unit, index)).collect();
        let missing: Vec<usize> = (0..lens.len()).filter(|&unit| lens[unit].is_none()).collect();
        let pieces = |block: &dyn Block| (0..block.len()).map(|record| self.pieces_in(block, record)).sum::<u64>();
        let whole = |block: &dyn Block| match block.lost().filter(|reason| is_of_system(reason)) {
            Some(reason) => Err(reason.to_owned()),
            None => Ok(()),
        };
        let counted = in_parallel(&missing, "measuring texts", |&unit| {
            let block = held.iter().find(|(held, _)| *held == unit).and_then(|(_, cell)| cell.get());
            match block {
                Some(Ok(opened)) => whole(&*opened.block).map(|()| pieces(&*opened.block)),
                _ => self.open_unit(unit).and_then(|it| whole(&*it.block).map(|()| it.num_samples())),
            }
        });
        let (mut unread, mut refused) = (BTreeSet::new(), None);
        for (&unit, counted) in missing.iter().zip(counted) {
            let Unit { shard, num_records, .. } = self.units[unit];
            if let Err(reason) = &counted {
                refused = refused.or_else(|| self.shards[shard].refused(reason));
                unread.insert(shard);
            }
            lens[unit] = Some(counted.unwrap_or(num_records));
        }
        let lens: Vec<u64> = lens.into_iter().map(Option::unwrap_or_default).collect();
        // What cannot be read now may be readable later, with other counts.
        let learned = |at: &usize| !missing.is_empty() && !unread.contains(at);
        for (at, shard) in self.shards.iter().enumerate().filter(|(at, _)| learned(at)) {
            let of = self.units.iter().zip(&lens).filter(|(unit, _)| unit.shard == at).map(|(_, &len)| len);
            index.put(shard, &what, of.collect());
        }
        self.before = sums(lens.into_iter());
        refused.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Phase, TrainFile};

    /// Texts of a shard that is not there count as one each, or give no measure of how long pieces are: the order of all would be another.
    #[test]
    fn no_order_is_made_without_texts_that_the_system_does_not_give() {
        for (line, gone) in [("{\"text\": \"a\"}\n", "a.jsonl"), ("{\"input_ids\": [1, 2, 3]}\n", "b.jsonl")] {
            let folder = tempfile::tempdir().unwrap();
            ["a.jsonl", "b.jsonl"].iter().for_each(|name| std::fs::write(folder.path().join(name), line).unwrap());
            let file = TrainFile::new(folder.path());
            let mut source = Source::open_with(&file, Phase::Pretrain, usize::MAX, &str::len, 1, None).unwrap();
            std::fs::remove_file(folder.path().join(gone)).unwrap();
            let cut = source.cut(2, &str::len, &mut Index::open(None, &[]));
            let error = cut.unwrap_err().to_string();
            assert!(error.contains(gone) && error.contains("(os error 2)"), "{error}");
        }
    }
}
