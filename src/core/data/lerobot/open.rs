//! The rows of a set that are open at once, and single frames.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::rows::Rows;
use super::set::Set;
use super::step::Step;
use crate::data::error::DataError;

/// A block whose rows are open.
pub struct OpenBlock {
    set: Arc<Set>,
    episodes: Range<usize>,
    /// Samples before each of its episodes, and all of them.
    before: Vec<u64>,
    /// The files with samples, by their numbers.
    files: BTreeMap<usize, Arc<Rows>>,
}

impl Set {
    /// Opens block `number` of [`Set::blocks`], where the last `dropped` frames of an episode begin no sample.
    ///
    /// # Errors
    /// Named by the file: missing, damaged, or other rows than the episodes say.
    pub fn open_block(self: &Arc<Self>, number: usize, dropped: usize) -> Result<OpenBlock, DataError> {
        let block = &self.blocks[number];
        let set: &Self = self;
        let chosen = || block.episodes.clone().filter(move |&at| set.is_chosen(at));
        let open = |file: usize| {
            let path = self.folder().join(&self.episodes.files[file]);
            let rows = Rows::open(&path)?;
            self.check(&path, file, chosen(), &rows)?;
            Ok((file, Arc::new(rows)))
        };
        let files: BTreeSet<usize> = chosen().map(|at| self.episodes.list[at].file).collect();
        let files = files.into_iter().map(open).collect::<Result<BTreeMap<_, _>, DataError>>()?;
        let before = std::iter::once(0).chain(self.lens(block, dropped).scan(0, |sum, len| {
            *sum += len;
            Some(*sum)
        }));
        Ok(OpenBlock { set: self.clone(), episodes: block.episodes.clone(), before: before.collect(), files })
    }

    /// Checks that a file has the rows that the episodes say.
    fn check(
        &self,
        path: &Path,
        file: usize,
        episodes: impl Iterator<Item = usize>,
        rows: &Rows,
    ) -> Result<(), DataError> {
        for at in episodes {
            let episode = &self.episodes.list[at];
            if episode.file != file {
                continue;
            }
            let end = episode.row + episode.length;
            let own = rows.episodes.get(episode.row..end);
            if own.is_none_or(|own| own.iter().any(|&index| index != at as i64)) {
                let reason = format!(
                    "rows {} to {end} do not belong to episode {at}, although meta/episodes says so; the file has {} \
                     rows",
                    episode.row + 1,
                    rows.num_rows
                );
                return Err(DataError::file(path, reason));
            }
        }
        Ok(())
    }

    /// Reads frame `frame` of an episode by itself: for looking at single ones.
    ///
    /// # Errors
    /// Fails as [`Set::open_block`] does, and if there is no such frame.
    pub fn step(self: &Arc<Self>, episode: usize, frame: usize) -> Result<Step, DataError> {
        let none = || DataError::file(self.folder(), format!("has no frame {frame} in episode {episode}"));
        let of = self.episodes.list.get(episode).filter(|of| frame < of.length).ok_or_else(none)?;
        let path = self.folder().join(&self.episodes.files[of.file]);
        let rows = Rows::open(&path)?;
        self.check(&path, of.file, episode..episode + 1, &rows)?;
        Ok(Step::new(self.clone(), Arc::new(rows), episode, frame))
    }
}

impl OpenBlock {
    /// Returns the number of samples that begin in the block.
    pub fn num_samples(&self) -> u64 {
        self.before[self.before.len() - 1]
    }

    /// Returns the episode and the frame of it that sample `index` begins with.
    pub fn place(&self, index: u64) -> (usize, usize) {
        let at = self.before.partition_point(|&before| before <= index) - 1;
        (self.episodes.start + at, (index - self.before[at]) as usize)
    }

    /// Returns the sample that begins with the first frame of an episode of it.
    pub fn first(&self, episode: usize) -> u64 {
        self.before[episode - self.episodes.start]
    }

    /// Returns sample `index`.
    pub fn step(&self, index: u64) -> Step {
        let (episode, frame) = self.place(index);
        let rows = self.files[&self.set.episodes.list[episode].file].clone();
        Step::new(self.set.clone(), rows, episode, frame)
    }
}
