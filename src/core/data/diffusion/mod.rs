//! Samples for diffusion models: a picture or clip with its caption becomes the item of which the autoencoder makes the
//! target, the items of conditions and references, and the prompt's tokens.
//!
//! ```text
//! record ─┬ picture, clip ── frames ── size ─┬ target      ┐
//!         │                                  └ condition   ├ items of the autoencoder ─┐
//!         ├ references ───── frames ── size ───────────────┘                           ├ sample
//!         └ captions ─────── choice, dropout ── tokens ── item of the text tower ──────┘
//! ```

mod captions;
mod clean;
mod edits;
mod given;
mod latents;
mod load;
mod masks;
mod mojibake;
mod pictures;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use image::RgbImage;
use serde_json::Value as Json;

use self::captions::Captions;
use self::given::Given;
pub use self::latents::LatentSpace;
use self::load::{Loader, Visit};
use self::pictures::Frames;
use super::decoder::MediaDecoder;
use super::error::DataError;
use super::maker::SampleMaker;
use super::processor::{FlowOptions, ProcessorFolders, ProcessorOptions, guarded};
use super::sample::{Media, Sample};
use super::source::{Captioned, Content, MediaSource, Source};
use super::tally::Tally;
use crate::config::{Format, Phase, VideoLimits};
use crate::message::{Grid, SampleId};

/// Makes samples for one diffusion model.
pub struct DiffusionMaker {
    space: LatentSpace,
    given: Given,
    /// Pictures and clips follow the tokens of the target (Qwen-Image's edits).
    takes_references: bool,
    makes_clips: bool,
    captions: Captions,
    loader: Loader,
    flow: FlowOptions,
    max_tokens: usize,
    unedited: Tally,
}

impl DiffusionMaker {
    /// Opens the maker from the `config.json` of a diffusion model and the tokenizer of its text tower.
    ///
    /// # Errors
    /// The config lacks a key or has an unknown autoencoder, the model takes what is not made here, or as
    /// [`Captions::open`].
    pub fn open(
        folders: ProcessorFolders<'_>,
        config: &Json,
        options: &ProcessorOptions,
        decoder: Arc<dyn MediaDecoder>,
    ) -> Result<Self, DataError> {
        let wrong = |reason: String| DataError::file(&folders.model.join("config.json"), reason);
        let transformer = &config["transformer"];
        let space = LatentSpace::of(config).map_err(wrong)?;
        let (is_wan, is_qwen) = match transformer["_class_name"].as_str() {
            Some("WanTransformer3DModel") => (true, false),
            Some("QwenImageTransformer2DModel") => (false, true),
            _ => {
                return Err(wrong(format!(
                    "transformer._class_name must be WanTransformer3DModel or QwenImageTransformer2DModel, found {}",
                    transformer["_class_name"]
                )));
            }
        };
        let pipeline = config["pipeline"].as_str().unwrap_or_default();
        let encoder = &config["text_encoder"];
        let is_blind = encoder["model_type"] == "qwen2_5_vl" && !encoder["vision_config"].is_object();
        if is_blind && pipeline.starts_with("QwenImageEdit") {
            return Err(wrong(format!(
                "{pipeline}: text_encoder has no vision_config, which reads the pictures to edit"
            )));
        }
        // What is wrong is written in the run's config, not in the model's.
        let unfit = |reason: String| DataError::file(folders.model, reason);
        if options.flow.draws_latents && config["vae"]["_class_name"] == "PixelLatents" {
            let reason = "train.latents is sample, but the latents of PixelLatents have no distribution: drop it";
            return Err(unfit(reason.to_owned()));
        }
        check_clips(&options.video, space, is_wan).map_err(unfit)?;
        check_buckets([options.image.bucket, options.video.bucket], space).map_err(unfit)?;
        let rate = if config["expand_timesteps"] == true { 24.0 } else { 16.0 };
        let flow = options.flow.clone();
        Ok(Self {
            space,
            given: Given::open(folders.media, config, space, &flow, options.video.first_frame)?,
            takes_references: is_qwen,
            makes_clips: is_wan,
            captions: Captions::open(folders, config, (flow.seed, flow.dropout))?,
            loader: Loader::new(options, decoder, space, if is_wan { rate } else { f64::INFINITY }),
            flow,
            max_tokens: options.max_tokens,
            unedited: Tally::new("samples without a picture to edit, learned from their prompts alone"),
        })
    }

