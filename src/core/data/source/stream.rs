//! A data set, opened: any of its samples by number, with few blocks open at a time.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::block::{Block, Body};
use super::captioned::Captioned;
use super::cut::{NUM_PROBES, Piece, TokenPiece, num_pieces, num_token_pieces, piece_bytes};
use super::energon::is_energon;
use super::index::Index;
use super::labeled::Labeled;
use super::layout::{Layout, Whole};
use super::messages::{Conversation, MediaSource};
use super::open::{Found, count, find};
use super::order::{Order, sums};
use super::pairs::Pair;
use super::parallel::in_parallel;
use super::paths::left_out;
use super::shard::{Container, Shard};
use crate::config::{Phase, TrainFile};
use crate::data::error::{BadSample, DataError};
use crate::data::lerobot::{Set, Step};
use crate::data::locator::Locator;
use crate::data::packed::PackedSample;

/// Blocks and records that are looked at to tell a layout.
const NUM_TRIED: usize = 8;
/// Blocks open at a time where nothing else is said.
const WINDOW: usize = 16;

/// One data set: the shards of one entry of `data.train`.
pub struct Source {
    name: PathBuf,
    shards: Vec<Shard>,
    units: Vec<Unit>,
    /// Samples before each unit, and all of them.
    before: Vec<u64>,
    layout: Layout,
    columns: BTreeMap<String, String>,
    is_plain: bool,
    /// Longer texts are cut.
    piece_bytes: u64,
    window: usize,
    left_out: Vec<String>,
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

/// Says what a sample is made from. Files in it are resolved.
#[derive(Debug, PartialEq)]
pub enum Content {
    Messages(Conversation),
    /// Two answers to one prompt.
    Pair(Box<Pair>),
    /// An answer that is good or bad.
    Labeled(Box<Labeled>),
    /// Labeled answers that make one sample.
    Group(Vec<Labeled>),
    Text(Piece),
    /// Tokens of a document, used as they are.
    Tokens(TokenPiece),
    /// Documents end to end, processed but for their pixels.
    Packed(PackedSample),
    /// A picture or a clip with its caption.
    Captioned(Captioned),
    /// A frame of an episode of a robot.
    Step(Step),
}

impl Content {
    /// The pictures, videos and recordings that it names, and texts for a text tower.
    pub fn media(&self) -> Vec<&MediaSource> {
        match self {
            Self::Messages(conversation) => conversation.media.iter().collect(),
            Self::Pair(pair) => pair.answers().into_iter().flat_map(|answer| &answer.media).collect(),
            Self::Labeled(answer) => answer.conversation.media.iter().collect(),
            Self::Group(answers) => answers.iter().flat_map(|answer| &answer.conversation.media).collect(),
            Self::Captioned(captioned) => captioned.target.iter().chain(&captioned.references).collect(),
            Self::Text(_) | Self::Tokens(_) | Self::Packed(_) | Self::Step(_) => Vec::new(),
        }
    }
}

impl Source {
    /// `num_tokens` counts the tokens of a text. Counts of samples are not kept.
    ///
    /// # Errors
    /// See [`Source::open_with`].
    pub fn open(
        file: &TrainFile,
        phase: Phase,
        max_tokens: usize,
        num_tokens: impl Fn(&str) -> usize,
    ) -> Result<Self, DataError> {
        Self::open_with(file, phase, max_tokens, &num_tokens, WINDOW, None)
    }

