//! A set, opened: its info, its episodes, and the blocks of rows that are open at once.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::episodes::{Episode, Episodes};
use super::info::{INFO, Info, is_set};
use super::rows::Rows;
use super::stats::{STATS, Stats};
use super::step::Step;
use super::tasks::{self, Tasks};
use super::videos::Videos;
use crate::data::error::DataError;

/// Frames of a block where its files are small enough.
const BLOCK_FRAMES: usize = 8192;
/// Bytes of the files of a block where its first file is not larger.
const BLOCK_BYTES: u64 = 64 << 20;

/// A set of recorded episodes.
pub struct Set {
    folder: PathBuf,
    info: Info,
    tasks: Tasks,
    episodes: Episodes,
    /// Frames at the end of each episode that begin no sample.
    dropped: usize,
    videos: Videos,
}

/// Episodes that follow one another, in the files of rows that they fill.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// The first episode, and the one behind the last.
    pub episodes: std::ops::Range<usize>,
    /// The first file, and the one behind the last.
    files: std::ops::Range<usize>,
    /// Samples that begin in it.
    pub num_samples: u64,
}

/// A block whose rows are open.
pub struct OpenBlock {
    set: Arc<Set>,
    episodes: std::ops::Range<usize>,
    /// Samples before each of its episodes, and all of them.
    before: Vec<u64>,
    first_file: usize,
    files: Vec<Arc<Rows>>,
}