    /// Makes a sample to learn from.
    fn learn(&self, id: SampleId, record: &Captioned, base: &Path) -> Result<Sample, DataError> {
        let target = record.target.as_ref().ok_or_else(no_target)?;
        let drops_conditions = self.given.are_dropped(id);
        let visit = Visit { id, base, area: record.area, drops_conditions };
        let (frames, mask) = self.loader.masked(target, self.mask(record)?, visit)?;
        let grid = self.space.tokens(frames.sizes());
        let mut media = vec![frames.item(self.space.channels, grid.num_cells())];
        let num_frames = frames.sizes()[0];
        let given = (!drops_conditions && self.given.is_given(id, num_frames)).then_some(&frames);
        media.extend(given.map(|frames| self.given.condition(frames, num_frames)));
        let (references, shown) = self.references(&mut media, record, visit)?;
        if self.captions.pictures().is_some() && record.references.is_empty() {
            self.unedited.add();
        }
        let num_tokens = references + grid.num_cells();
        media.push(self.captions.item(self.captions.choose(id, &record.captions), &shown)?);
        let num_clean = given.map_or(0, |frames| self.given.num_clean(num_frames, frames));
        media.extend(self.pictures(Some(target), given)?);
        let of_frame = mask.map(|mask| masks::of_tokens(&mask, self.space));
        self.sample(id, grid, [num_tokens, num_clean], media, of_frame.as_deref())
    }