    /// With `window` blocks open at a time; counts of samples are kept in `index_dir`.
    ///
    /// # Errors
    /// Nothing is there or it has no samples, its weight is none, its layout cannot be told or does not go with the phase.
    pub fn open_with(
        file: &TrainFile,
        phase: Phase,
        max_tokens: usize,
        num_tokens: &dyn Fn(&str) -> usize,
        window: usize,
        index_dir: Option<&Path>,
    ) -> Result<Self, DataError> {
        let name = file.name();
        if !(file.weight.is_finite() && file.weight > 0.0) {
            return Err(DataError::Weight { path: name, weight: file.weight });
        }
        let named = Layout::named(file.format);
        check_phase(&name, named.as_ref(), phase)?;
        let found = find(file)?;
        let is_lines =
            |shard: &Shard| matches!(shard.container(), Container::Json | Container::Plain | Container::Sheet(_));
        if named == Some(Layout::Plain) && !found.shards.iter().all(is_lines) {
            return Err(DataError::file(&name, "format plain is for files of lines; set text"));
        }
        let indexed = found.shards.iter().find(|shard| shard.container() == Container::Indexed);
        if let Some(indexed) = indexed.filter(|_| named.is_some() || !file.columns.is_empty()) {
            let reason = "holds tokens, which are used as they are: leave format and columns out";
            return Err(DataError::file(Path::new(&indexed.name), reason));
        }
        let is_plain = named == Some(Layout::Plain);
        let mut index = Index::open(index_dir, &found.shards);
        let lens = match found.set {
            Some(_) => Vec::new(),
            None => count(&found, is_plain, &mut index)?,
        };
        let Found { shards, layout, set, .. } = found;
        let units = lens.iter().enumerate().flat_map(|(shard, parts)| {
            parts.iter().enumerate().map(move |(part, &num_records)| Unit { shard, part: part as u32, num_records })
        });
        let units: Vec<Unit> = units.collect();
        let mut source = Self {
            before: sums(units.iter().map(|unit| unit.num_records)),
            layout: Layout::Messages,
            columns: file.columns.clone(),
            piece_bytes: u64::MAX,
            open: Mutex::default(),
            left_out: file.path.0.iter().filter(|path| !is_energon(path)).flat_map(|path| left_out(path)).collect(),
            name,
            shards,
            units,
            is_plain,
            window,
            set: set.map(|set| (set, 0)),
        };
        source.drop_last_frames(0);
        if source.is_empty() {
            return Err(DataError::Empty { path: source.name });
        }
        // What the set says of itself goes before `energon`, and not before another format.
        source.layout = match (named, layout) {
            (Some(Layout::Crude) | None, Some(layout)) | (Some(layout), _) => layout,
            (None, None) => source.detect()?,
        };
        check_phase(&source.name, Some(&source.layout), phase)?;
        if source.layout.is_text() {
            source.cut(max_tokens, num_tokens, &mut index);
        }
        index.save();
        Ok(source)
    }

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

    /// The LeRobot set that it is.
    pub fn set(&self) -> Option<&Arc<Set>> {
        self.set.as_ref().map(|(set, _)| set)
    }

    /// Returns what messages call it.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// A sentence of each folder of it that has files which are not read.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Samples in it.
    pub fn len(&self) -> usize {
        self.before[self.units.len()] as usize
    }

    /// Always false: what is empty is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns what its samples look like, as a configuration calls it.
    pub fn format(&self) -> &'static str {
        self.layout.name()
    }

    /// Returns whether samples are pairs of answers.
    pub fn is_pairs(&self) -> bool {
        self.layout == Layout::Pairs
    }

    /// Returns whether samples are answers with a label.
    pub fn is_labeled(&self) -> bool {
        self.layout == Layout::Labeled
    }

    /// Returns whether samples are rendered by a chat template.
    pub fn is_conversation(&self) -> bool {
        self.layout.is_conversation()
    }

    /// Returns whether samples are pictures and clips with captions.
    pub fn is_captioned(&self) -> bool {
        self.layout == Layout::Captioned
    }

    /// The order in which its samples are visited, but for these, ascending.
    pub fn order_without(&self, held: &[u64]) -> Order {
        let left = |index: u64| index - held.partition_point(|&other| other < index) as u64;
        let lens: Vec<u64> = self.before.windows(2).map(|around| left(around[1]) - left(around[0])).collect();
        Order::new(&lens, self.window)
    }

    /// Returns what files are relative to: nothing more, they are resolved.
    pub fn base(&self) -> &Path {
        Path::new("")
    }

    /// Sample `index` in the order of the files.
    pub fn read(&self, index: usize) -> Result<Content, BadSample> {
        let (unit, within) = self.unit(index as u64);
        let read = || {
            let cell = self.opened(unit);
            let opened = cell.get().expect("it was just opened").as_ref().map_err(Clone::clone)?;
            self.content(opened, unit, within)
        };
        read().map_err(|reason| self.bad(index, reason))
    }

