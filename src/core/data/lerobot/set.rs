//! A set, opened: its info, its episodes, and the blocks of rows that are open at once.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::episodes::{Episode, Episodes};
use super::info::{Info, is_set, place};
use super::modality::{MODALITY, Modality};
use super::names::INFO;
use super::stats::{EPISODES_STATS, STATS, Stats};
use super::tasks::{self, TASKS, Tasks};
use super::videos::Videos;
use crate::config::EpisodeRange;
use crate::data::error::DataError;

/// Frames of a block where its files are small enough.
const BLOCK_FRAMES: usize = 8192;
/// Bytes of the files of a block where its first file is not larger.
const BLOCK_BYTES: u64 = 64 << 20;

/// A set of recorded episodes.
pub struct Set {
    name: PathBuf,
    folder: PathBuf,
    info: Info,
    tasks: Tasks,
    modality: Option<Modality>,
    pub(super) episodes: Episodes,
    /// The blocks of the set: whole files of rows, as few as have enough frames.
    pub(super) blocks: Vec<Extent>,
    /// True for the episodes that begin samples, where not all do.
    chosen: Option<Vec<bool>>,
    videos: Videos,
}

/// Episodes that follow one another, in the files of rows that they fill; of a set of which not all episodes begin samples, with
/// those between that do not.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// The first episode, and the one behind the last.
    pub episodes: Range<usize>,
    /// Samples that begin in it.
    pub num_samples: u64,
}

/// Episodes and files of a block.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Extent {
    pub episodes: Range<usize>,
    pub files: Range<usize>,
}

impl Set {
    /// Opens the set in a folder, or which a path of the hub names.
    ///
    /// # Errors
    /// Named by the file: missing or wrong.
    pub fn open(name: &Path) -> Result<Self, DataError> {
        let found = place(name)?;
        let folder: &Path = &found;
        if !is_set(folder) {
            return Err(DataError::file(folder, format!("is not a LeRobot set: it has no {INFO}")));
        }
        let info = Info::read(folder)?;
        let (tasks, episodes) = (tasks::read(folder, &info)?, Episodes::read(folder, &info)?);
        let (blocks, modality) = (extents(folder, &episodes, None), Modality::read(folder, &info)?);
        let (name, folder, videos) = (name.to_owned(), folder.to_owned(), Videos::default());
        Ok(Self { name, folder, info, tasks, modality, episodes, blocks, chosen: None, videos })
    }

    /// Returns the same set, of which these episodes alone begin samples, in the order of their numbers.
    ///
    /// # Errors
    /// Named by the set: it has fewer episodes, or one is named twice.
    pub fn choose(self, ranges: &[EpisodeRange]) -> Result<Self, DataError> {
        let wrong = |reason: String| DataError::file(&self.name, reason);
        let mut chosen = vec![false; self.episodes.list.len()];
        for range in ranges {
            for at in range.within(chosen.len()).map_err(wrong)? {
                if chosen[at] {
                    return Err(wrong(format!("`episodes` names episode {at} twice")));
                }
                chosen[at] = true;
            }
        }
        let blocks = extents(&self.folder, &self.episodes, Some(&chosen));
        Ok(Self { blocks, chosen: Some(chosen), ..self })
    }

    /// Returns the episodes in which samples begin, by their numbers.
    pub fn chosen(&self) -> impl Iterator<Item = usize> {
        (0..self.episodes.list.len()).filter(move |&at| self.is_chosen(at))
    }

    /// Returns whether samples begin in an episode.
    pub(super) fn is_chosen(&self, episode: usize) -> bool {
        self.chosen.as_ref().is_none_or(|chosen| chosen[episode])
    }

    /// Returns its path as it was given to [`Set::open`].
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Returns the folder that contains `meta`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the contents of `meta/info.json`: version, rate, features.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Texts of its tasks, by number.
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Returns the contents of GR00T's `meta/modality.json`, where the set has it.
    pub fn modality(&self) -> Option<&Modality> {
        self.modality.as_ref()
    }

