//! A data set, opened: any of its samples by number, with few blocks open at a time.

mod opening;
mod pieces;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::block::Block;
use super::captioned;
use super::chosen::Chosen;
use super::content::{Content, fetch};
use super::cut::{TextPiece, TokenPiece, num_token_pieces};
use super::folder::Folder;
use super::layout::{RecordLayout, Whole};
use super::order::{Order, sums};
use super::paths::left_out;
use super::patience::patiently;
use super::shard::{Container, Shard};
use crate::config::{Format, Select};
use crate::data::error::{BadSample, DataError};
use crate::data::lerobot::Set;

/// One data set: the shards of one entry of `data.train`.
pub struct Source {
    name: PathBuf,
    shards: Vec<Shard>,
    units: Vec<Unit>,
    /// Samples before each unit, and all of them.
    before: Vec<u64>,
    /// The most samples that are used, and which.
    limit: (Option<u64>, Select),
    layout: RecordLayout,
    columns: BTreeMap<String, String>,
    /// The folder that relative names of files start from, with a slash at the end; `None`: the folder of each shard.
    media_dir: Option<String>,
    /// The caption of pictures and clips that have none.
    caption: Option<String>,
    /// The limit of pixels of its pictures and frames, where it has one of its own.
    area: Option<u64>,
    /// The system message of conversations that have none.
    system: Option<String>,
    /// The format that its samples were said to have.
    asked: Format,
    /// Longer texts are cut.
    piece_bytes: u64,
    window: usize,
    /// Its paths whose folders may have files that are not read.
    paths: Vec<String>,
    /// The LeRobot set that it is, and the frames at the end of each episode that begin no sample.
    set: Option<(Arc<Set>, usize)>,
    open: Mutex<VecDeque<(usize, Cell)>>,
}

/// A block of a shard.
#[derive(Clone, Copy)]
struct Unit {
    shard: usize,
    part: u32,
    num_records: u64,
}

type Cell = Arc<OnceLock<Result<Opened, String>>>;

struct Opened {
    block: Box<dyn Block>,
    /// Pieces before each record; empty where every record is one.
    before: Vec<u64>,
}

impl Source {
    /// Lets the last frames of each episode begin no sample. Another source than a LeRobot set stays as it is.
    pub fn drop_last_frames(&mut self, dropped: usize) {
        if let Some((set, of_it)) = &mut self.set {
            *of_it = dropped;
            let blocks = set.blocks(dropped).into_iter().enumerate();
            self.units =
                blocks.map(|(at, it)| Unit { shard: 0, part: at as u32, num_records: it.num_samples }).collect();
            self.before = sums(self.units.iter().map(|unit| unit.num_records));
            *self.open.get_mut().unwrap_or_else(PoisonError::into_inner) = VecDeque::new();
        }
    }

    /// Gives conversations that have no system message, of a set that states none, one of this text.
    pub fn default_system(&mut self, text: &str) {
        if self.is_conversation() && self.system.is_none() {
            self.system = Some(text.to_owned());
        }
    }

    /// Returns the LeRobot set that it is.
    pub fn set(&self) -> Option<&Arc<Set>> {
        self.set.as_ref().map(|(set, _)| set)
    }

    /// Samples of each episode that has some, in their order; `None`: it is no LeRobot set.
    pub fn episode_lens(&self) -> Option<Vec<u64>> {
        self.set.as_ref().map(|(set, dropped)| set.episode_lens(*dropped))
    }

    /// Returns its name in messages.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Returns a sentence about each folder of these data sets that has files which none of them reads, and about each set whose records
    /// are read as lines.
    pub fn left_out(sources: &[Self]) -> Vec<String> {
        let paths = || sources.iter().flat_map(|source| source.paths.iter().map(move |path| (path, source.asked)));
        let read: BTreeSet<PathBuf> = paths().filter_map(|(path, _)| std::fs::canonicalize(path).ok()).collect();
        let is_read = |folder: &Path| std::fs::canonicalize(folder).is_ok_and(|folder| read.contains(&folder));
        let left = paths().flat_map(|(path, format)| left_out(path, format, &is_read));
        left.chain(sources.iter().filter_map(Self::records_as_lines)).collect()
    }

    /// Returns a sentence about the first file of records whose lines are learned as they are.
    fn records_as_lines(&self) -> Option<String> {
        let named = self.shards.iter().find(|shard| shard.is_named_as_records());
        let shard = named.filter(|_| self.layout == RecordLayout::Plain)?;
        Some(format!(
            "{}: with `format: plain` its lines are learned as they are, with the names of fields and all marks; set \
             `format: text` to learn the field `text` alone",
            shard.name
        ))
    }