    /// Returns the mask of a record's picture or clip.
    fn mask<'a>(&self, record: &'a Captioned) -> Result<Option<&'a MediaSource>, DataError> {
        match (&record.mask, self.flow.masks) {
            (Some(_), false) => {
                let reason = "has a `mask`: set data.masks=true, so that it weighs the loss, or drop the field";
                Err(DataError::Line(reason.to_owned()))
            }
            (mask, _) => Ok(mask.as_ref()),
        }
    }

    /// Makes a sample of which only prompt, condition and references are known.
    fn ask(&self, id: SampleId, record: &Captioned, base: &Path) -> Result<Sample, DataError> {
        let given = record.target.as_ref();
        let sampled = self.flow.sampled.clone().unwrap_or_default();
        let drops_conditions = sampled.goes_without && record.references.is_empty();
        let visit = Visit { id, base, area: record.area, drops_conditions };
        let size = sampled.size.map(|size| (size.columns as usize, size.rows as usize));
        let frames = match given {
            Some(given) => Some(self.loader.given(given, visit, size)?),
            None if self.given.needs_picture() && !sampled.goes_without => return Err(no_picture()),
            None => None,
        };
        let own = frames.as_ref().map(Frames::sizes);
        let [_, rows, columns] = match (size, own) {
            (Some((columns, rows)), _) => [1, rows, columns],
            (None, Some(sizes)) => sizes,
            (None, None) => {
                let key = sampled.asked_by.name("size");
                let reason = format!("no picture or clip determines the size of the result: set {key}");
                return Err(DataError::Line(reason));
            }
        };
        let [unit_rows, unit_columns] = self.space.unit();
        if rows % unit_rows + columns % unit_columns > 0 {
            let key = sampled.asked_by.name("size");
            let reason = format!(
                "{key} {rows}x{columns} is not a multiple of {unit_rows}x{unit_columns} pixels, the size of a token"
            );
            return Err(DataError::Line(reason));
        }
        if let Some(frames) = sampled.frames {
            self.check_frames(frames, &sampled.asked_by.name("frames")).map_err(DataError::Line)?;
        }
        let asked = sampled.frames.unwrap_or(own.map_or(1, |sizes| sizes[0]));
        let num_frames = self.space.whole(asked);
        let grid = self.space.tokens([num_frames, rows, columns]);
        let first = frames.as_ref().filter(|_| self.given.begins(num_frames));
        let mut media: Vec<Media> = first.map(|frames| self.given.condition(frames, num_frames)).into_iter().collect();
        let (references, shown) = self.references(&mut media, record, visit)?;
        let num_tokens = references + grid.num_cells();
        media.push(self.captions.item(&record.captions[0], &shown)?);
        if let Some(negative) = &sampled.negative {
            media.push(self.captions.item(negative.as_deref().unwrap_or(self.captions.null()), &shown)?);
        }
        media.extend(self.pictures(given, first)?);
        self.sample(id, grid, [num_tokens, 0], media, None)
    }

    /// # Errors
    /// The reason: results cannot have so many frames.
    fn check_frames(&self, frames: usize, key: &str) -> Result<(), String> {
        match (frames, self.makes_clips) {
            (1, _) => Ok(()),
            (_, false) => Err(format!("{key} is {frames}, but this model makes pictures: drop it")),
            (_, true) => self.space.check_frames(frames).map_err(|reason| format!("{key} {reason}")),
        }
    }

    /// Adds the items of references; returns their tokens, and the pictures that the text tower is shown.
    fn references(
        &self,
        media: &mut Vec<Media>,
        record: &Captioned,
        visit: Visit<'_>,
    ) -> Result<(usize, Vec<RgbImage>), DataError> {
        if !self.takes_references && !record.references.is_empty() {
            let reason = "has pictures to make the result from, but this model takes none";
            return Err(DataError::Line(reason.to_owned()));
        }
        if visit.drops_conditions {
            return Ok((0, Vec::new()));
        }
        let (mut num_tokens, mut shown) = (0, Vec::new());
        let mut references = Vec::new();
        match self.captions.pictures() {
            Some(pictures) => {
                let read = |reference| self.loader.picture(reference, visit);
                let found = record.references.iter().map(read).collect::<Result<Vec<_>, _>>()?;
                let sized = pictures.sized(&found, self.loader.image_area(visit));
                let [own, small] = sized.map_err(DataError::Line)?;
                references.extend(own.into_iter().map(Frames::of_picture));
                shown = small;
            }
            None => {
                for reference in &record.references {
                    references.push(self.loader.native(reference, visit)?);
                }
            }
        }
        for frames in references {
            let count = self.space.tokens(frames.sizes()).num_cells();
            media.push(frames.item(self.space.channels, count));
            num_tokens += count;
        }
        Ok((num_tokens, shown))
    }

    /// Makes the image tower's items of a source's given frames.
    fn pictures(&self, source: Option<&MediaSource>, given: Option<&Frames>) -> Result<Vec<Media>, DataError> {
        let Some((source, frames)) = source.zip(given) else { return Ok(Vec::new()) };
        self.given.pictures(frames).map_err(|reason| DataError::image(Path::new(source.name()), reason))
    }

    /// `num_tokens` of the target and of references, of which `num_clean` of the target are given and not made; `of_frame` weighs
    /// the tokens of each frame.
    fn sample(
        &self,
        id: SampleId,
        grid: Grid,
        [num_tokens, num_clean]: [usize; 2],
        media: Vec<Media>,
        of_frame: Option<&[f32]>,
    ) -> Result<Sample, DataError> {
        if num_tokens > self.max_tokens {
            let (num_image_tokens, max_tokens) = (num_tokens, self.max_tokens);
            return Err(DataError::TooLong { num_tokens, num_image_tokens, num_audio_tokens: 0, max_tokens });
        }
        let (column, counted) = match self.flow.masks {
            true => {
                masks::column(of_frame, grid, num_tokens, num_clean).map(|(column, counted)| (Some(column), counted))?
            }
            false => (None, grid.num_cells() - num_clean),
        };
        let num_targets = if self.flow.per_token { counted as u32 } else { 1 };
        let sample = Sample::of_target(id, grid, [num_tokens as u32, num_targets], media);
        Ok(sample.with_columns(column.into_iter().collect()))
    }
}