    /// Returns all episodes in the order of their numbers.
    pub fn episodes(&self) -> &[Episode] {
        &self.episodes.list
    }

    pub(super) fn videos(&self) -> &Videos {
        &self.videos
    }

    /// Returns the place of a video by its number.
    pub(super) fn video(&self, number: usize) -> PathBuf {
        self.folder.join(&self.episodes.videos[number])
    }

    /// Returns the statistics that the set says of itself.
    ///
    /// # Errors
    /// Named by the file: missing or wrong.
    pub fn stats(&self) -> Result<Stats, DataError> {
        Stats::read(&self.folder, &self.info)
    }

    /// Returns the files that its samples are made of, videos included, and those that say what is in them.
    pub fn files(&self) -> Vec<PathBuf> {
        let described = [INFO, STATS, EPISODES_STATS, MODALITY].into_iter().chain(TASKS).map(PathBuf::from);
        let described = described.filter(|name| self.folder.join(name).is_file());
        let (mut rows, mut videos) = (BTreeSet::new(), BTreeSet::new());
        for (_, episode) in self.episodes.list.iter().enumerate().filter(|(at, _)| self.is_chosen(*at)) {
            rows.insert(episode.file);
            videos.extend(episode.clips.iter().map(|clip| clip.file));
        }
        let rows = rows.into_iter().map(|file| &self.episodes.files[file]);
        let videos = videos.into_iter().map(|file| &self.episodes.videos[file]);
        let named = described.chain(self.episodes.described.iter().chain(rows).chain(videos).cloned());
        named.map(|name| self.folder.join(name)).collect()
    }

    /// Returns its blocks, in order, where the last `dropped` frames of an episode begin no sample.
    pub fn blocks(&self, dropped: usize) -> Vec<Block> {
        let of = |extent: &Extent| Block {
            episodes: extent.episodes.clone(),
            num_samples: self.lens(extent, dropped).sum(),
        };
        self.blocks.iter().map(of).collect()
    }

    /// Samples that begin in each episode that has some, in the order of the samples.
    pub fn episode_lens(&self, dropped: usize) -> Vec<u64> {
        self.blocks.iter().flat_map(|extent| self.lens(extent, dropped)).filter(|&len| len > 0).collect()
    }

    /// Samples that begin in each episode of a block.
    pub(super) fn lens(&self, extent: &Extent, dropped: usize) -> impl Iterator<Item = u64> {
        let frames = move |at: usize| if self.is_chosen(at) { self.episodes.list[at].length } else { 0 };
        extent.episodes.clone().map(move |at| frames(at).saturating_sub(dropped) as u64)
    }
}

/// Returns whole files of rows, as few as have enough frames of these episodes, or of all. Episodes of one file follow one another.
fn extents(folder: &Path, episodes: &Episodes, chosen: Option<&[bool]>) -> Vec<Extent> {
    let bytes = |file: usize| std::fs::metadata(folder.join(&episodes.files[file])).map_or(0, |it| it.len());
    let mut extents: Vec<Extent> = Vec::new();
    let (mut num_frames, mut num_bytes) = (0, 0);
    let is_chosen = |at: usize| chosen.is_none_or(|chosen| chosen[at]);
    for (at, episode) in episodes.list.iter().enumerate().filter(|(at, _)| is_chosen(*at)) {
        let is_same = extents.last().is_some_and(|extent| extent.files.contains(&episode.file));
        let more = if is_same { 0 } else { bytes(episode.file) };
        let has_room = num_frames < BLOCK_FRAMES && num_bytes + more <= BLOCK_BYTES;
        match extents.last_mut() {
            Some(extent) if is_same || has_room && extent.files.end <= episode.file => {
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

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Set").field("folder", &self.folder).finish_non_exhaustive()
    }
}