    /// A bad sample of this data set.
    pub fn bad(&self, index: usize, reason: String) -> BadSample {
        let (unit, within) = self.unit(index as u64);
        let at = match self.opened(unit).get() {
            Some(Ok(opened)) => {
                let record = opened.place(within).0;
                if record < opened.block.len() { opened.block.name(record) } else { format!("sample {}", record + 1) }
            }
            _ => format!("sample {}", within + 1),
        };
        BadSample { file: self.shard(unit).name.clone().into(), at, reason, too_long: false }
    }

    /// A sample of this data set that is skipped because of `error`.
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
        let unit = self.before.partition_point(|&before| before <= index) - 1;
        (unit, index - self.before[unit])
    }

    /// The block, which is read if it is not held.
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
        let part = self.units[unit].part;
        let block: Box<dyn Block> = match &self.set {
            Some((set, dropped)) => {
                Box::new(set.open_block(part as usize, *dropped).map_err(|error| error.to_string())?)
            }
            None => self.shard(unit).open(part, self.is_plain)?,
        };
        let pieces = |record| self.pieces_of(block.num_bytes(record));
        let before = match (0..block.len()).any(|record| pieces(record) > 1) {
            true => sums((0..block.len()).map(pieces)),
            false => Vec::new(),
        };
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
                captioned.target.iter_mut().chain(&mut captioned.references).try_for_each(fetch)?;
                Ok(Content::Captioned(*captioned))
            }
            Whole::Tokens(ids) => match ids.is_empty() {
                true => Err("a document without tokens".to_owned()),
                false => Ok(Content::Tokens(TokenPiece::of(ids, piece, self.piece_bytes))),
            },
            Whole::Text(text) => {
                let num = num_pieces(opened.block.num_bytes(record), self.piece_bytes);
                let piece = Piece::of(&text, piece, num);
                match piece.text.is_empty() {
                    true => Err(DataError::Line("an empty text".to_owned()).to_string()),
                    false => Ok(Content::Text(piece)),
                }
            }
        }
    }

    fn whole(&self, opened: &Opened, unit: usize, record: u64) -> Result<Whole, String> {
        if record >= opened.block.len() {
            let (has, counted) = (opened.block.len(), self.units[unit].num_records);
            return Err(format!("the file has {has} samples, but {counted} were counted: it has changed"));
        }
        let read = opened.block.read(record)?;
        self.layout.read(read, &self.columns, self.shard(unit).folder()).map_err(|error| error.to_string())
    }

    /// The layout of the first record that can be read.
    fn detect(&self) -> Result<Layout, DataError> {
        let mut reason = None;
        let units = (0..self.units.len()).filter(|&unit| self.units[unit].num_records > 0).take(NUM_TRIED);
        for unit in units {
            let cell = self.opened(unit);
            let file = |reason: &str| DataError::file(Path::new(&self.shard(unit).name), reason);
            match cell.get().expect("it was just opened") {
                Err(error) => drop(reason.get_or_insert_with(|| file(error))),
                Ok(opened) => {
                    for record in 0..opened.block.len().min(NUM_TRIED as u64) {
                        match opened.block.read(record) {
                            Ok(read) if matches!(&read.body, Body::Json(json) if !json.is_object()) => {
                                let told = Layout::of(&read, &self.columns).err().unwrap_or_default();
                                reason.get_or_insert_with(|| file(&told));
                            }
                            Ok(read) => return Layout::of(&read, &self.columns).map_err(|reason| file(&reason)),
                            Err(error) => drop(reason.get_or_insert_with(|| file(&error))),
                        }
                    }
                }
            }
        }
        Err(reason.unwrap_or_else(|| DataError::Empty { path: self.name.clone() }))
    }

    /// Pieces of a text of so many bytes, or of a document of so many tokens.
    fn pieces_of(&self, len: u64) -> u64 {
        match self.layout {
            Layout::Tokens => num_token_pieces(len, self.piece_bytes),
            _ => num_pieces(len, self.piece_bytes),
        }
    }

    /// The most bytes of a piece of a text, or tokens of a piece of a document.
    fn longest(&self, max_tokens: usize, num_tokens: &dyn Fn(&str) -> usize) -> u64 {
        if self.layout == Layout::Tokens {
            return max_tokens as u64;
        }
        let step = self.len().div_ceil(NUM_PROBES);
        let texts = (0..self.len()).step_by(step).filter_map(|at| match self.read(at) {
            Ok(Content::Text(piece)) => Some(piece.text),
            _ => None,
        });
        piece_bytes(texts, max_tokens, num_tokens)
    }

    /// Counts pieces instead of texts where texts are long.
    fn cut(&mut self, max_tokens: usize, num_tokens: &dyn Fn(&str) -> usize, index: &mut Index) {
        let most = self.longest(max_tokens, num_tokens);
        if most >= u64::MAX / 8 {
            return;
        }
        self.piece_bytes = most;
        // Blocks that are open were not cut.
        let held = std::mem::take(self.open.get_mut().unwrap_or_else(PoisonError::into_inner));
        let kind = match (&self.layout, self.is_plain) {
            (Layout::Tokens, _) => "token",
            (_, true) => "plain",
            (_, false) => "text",
        };
        let what = format!("{kind} pieces of {most}");
        let known = |unit: &Unit, index: &Index| {
            let counts = index.get(&self.shards[unit.shard], &what)?;
            counts.get(unit.part as usize).copied()
        };
        let mut lens: Vec<Option<u64>> = self.units.iter().map(|unit| known(unit, index)).collect();
        let missing: Vec<usize> = (0..lens.len()).filter(|&unit| lens[unit].is_none()).collect();
        let pieces = |block: &dyn Block| (0..block.len()).map(|record| self.pieces_of(block.num_bytes(record))).sum();
        let counted = in_parallel(&missing, "measuring texts", |&unit| {
            let block = held.iter().find(|(held, _)| *held == unit).and_then(|(_, cell)| cell.get());
            match block {
                Some(Ok(opened)) => pieces(&*opened.block),
                _ => self.open_unit(unit).map_or(self.units[unit].num_records, |opened| pieces(&*opened.block)),
            }
        });
        for (&unit, counted) in missing.iter().zip(counted) {
            lens[unit] = Some(counted);
        }
        let lens: Vec<u64> = lens.into_iter().map(Option::unwrap_or_default).collect();
        for (at, shard) in self.shards.iter().enumerate().filter(|_| !missing.is_empty()) {
            let of = self.units.iter().zip(&lens).filter(|(unit, _)| unit.shard == at).map(|(_, &len)| len);
            index.put(shard, &what, of.collect());
        }
        self.before = sums(lens.into_iter());
    }
}