/// # Errors
/// The reason: keys of clips that the model has no use for, or cannot follow.
fn check_clips(video: &VideoLimits, space: LatentSpace, makes_clips: bool) -> Result<(), String> {
    let written = [
        ("area", video.area.is_some()),
        ("bucket", video.bucket.is_some()),
        ("frames", video.frames.is_some()),
        ("fps", video.fps.is_some()),
        ("take", video.take.is_some()),
    ];
    if let Some((key, _)) = written.iter().find(|(_, is_written)| *is_written && !makes_clips) {
        return Err(format!("data.video.{key} applies to clips, but this model makes pictures: drop it"));
    }
    video
        .frames
        .map_or(Ok(()), |frames| space.check_frames(frames).map_err(|reason| format!("data.video.frames {reason}")))
}

/// # Errors
/// The reason: sides of pictures, or of a clip's frames, would not be whole tokens.
fn check_buckets(buckets: [Option<usize>; 2], space: LatentSpace) -> Result<(), String> {
    let [rows, columns] = space.unit();
    for (key, bucket) in ["data.image.bucket", "data.video.bucket"].into_iter().zip(buckets) {
        if let Some(side) = bucket.filter(|side| side % rows + side % columns > 0) {
            return Err(format!("{key} is {side}, not a multiple of {rows}x{columns} pixels, the size of a token"));
        }
    }
    Ok(())
}

fn no_target() -> DataError {
    DataError::Line(
        "no picture or clip: the record has none of the fields image, video, file_name, image_path and video_path"
            .to_owned(),
    )
}

fn no_picture() -> DataError {
    DataError::Line(
        "no picture or clip, which this model continues: only a model that is trained with data.condition_dropout goes \
         without"
            .to_owned(),
    )
}

fn captioned(record: &Content) -> Result<&Captioned, DataError> {
    match record {
        Content::Captioned(captioned) => Ok(captioned),
        _ => Err(DataError::Line(
            "is not a picture or clip with a caption, which diffusion models learn from".to_owned(),
        )),
    }
}

impl SampleMaker for DiffusionMaker {
    fn make(&self, id: SampleId, record: &Content, base: &Path) -> Result<Sample, DataError> {
        guarded(|| self.learn(id, captioned(record)?, base))
    }

    fn prompt(&self, id: SampleId, record: Content, base: &Path) -> Result<Sample, String> {
        guarded(|| self.ask(id, captioned(&record)?, base)).map_err(|error| error.to_string())
    }

    fn choice(&self, id: SampleId, record: &Content) -> u64 {
        let Content::Captioned(record) = record else { return 0 };
        let videos =
            record.target.iter().chain(&record.references).any(|source| matches!(source, MediaSource::Video(_)));
        match videos && self.loader.takes_by_visit() {
            true => id.0 << 32,
            false => {
                let number = self.captions.number(id, record.captions.len()).map_or(u64::MAX, |number| number as u64);
                // The first frame of two or more may be given.
                let is_given = u64::from(videos && self.given.is_given(id, 2));
                (number << 2) | (is_given << 1) | u64::from(self.given.are_dropped(id))
            }
        }
    }

    fn format(&self, format: Format) -> Format {
        if format == Format::Auto { Format::Captioned } else { format }
    }

    fn check(&self, source: &Source) -> Result<(), DataError> {
        match source.is_captioned() {
            true => Ok(()),
            false => {
                let reason = format!(
                    "has the format {}, but diffusion models learn from pictures and clips with captions: drop \
                     `format`, or set it to captioned",
                    source.format()
                );
                Err(DataError::file(source.name(), reason))
            }
        }
    }

    fn phase(&self) -> Phase {
        Phase::default()
    }

    fn num_tokens(&self, text: &str) -> usize {
        self.captions.item(text, &[]).map_or(text.len(), |item| item.num_features)
    }

    fn decodes(&self) -> bool {
        true
    }

    fn notes(&self) -> Vec<String> {
        self.loader.notes().into_iter().chain(self.captions.notes()).chain(self.unedited.line()).collect()
    }
}
