//! Numbers of packs: how full they are, and what padding they save.

use serde::{Deserialize, Serialize};

use crate::schedule::SampleSize;

/// All packs of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackStats {
    pub packs: u64,
    pub samples: u64,
    pub bad: u64,
    /// Samples that are longer than a pack.
    pub too_long: u64,
    pub tokens: u64,
    /// Tokens that the packs could hold.
    pub room: u64,
    /// Tokens of the longest sample.
    pub longest: u64,
    /// Samples of a batch that is padded, with which packs are compared.
    pub batch: u64,
    /// Tokens of such batches, a row a sample and all as long as the longest of the batch.
    pub batched: u64,
}

impl PackStats {
    /// Tokens of what packs hold, 0 to 1.
    pub fn fill(&self) -> f64 {
        if self.room == 0 { 0.0 } else { self.tokens as f64 / self.room as f64 }
    }

    /// Counts a sample of a pack, in batches of so many that are padded.
    pub(super) fn add(&mut self, size: SampleSize, batched: &mut Batched, batch: u64) {
        let tokens = u64::from(size.tokens);
        self.samples += 1;
        self.tokens += tokens;
        self.longest = self.longest.max(tokens);
        batched.add(tokens, batch);
    }

    /// Finishes the numbers of so many packs of at most `max_tokens`, of samples that were compared with batches of `batch`.
    pub(super) fn of_packs(self, packs: usize, batched: &Batched, (batch, max_tokens): (u64, usize)) -> Self {
        let packs = packs as u64;
        let room = packs * max_tokens as u64;
        Self { packs, room, batch, batched: batched.total(), ..self }
    }

    /// Returns how much smaller packs are than padded rows of one sample each: rows as long as packs ÷ packs; tokens of rows as long
    /// as the longest sample ÷ tokens of packs; tokens of batches that are padded to their own longest ÷ tokens of packs.
    pub fn compression(&self) -> [f64; 3] {
        let part = |padded: u64, packed: u64| padded as f64 / packed.max(1) as f64;
        [
            part(self.samples, self.packs),
            part(self.samples * self.longest, self.tokens),
            part(self.batched, self.tokens),
        ]
    }

    /// Writes [`PackStats::compression`] as a line, of packs of `max_tokens`.
    pub fn compression_text(&self, max_tokens: usize) -> String {
        let [rows, longest, batched] = self.compression();
        format!(
            "padding compression: {rows:.1}x fewer rows than one sample a row of {max_tokens} tokens; {longest:.1}x fewer tokens \
             than rows padded to the longest sample ({} tokens), {batched:.1}x fewer than batches of {}, each padded to its \
             longest",
            self.longest, self.batch
        )
    }
}

/// Sums the tokens of padded batches.
#[derive(Default)]
pub(super) struct Batched {
    longest: u64,
    rows: u64,
    tokens: u64,
}

impl Batched {
    /// Adds a sample of so many tokens, to a batch of `batch` samples that is padded to its longest one.
    pub(super) fn add(&mut self, tokens: u64, batch: u64) {
        (self.longest, self.rows) = (self.longest.max(tokens), self.rows + 1);
        if self.rows >= batch {
            *self = Self { tokens: self.total(), ..Self::default() };
        }
    }

    /// Returns all tokens, those of the last batch included, which may have fewer rows.
    pub(super) fn total(&self) -> u64 {
        self.tokens + self.rows * self.longest
    }
}