    /// Returns name, size and tag of each of its shards.
    pub fn stamps(&self) -> impl Iterator<Item = (&str, u64, &str)> {
        self.shards.iter().map(|shard| (shard.name.as_str(), shard.size, shard.tag.as_str()))
    }

    /// Returns the number of samples in the data set that its limit leaves.
    pub fn len(&self) -> usize {
        self.chosen().len() as usize
    }

    fn chosen(&self) -> Chosen {
        let (most, select) = self.limit;
        Chosen::new(most, select, self.before[self.units.len()])
    }

    /// Always returns false: an empty data set is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the format of its samples, as a configuration calls it.
    pub fn format(&self) -> &'static str {
        self.layout.name()
    }

    /// Returns whether samples are pairs of answers.
    pub fn is_pairs(&self) -> bool {
        self.layout == RecordLayout::Pairs
    }

    /// Returns whether samples are answers with a label.
    pub fn is_labeled(&self) -> bool {
        self.layout == RecordLayout::Labeled
    }

    /// Returns whether samples are rendered by a chat template.
    pub fn is_conversation(&self) -> bool {
        self.layout.is_conversation()
    }

    /// Returns whether samples are packs.
    pub fn is_packed(&self) -> bool {
        self.layout == RecordLayout::Packed
    }

    /// Returns whether samples are texts of any length.
    pub fn is_text(&self) -> bool {
        self.layout.is_text()
    }

    /// Returns whether samples are pictures and clips with captions.
    pub fn is_captioned(&self) -> bool {
        self.layout == RecordLayout::Captioned
    }

    /// Returns whether samples may name files outside of the data set's own.
    fn names_files(&self) -> bool {
        let has_own = |shard: &Shard| matches!(shard.container(), Container::Tar | Container::Folder);
        (self.is_conversation() || self.is_captioned()) && !self.shards.iter().all(has_own)
    }

    /// Returns the order in which samples are visited without those of `held`, which are ascending.
    pub fn order_without(&self, held: &[u64]) -> Order {
        let chosen = self.chosen();
        let left = |place: u64| {
            let number = chosen.before(place);
            number - held.partition_point(|&other| other < number) as u64
        };
        let lens = self.before.windows(2).map(|around| left(around[1]) - left(around[0]));
        // Blocks of which nothing is used would only part those that are mixed.
        let lens: Vec<u64> = lens.filter(|&len| len > 0 || self.limit.0.is_none()).collect();
        Order::new(&lens, self.window)
    }

    /// Returns the folder that files are relative to: an empty path, since they are resolved.
    pub fn base(&self) -> &Path {
        Path::new("")
    }

    /// Reads sample `index` in the order of the files.
    ///
    /// # Errors
    /// It cannot be read, or is damaged: it is named by its place.
    pub fn read(&self, index: usize) -> Result<Content, BadSample> {
        let (unit, within) = self.unit(index as u64);
        let read = || {
            let cell = self.opened(unit);
            let opened = cell.get().expect("it was just opened").as_ref().map_err(Clone::clone)?;
            self.content(opened, unit, within)
        };
        read().map_err(|reason| self.bad(index, reason))
    }

    /// Creates a bad sample of this data set.
    pub fn bad(&self, index: usize, reason: String) -> BadSample {
        let (unit, within) = self.unit(index as u64);
        let at = match self.opened(unit).get() {
            Some(Ok(opened)) => {
                let record = opened.place(within).0;
                if record < opened.block.len() { opened.block.name(record) } else { format!("sample {}", record + 1) }
            }
            _ => format!("sample {}", within + 1),
        };
        BadSample::new(self.shard(unit).name.clone().into(), at, reason)
    }

    /// Creates a sample of this data set that is skipped because of `error`.
    pub fn refused(&self, index: usize, error: &DataError) -> BadSample {
        BadSample { too_long: error.is_too_long(), ..self.bad(index, error.to_string()) }
    }

    /// Blocks in it.
    #[cfg(test)]
    pub fn units(&self) -> usize {
        self.units.len()
    }

    fn shard(&self, unit: usize) -> &Shard {
        &self.shards[self.units[unit].shard]
    }

    fn unit(&self, index: u64) -> (usize, u64) {
        let index = self.chosen().index(index);
        let unit = self.before.partition_point(|&before| before <= index) - 1;
        (unit, index - self.before[unit])
    }

    /// Returns the block, which is read if it is not held.
    fn opened(&self, unit: usize) -> Cell {
        let cell = {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            let held = open.iter().position(|(held, _)| *held == unit);
            let entry = held.and_then(|at| open.remove(at)).unwrap_or_else(|| (unit, Cell::default()));
            let cell = entry.1.clone();
            open.push_back(entry);
            while open.len() > self.window {
                open.pop_front();
            }
            cell
        };
        cell.get_or_init(|| self.open_unit(unit));
        cell
    }

    fn open_unit(&self, unit: usize) -> Result<Opened, String> {
        patiently(|| self.try_to_open(unit), |opened| opened.block.lost())
    }

    fn try_to_open(&self, unit: usize) -> Result<Opened, String> {
        let part = self.units[unit].part;
        let block: Box<dyn Block> = match &self.set {
            Some((set, dropped)) => {
                Box::new(set.open_block(part as usize, *dropped).map_err(|error| error.to_string())?)
            }
            None if self.shard(unit).container() == Container::Folder => {
                let folder = Folder::open(Path::new(&self.shard(unit).name), self.asked)?;
                Box::new(folder.with_caption(self.caption.clone()))
            }
            None => self.shard(unit).open(part, self.asked)?,
        };
        let mut before = Vec::new();
        if self.piece_bytes < u64::MAX {
            before = sums((0..block.len()).map(|record| self.pieces_in(&*block, record)));
            // Every record is one.
            if before.last() == Some(&block.len()) {
                before = Vec::new();
            }
        }
        Ok(Opened { block, before })
    }

    fn content(&self, opened: &Opened, unit: usize, within: u64) -> Result<Content, String> {
        let (record, piece) = opened.place(within);
        match self.whole(opened, unit, record)? {
            Whole::Conversation(mut conversation) => {
                conversation.media.iter_mut().try_for_each(fetch)?;
                Ok(Content::Messages(conversation))
            }
            Whole::Pair(mut pair) => {
                pair.chosen.media.iter_mut().chain(&mut pair.rejected.media).try_for_each(fetch)?;
                Ok(Content::Pair(pair))
            }
            Whole::Labeled(mut answer) => {
                answer.conversation.media.iter_mut().try_for_each(fetch)?;
                Ok(Content::Labeled(answer))
            }
            Whole::Packed(packed) => Ok(Content::Packed(*packed)),
            Whole::Step(step) => Ok(Content::Step(step)),
            Whole::Captioned(mut captioned) => {
                captioned.area = self.area;
                let shown = captioned.target.iter_mut().chain(&mut captioned.references);
                shown.chain(&mut captioned.mask).try_for_each(fetch)?;
                Ok(Content::Captioned(*captioned))
            }
            Whole::Tokens(ids) => match num_token_pieces(ids.len() as u64, self.piece_bytes) {
                _ if ids.is_empty() => Err("the document has no tokens".to_owned()),
                num if num != opened.num_pieces(record) => Err("its number of tokens has changed".to_owned()),
                _ => Ok(Content::Tokens(TokenPiece::of(ids, piece, self.piece_bytes))),
            },
            Whole::Text(text) => {
                let piece = TextPiece::of(&text, piece, opened.num_pieces(record));
                match piece.text.is_empty() {
                    true => Err(DataError::Line("the text is empty".to_owned()).to_string()),
                    false => Ok(Content::Text(piece)),
                }
            }
        }
    }

    fn whole(&self, opened: &Opened, unit: usize, record: u64) -> Result<Whole, String> {
        let (has, counted) = (opened.block.len(), self.units[unit].num_records);
        let lost = opened.block.lost();
        if record >= has {
            return Err(match lost {
                // The last one that is there stands for those that are missing.
                Some(reason) => {
                    let missing = counted + 1 - has;
                    format!("{reason}; {missing} of the {counted} samples of this part of the file cannot be read")
                }
                None => format!("the file has {has} samples, but {counted} were counted: it has changed"),
            });
        }
        // What is missing of a block was waited for when it was opened.
        let mut read = match lost {
            Some(_) => opened.block.read(record)?,
            None => patiently(|| opened.block.read(record), |_| None)?,
        };
        if let Some(caption) = &self.caption {
            captioned::caption(&mut read, &self.columns, caption);
        }
        let folder = self.media_dir.as_deref().unwrap_or_else(|| self.shard(unit).folder());
        let mut whole = self.layout.read(read, &self.columns, folder).map_err(|error| error.to_string())?;
        if let Some(system) = &self.system {
            whole.add_system(system);
        }
        Ok(whole)
    }
}

impl Opened {
    /// Returns the record of a sample, and which piece of it.
    fn place(&self, within: u64) -> (u64, u64) {
        if self.before.is_empty() {
            return (within, 0);
        }
        let record = self.before.partition_point(|&before| before <= within) - 1;
        (record as u64, within - self.before[record])
    }

    /// Returns the number of samples that a record is.
    fn num_pieces(&self, record: u64) -> u64 {
        match self.before.get(record as usize..).unwrap_or_default() {
            [from, to, ..] => to - from,
            _ => 1,
        }
    }

    /// Returns the number of samples in it.
    fn num_samples(&self) -> u64 {
        self.before.last().copied().unwrap_or_else(|| self.block.len())
    }
}
