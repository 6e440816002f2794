//! A set, opened: its info, its episodes, and the blocks of rows that are open at once.

use std::fmt;
use std::ops::Range;
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
    /// Its blocks: whole files of rows, as few as have enough frames.
    blocks: Vec<Extent>,
    videos: Videos,
}

/// Episodes that follow one another, in the files of rows that they fill.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// The first episode, and the one behind the last.
    pub episodes: Range<usize>,
    /// Samples that begin in it.
    pub num_samples: u64,
}

/// Episodes and files of a block.
#[derive(Clone, Debug, PartialEq)]
struct Extent {
    episodes: Range<usize>,
    files: Range<usize>,
}

/// A block whose rows are open.
pub struct OpenBlock {
    set: Arc<Set>,
    episodes: Range<usize>,
    /// Samples before each of its episodes, and all of them.
    before: Vec<u64>,
    first_file: usize,
    files: Vec<Arc<Rows>>,
}

impl Set {
    /// Opens the set in `folder`.
    ///
    /// # Errors
    /// Named by the file: missing or wrong.
    pub fn open(folder: &Path) -> Result<Self, DataError> {
        if !is_set(folder) {
            return Err(DataError::file(folder, format!("is no LeRobot set: it has no {INFO}")));
        }
        let info = Info::read(folder)?;
        let (tasks, episodes) = (tasks::read(folder, &info)?, Episodes::read(folder, &info)?);
        let blocks = extents(folder, &episodes);
        Ok(Self { folder: folder.to_owned(), info, tasks, episodes, blocks, videos: Videos::default() })
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

    /// Its blocks, in order, where the last `dropped` frames of an episode begin no sample.
    pub fn blocks(&self, dropped: usize) -> Vec<Block> {
        let of = |extent: &Extent| Block {
            episodes: extent.episodes.clone(),
            num_samples: self.lens(extent, dropped).sum(),
        };
        self.blocks.iter().map(of).collect()
    }

    /// Samples that begin in each episode of a block.
    fn lens(&self, extent: &Extent, dropped: usize) -> impl Iterator<Item = u64> {
        self.episodes.list[extent.episodes.clone()].iter().map(move |it| it.length.saturating_sub(dropped) as u64)
    }

    /// Opens block `number` of [`Set::blocks`], where the last `dropped` frames of an episode begin no sample.
    ///
    /// # Errors
    /// Named by the file: missing, damaged, or other rows than the episodes say.
    pub fn open_block(self: &Arc<Self>, number: usize, dropped: usize) -> Result<OpenBlock, DataError> {
        let block = &self.blocks[number];
        let open = |file: usize| {
            let path = self.folder.join(&self.episodes.files[file]);
            let rows = Rows::open(&path)?;
            self.check(&path, file, block.episodes.clone(), &rows)?;
            Ok(Arc::new(rows))
        };
        let files = block.files.clone().map(open).collect::<Result<Vec<_>, DataError>>()?;
        let before = std::iter::once(0).chain(self.lens(block, dropped).scan(0, |sum, len| {
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
    fn check(&self, path: &Path, file: usize, episodes: Range<usize>, rows: &Rows) -> Result<(), DataError> {
        for at in episodes {
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
        self.check(&path, of.file, episode..episode + 1, &rows)?;
        Ok(Step::new(self.clone(), Arc::new(rows), episode, frame))
    }
}

/// Whole files of rows, as few as have enough frames. Episodes of one file follow one another.
fn extents(folder: &Path, episodes: &Episodes) -> Vec<Extent> {
    let bytes = |file: usize| std::fs::metadata(folder.join(&episodes.files[file])).map_or(0, |it| it.len());
    let mut extents: Vec<Extent> = Vec::new();
    let (mut num_frames, mut num_bytes) = (0, 0);
    for (at, episode) in episodes.list.iter().enumerate() {
        let is_same = extents.last().is_some_and(|extent| extent.files.contains(&episode.file));
        let more = if is_same { 0 } else { bytes(episode.file) };
        let has_room = num_frames < BLOCK_FRAMES && num_bytes + more <= BLOCK_BYTES;
        match extents.last_mut() {
            Some(extent) if is_same || has_room && extent.files.end == episode.file => {
                extent.episodes.end = at + 1;
                extent.files.end = extent.files.end.max(episode.file + 1);
                num_frames += episode.length;
                num_bytes += more;
            }
            _ => {
                extents.push(Extent { episodes: at..at + 1, files: episode.file..episode.file + 1 });
                (num_frames, num_bytes) = (episode.length, more);
            }
        }
    }
    extents
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