impl Set {
    /// Opens the set in `folder`. The last `dropped` frames of an episode begin no sample.
    ///
    /// # Errors
    /// Named by the file: missing or wrong.
    pub fn open(folder: &Path, dropped: usize) -> Result<Self, DataError> {
        if !is_set(folder) {
            return Err(DataError::file(folder, format!("is no LeRobot set: it has no {INFO}")));
        }
        let info = Info::read(folder)?;
        let (tasks, episodes) = (tasks::read(folder, &info)?, Episodes::read(folder, &info)?);
        Ok(Self { folder: folder.to_owned(), info, tasks, episodes, dropped, videos: Videos::default() })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Texts of its tasks, by number.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    pub fn episodes(&self) -> &[Episode] {
        &self.episodes.list
    }

    pub(super) fn videos(&self) -> &Videos {
        &self.videos
    }

    /// The place of a video by its number.
    pub(super) fn video(&self, number: usize) -> PathBuf {
        self.folder.join(&self.episodes.videos[number])
    }

    /// The statistics that the set says of itself.
    ///
    /// # Errors
    /// Named by the file: missing or wrong.
    pub fn stats(&self) -> Result<Stats, DataError> {
        Stats::read(&self.folder, &self.info)
    }

    /// The files that its samples are made of, videos included.
    pub fn files(&self) -> Vec<PathBuf> {
        let described = [INFO, STATS].iter().map(PathBuf::from).filter(|name| self.folder.join(name).is_file());
        let named = described.chain(self.episodes.files.iter().chain(&self.episodes.videos).cloned());
        named.map(|name| self.folder.join(name)).collect()
    }

    /// Its blocks, in order: whole files of rows, as few as have enough frames.
    pub fn blocks(&self) -> Vec<Block> {
        let list = &self.episodes.list;
        let bytes =
            |file: usize| std::fs::metadata(self.folder.join(&self.episodes.files[file])).map_or(0, |it| it.len());
        let mut blocks: Vec<Block> = Vec::new();
        let (mut num_frames, mut num_bytes) = (0, 0);
        for (at, episode) in list.iter().enumerate() {
            let is_same = blocks.last().is_some_and(|block| block.files.contains(&episode.file));
            let more = if is_same { 0 } else { bytes(episode.file) };
            let has_room = num_frames < BLOCK_FRAMES && num_bytes + more <= BLOCK_BYTES;
            match blocks.last_mut() {
                Some(block) if is_same || has_room && block.files.end == episode.file => {
                    block.episodes.end = at + 1;
                    block.files.end = block.files.end.max(episode.file + 1);
                    block.num_samples += self.num_samples(episode);
                    num_frames += episode.length;
                    num_bytes += more;
                }
                _ => {
                    let files = episode.file..episode.file + 1;
                    let num_samples = self.num_samples(episode);
                    blocks.push(Block { episodes: at..at + 1, files, num_samples });
                    (num_frames, num_bytes) = (episode.length, more);
                }
            }
        }
        blocks
    }

    fn num_samples(&self, episode: &Episode) -> u64 {
        episode.length.saturating_sub(self.dropped) as u64
    }

    /// Opens a block of [`Set::blocks`].
    ///
    /// # Errors
    /// Named by the file: missing, damaged, or other rows than the episodes say.
    pub fn open_block(self: &Arc<Self>, block: &Block) -> Result<OpenBlock, DataError> {
        let open = |file: usize| {
            let path = self.folder.join(&self.episodes.files[file]);
            let rows = Rows::open(&path)?;
            self.check(&path, file, block, &rows)?;
            Ok(Arc::new(rows))
        };
        let files = block.files.clone().map(open).collect::<Result<Vec<_>, DataError>>()?;
        let lens = self.episodes.list[block.episodes.clone()].iter().map(|episode| self.num_samples(episode));
        let before = std::iter::once(0).chain(lens.scan(0, |sum, len| {
            *sum += len;
            Some(*sum)
        }));
        Ok(OpenBlock {
            set: self.clone(),
            episodes: block.episodes.clone(),
            before: before.collect(),
            first_file: block.files.start,
            files,
        })
    }

    /// Sees to it that a file has the rows that the episodes say.
    fn check(&self, path: &Path, file: usize, block: &Block, rows: &Rows) -> Result<(), DataError> {
        for at in block.episodes.clone() {
            let episode = &self.episodes.list[at];
            if episode.file != file {
                continue;
            }
            let end = episode.row + episode.length;
            let own = rows.episodes.get(episode.row..end);
            if own.is_none_or(|own| own.iter().any(|&index| index != at as i64)) {
                let reason = format!(
                    "rows {} to {end} are not those of episode {at}, as meta/episodes says; the file has {} rows",
                    episode.row + 1,
                    rows.num_rows
                );
                return Err(DataError::file(path, reason));
            }
        }
        Ok(())
    }

    /// Frame `frame` of an episode, read by itself: for looking at single ones.
    ///
    /// # Errors
    /// As [`Set::open_block`]; or there is no such frame.
    pub fn step(self: &Arc<Self>, episode: usize, frame: usize) -> Result<Step, DataError> {
        let none = || DataError::file(&self.folder, format!("has no frame {frame} in an episode {episode}"));
        let of = self.episodes.list.get(episode).filter(|of| frame < of.length).ok_or_else(none)?;
        let path = self.folder.join(&self.episodes.files[of.file]);
        let rows = Rows::open(&path)?;
        let files = of.file..of.file + 1;
        self.check(&path, of.file, &Block { episodes: episode..episode + 1, files, num_samples: 0 }, &rows)?;
        Ok(Step::new(self.clone(), Arc::new(rows), episode, frame))
    }
}

impl OpenBlock {
    /// Samples that begin in it.
    pub fn num_samples(&self) -> u64 {
        self.before[self.before.len() - 1]
    }

    /// The episode and the frame of it that sample `index` begins with.
    pub fn place(&self, index: u64) -> (usize, usize) {
        let at = self.before.partition_point(|&before| before <= index) - 1;
        (self.episodes.start + at, (index - self.before[at]) as usize)
    }

    /// Sample `index`.
    pub fn step(&self, index: u64) -> Step {
        let (episode, frame) = self.place(index);
        let file = self.set.episodes.list[episode].file - self.first_file;
        Step::new(self.set.clone(), self.files[file].clone(), episode, frame)
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Set").field("folder", &self.folder).finish_non_exhaustive()
    }
}