impl Opened {
    /// The record of a sample, and which piece of it.
    fn place(&self, within: u64) -> (u64, u64) {
        if self.before.is_empty() {
            return (within, 0);
        }
        let record = self.before.partition_point(|&before| before <= within) - 1;
        (record as u64, within - self.before[record])
    }
}

fn check_phase(name: &Path, layout: Option<&Layout>, phase: Phase) -> Result<(), DataError> {
    if phase == Phase::Sft && layout.is_some_and(Layout::is_text) {
        let reason = "texts have no assistant to learn from: set train.phase to pretrain or midtrain, or format to \
                      messages";
        return Err(DataError::file(name, reason));
    }
    Ok(())
}

/// Brings what lies in an object store here.
fn fetch(source: &mut MediaSource) -> Result<(), String> {
    let locators = match source {
        MediaSource::Image(locator) => std::slice::from_mut(locator),
        MediaSource::Audio(audio) => std::slice::from_mut(&mut audio.locator),
        MediaSource::Video(video) => video.locators.as_mut_slice(),
        MediaSource::Context(_) => &mut [],
    };
    for locator in locators {
        if let Locator::Url(url) = locator {
            #[cfg(feature = "cloud")]
            {
                let bytes = super::remote::get(url, 256 << 20).map_err(|reason| format!("{url}: {reason}"))?;
                *locator = Locator::bytes(std::mem::take(url), bytes);
            }
            #[cfg(not(feature = "cloud"))]
            return Err(format!("{url}: this program was built without the feature `cloud`"));
        }
    }
    Ok(())
}
