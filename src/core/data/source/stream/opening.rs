//! Opening a data set: its shards are found, its samples counted, and their layout told.

use std::path::Path;
use std::sync::Mutex;

use super::{Source, Unit};
use crate::config::{Area, Phase, TrainFile};
use crate::data::error::DataError;
use crate::data::source::block::Record;
use crate::data::source::captioned::has_visual;
use crate::data::source::energon::is_energon;
use crate::data::source::index::Index;
use crate::data::source::layout::RecordLayout;
use crate::data::source::open::{Found, count, find};
use crate::data::source::order::sums;
use crate::data::source::shard::{Container, Shard};

/// Blocks and records that are looked at to tell a layout.
const NUM_TRIED: usize = 8;
/// Blocks open at a time where nothing else is said.
const WINDOW: usize = 16;

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

    /// Opens a data set with `window` blocks open at a time; counts of samples are kept in `index_dir`.
    ///
    /// # Errors
    /// Nothing is there or it has no samples, the system does not give a part of it, its weight is none, its layout cannot be told or does
    /// not go with the phase.
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
        let named = RecordLayout::named(file.format);
        check_phase(&name, named.as_ref(), phase)?;
        let found = find(file)?;
        let is_lines =
            |shard: &Shard| matches!(shard.container(), Container::Json | Container::Plain | Container::Sheet(_));
        if named == Some(RecordLayout::Plain) && !found.shards.iter().all(is_lines) {
            return Err(DataError::file(&name, "format plain is for files of lines; set text"));
        }
        let indexed = found.shards.iter().find(|shard| shard.container() == Container::Indexed);
        if let Some(indexed) = indexed.filter(|_| named.is_some() || !file.columns.is_empty()) {
            let reason = "holds tokens, which are used as they are: leave format and columns out";
            return Err(DataError::file(Path::new(&indexed.name), reason));
        }
        let mut index = Index::open(index_dir, &found.shards);
        let lens = match found.set {
            Some(_) => Vec::new(),
            // What could be counted is not counted again.
            None => count(&found, file.format, &mut index).inspect_err(|_| index.save())?,
        };
        let Found { shards, layout, set, .. } = found;
        let units = lens.iter().enumerate().flat_map(|(shard, parts)| {
            parts.iter().enumerate().map(move |(part, &num_records)| Unit { shard, part: part as u32, num_records })
        });
        let units: Vec<Unit> = units.collect();
        // A set of Energon says itself what it reads.
        let paths = file.path.0.iter().filter(|path| !is_energon(path)).cloned().collect();
        let mut source = Self {
            before: sums(units.iter().map(|unit| unit.num_records)),
            limit: (None, file.select),
            layout: RecordLayout::Messages,
            columns: file.columns.clone(),
            caption: file.caption.clone(),
            area: file.area.map(Area::pixels),
            system: file.system.clone(),
            media_dir: file.media_dir.as_ref().map(|dir| format!("{}/", dir.trim_end_matches('/'))),
            piece_bytes: u64::MAX,
            open: Mutex::default(),
            paths,
            name,
            shards,
            units,
            asked: file.format,
            window,
            set: set.map(|set| (set, 0)),
        };
        source.drop_last_frames(0);
        if source.is_empty() {
            return Err(DataError::Empty { path: source.name });
        }
        // What the set says of itself goes before `energon`, and not before another format.
        source.layout = match (named, layout) {
            (Some(RecordLayout::Crude) | None, Some(layout)) | (Some(layout), _) => layout,
            (None, None) => source.detect()?,
        };
        check_phase(&source.name, Some(&source.layout), phase)?;
        if source.caption.is_some() && !source.is_captioned() {
            let reason = "has no pictures or clips with captions, to which alone `caption` applies: leave it out";
            return Err(DataError::file(&source.name, reason));
        }
        if source.area.is_some() && !source.is_captioned() {
            let reason = "has no pictures or clips with captions, to which alone `area` applies: leave it out";
            return Err(DataError::file(&source.name, reason));
        }
        if source.system.is_some() && !source.is_conversation() {
            let reason = "has no conversations, to which alone `system` applies: leave it out";
            return Err(DataError::file(&source.name, reason));
        }
        if source.media_dir.is_some() && !source.names_files() {
            let reason = "has samples that name no files beside it, so that `media_dir` has no effect: leave it out";
            return Err(DataError::file(&source.name, reason));
        }
        if source.layout.is_text() {
            source.cut(max_tokens, num_tokens, &mut index).inspect_err(|_| index.save())?;
        }
        // Of all that there is: a limit changes no sample.
        source.limit = (file.max_samples, file.select);
        index.save();
        Ok(source)
    }

    /// Returns the layout of the first record that tells one: of what is before it, some cannot be read, and some may lack a field that
    /// the others have.
    fn detect(&self) -> Result<RecordLayout, DataError> {
        let mut reason = None;
        let units = (0..self.units.len()).filter(|&unit| self.units[unit].num_records > 0).take(NUM_TRIED);
        for unit in units {
            let cell = self.opened(unit);
            let file = |reason: &str| DataError::file(Path::new(&self.shard(unit).name), reason);
            match cell.get().expect("it was just opened") {
                Err(error) => drop(reason.get_or_insert_with(|| file(error))),
                Ok(opened) => {
                    for record in 0..opened.block.len().min(NUM_TRIED as u64) {
                        let unread = |reason: &str| {
                            let place = format!("{}:{}", self.shard(unit).name, opened.block.name(record));
                            DataError::file(Path::new(&place), reason)
                        };
                        match opened.block.read(record) {
                            Ok(read) => match self.layout_of(&read) {
                                Ok(layout) => return Ok(layout),
                                Err(told) => drop(reason.get_or_insert_with(|| file(&told))),
                            },
                            Err(error) => drop(reason.get_or_insert_with(|| unread(&error))),
                        }
                    }
                }
            }
        }
        Err(reason.unwrap_or_else(|| DataError::Empty { path: self.name.clone() }))
    }

    /// Returns the layout of a record. Where the set has a caption for all, a picture or clip needs none, and one beside a text is
    /// captioned and no conversation.
    fn layout_of(&self, record: &Record) -> Result<RecordLayout, String> {
        match RecordLayout::of(record, &self.columns) {
            Ok(RecordLayout::Fields(_)) | Err(_) if self.caption.is_some() && has_visual(record, &self.columns) => {
                Ok(RecordLayout::Captioned)
            }
            told => told,
        }
    }
}

fn check_phase(name: &Path, layout: Option<&RecordLayout>, phase: Phase) -> Result<(), DataError> {
    if phase == Phase::Sft && layout.is_some_and(RecordLayout::is_text) {
        let reason = "texts have no assistant to learn from: set train.phase to pretrain or midtrain, or format to \
                      messages";
        return Err(DataError::file(name, reason));
    }
    Ok(())
}
