//! Packs made ahead of time: every sample is measured, packs are planned over all of them, and each is written with its
//! tokens, targets, positions and pictures. Training on them decodes pixels and nothing else.
//!
//! Three stages, each of which may be killed and run again: measure (any number of processes), plan (a pure function of
//! the measures, so every process makes the same), write (any number of processes).

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::job::{Done, Job, Share};
use super::measure::Measure;
use super::shard::{Member, member_name};
use crate::data::audio::AudioSource;
use crate::data::dataset::Dataset;
use crate::data::error::{BadSample, DataError};
use crate::data::locator::Locator;
use crate::data::media::{in_folder, is_clip};
use crate::data::packed::{PackedKind, PackedMedia, PackedSample};
use crate::data::processor::Processor;
use crate::data::source::Content;
use crate::data::source::MediaSource;
use crate::files;
use crate::message::{SampleId, SampleMeta};
use crate::schedule::{PackLimits, SampleSize, StreamPacker, pack_offline};

/// Describes how packs are made and written.
#[derive(Clone, Debug)]
pub struct PackJob {
    /// Decides what is packed: configuration and files of the model. Another one is another job.
    pub spec: Json,
    /// Samples of the stream that are packed, from its beginning.
    pub num_samples: u64,
    pub limits: PackLimits,
    pub order: Order,
    /// Packs of a shard.
    pub max_packs: u64,
    /// Bytes of a shard.
    pub max_bytes: u64,
    /// Samples of a batch of a trainer that pads, with which packs are compared.
    pub batch: u64,
}

/// Says which samples share a pack, and in which order packs come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The packs that a run with `data.pack.mode: stream` makes from the same stream.
    Stream { look_ahead: usize },
    /// Best fit decreasing over everything; packs in the order of their first samples.
    Offline,
}

/// Says what [`PackJob::run`] has come to.
#[derive(Clone, Debug, PartialEq)]
pub enum Packed {
    /// This share is measured; so many blocks of other shares are not. Run the same again when they are.
    Measured { missing: u64 },
    /// The share's packs are written.
    Written(Done, PackStats),
}

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
    /// Samples of a batch that is padded, as [`PackJob::batch`] says.
    pub batch: u64,
    /// Tokens of such batches, a row a sample and all as long as the longest of the batch.
    pub batched: u64,
}

impl PackStats {
    /// Tokens of what packs hold, 0 to 1.
    pub fn fill(&self) -> f64 {
        if self.room == 0 { 0.0 } else { self.tokens as f64 / self.room as f64 }
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
struct Batched {
    longest: u64,
    rows: u64,
    tokens: u64,
}

impl Batched {
    fn add(&mut self, tokens: u64, batch: u64) {
        (self.longest, self.rows) = (self.longest.max(tokens), self.rows + 1);
        if self.rows >= batch {
            *self = Self { tokens: self.total(), ..Self::default() };
        }
    }

    /// Returns all tokens, those of the last batch included, which may have fewer rows.
    fn total(&self) -> u64 {
        self.tokens + self.rows * self.longest
    }
}

/// Says what a caller is told while it runs.
#[derive(Clone, Copy, Debug)]
pub enum PackProgress<'a> {
    /// So many samples will be measured.
    Measures(u64),
    Measured(Option<&'a BadSample>),
    /// So many packs will be written.
    Writes(u64),
    Written(Option<&'a BadSample>),
}

impl PackJob {
    /// Measures, plans and writes a share; with the whole, also the metadata.
    ///
    /// # Errors
    /// `out` holds something else or cannot be written, or a sample fits no pack by one of the limits.
    pub fn run(
        &self,
        dataset: &Dataset,
        out: &Path,
        share: Share,
        jobs: usize,
        mut progress: impl FnMut(PackProgress<'_>),
    ) -> Result<Packed, DataError> {
        let measure = Measure { spec: self.measured(), num_samples: self.num_samples };
        measure.begin(out)?;
        progress(PackProgress::Measures(measure.num_samples_of(share)));
        measure.run(out, dataset, share, jobs, |bad| progress(PackProgress::Measured(bad)))?;
        let missing = measure.num_missing(out)?;
        if missing > 0 {
            return Ok(Packed::Measured { missing });
        }
        let (packs, stats, bad) = self.plan(&measure, out, dataset)?;
        if packs.is_empty() {
            let (num_bad, too_long) = (stats.bad, stats.too_long);
            let first = bad.first().map_or_else(String::new, |bad| format!("; the first bad one: {bad}"));
            let reason = format!("no sample can be packed: {num_bad} are bad, {too_long} too long{first}");
            return Err(DataError::file(out, reason));
        }
        let job = Job {
            kind: "pack".to_owned(),
            spec: self.planned(),
            num_samples: packs.len() as u64,
            group_samples: self.max_packs.max(1),
            max_bytes: self.max_bytes,
            sample_type: "loongforge_packed".to_owned(),
            bad,
        };
        job.begin(out)?;
        progress(PackProgress::Writes(job.num_samples_of(share)));
        let work = |index: u64| members(dataset, &packs[index as usize]);
        let done = job.write(out, share, jobs, work, |_, bad| progress(PackProgress::Written(bad)))?;
        if share == Share::WHOLE {
            job.merge(out)?;
        }
        Ok(Packed::Written(done, stats))
    }

    fn measured(&self) -> Json {
        json!({ "data": self.spec, "samples": self.num_samples })
    }

    fn planned(&self) -> Json {
        let PackLimits { max_tokens, max_samples, max_images, max_visual_tokens } = self.limits;
        let order = match self.order {
            Order::Stream { look_ahead } => json!({ "stream": look_ahead }),
            Order::Offline => json!("offline"),
        };
        json!({ "data": self.spec, "order": order, "limits": [max_tokens, max_samples, max_images, max_visual_tokens] })
    }

    /// Positions of each pack's samples, and the samples that are left out.
    fn plan(&self, measure: &Measure, out: &Path, dataset: &Dataset) -> Result<Plan, DataError> {
        let (mut packs, mut stats, mut bad) = (Vec::new(), PackStats::default(), Vec::new());
        let (mut good, mut batched) = (Vec::new(), Batched::default());
        let mut packer = match self.order {
            Order::Stream { look_ahead } => Some(StreamPacker::new(self.limits, look_ahead)),
            Order::Offline => None,
        };
        let ids = |pack: Vec<SampleMeta>| pack.iter().map(|sample| sample.id).collect::<Vec<_>>();
        for sample in measure.samples(out) {
            let sample = match sample? {
                Ok(sample) => sample,
                Err(long) if long.too_long => {
                    stats.too_long += 1;
                    continue;
                }
                Err(sample) => {
                    bad.push(sample);
                    stats.bad += 1;
                    continue;
                }
            };
            let size = SampleSize::of(&sample);
            if let Err(error) = self.limits.check(sample.id, size) {
                bad.push(dataset.bad(sample.id.0, error.to_string()));
                stats.bad += 1;
                continue;
            }
            stats.samples += 1;
            stats.tokens += u64::from(size.tokens);
            stats.longest = stats.longest.max(u64::from(size.tokens));
            batched.add(u64::from(size.tokens), self.batch);
            match &mut packer {
                Some(packer) => {
                    packer.push(sample).expect("checked just now");
                    packs.extend(std::iter::from_fn(|| packer.pop()).map(ids));
                }
                None => good.push((sample.id, size)),
            }
        }
        match packer {
            Some(mut packer) => {
                packer.finish();
                packs.extend(std::iter::from_fn(|| packer.pop()).map(ids));
            }
            None => packs = offline(&good, self.limits),
        }
        (stats.batch, stats.batched) = (self.batch, batched.total());
        stats.packs = packs.len() as u64;
        stats.room = stats.packs * self.limits.max_tokens as u64;
        Ok((packs, stats, bad))
    }
}

/// Checksums of the files of a model's folder that samples depend on: tokenizer, chat template, processors.
///
/// # Errors
/// The folder or a file cannot be read.
pub fn model_spec(folder: &Path) -> Result<Json, DataError> {
    let mut files = serde_json::Map::new();
    let mut names: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| DataError::read(folder, error))? {
        let name = entry.map_err(|error| DataError::read(folder, error))?.file_name().to_string_lossy().into_owned();
        let is_one = ["tokenizer", "chat_template", "preprocessor", "processor", "video_", "qwen.tiktoken", "tiktoken"];
        if is_one.iter().any(|start| name.starts_with(start)) {
            names.push(name);
        }
    }
    names.sort();
    for name in names {
        let path = folder.join(&name);
        let bytes = files::read(&path, files::MAX_TEXT_BYTES).map_err(|error| DataError::read(&path, error))?;
        files.insert(name, crc32c::crc32c(&bytes).into());
    }
    Ok(Json::Object(files))
}

/// The samples of each pack, all packs together, and the samples that are left out.
type Plan = (Vec<Vec<SampleId>>, PackStats, Vec<BadSample>);

fn offline(samples: &[(SampleId, SampleSize)], limits: PackLimits) -> Vec<Vec<SampleId>> {
    let sizes: Vec<SampleSize> = samples.iter().map(|(_, size)| *size).collect();
    let (order, begins) = pack_offline(&sizes, limits).by_pack();
    let pack =
        |ends: &[u32]| order[ends[0] as usize..ends[1] as usize].iter().map(|&at| samples[at as usize].0).collect();
    begins.windows(2).map(pack).collect()
}

/// The members of a pack.
fn members(dataset: &Dataset, pack: &[SampleId]) -> Result<Vec<Member>, BadSample> {
    let mut all = PackedSample {
        ids: Vec::new(),
        lens: Vec::new(),
        samples: Vec::new(),
        input_ids: Vec::new(),
        targets: Vec::new(),
        position_ids: None,
        media: Vec::new(),
        items: Vec::new(),
    };
    let mut rows = [const { Vec::new() }; 3];
    for id in pack {
        let (content, base) = dataset.content(id.0)?;
        let wrong = |error: DataError| dataset.bad(id.0, error.to_string());
        let no_tokens = || dataset.bad(id.0, "is no sample of tokens, of which packs are made".to_owned());
        let processor = dataset.processor().ok_or_else(no_tokens)?;
        let sample = processor.sample_of(*id, &content, base).map_err(wrong)?;
        let narrow = |ids: &[i64]| ids.iter().map(|&id| i32::try_from(id)).collect::<Result<Vec<i32>, _>>();
        let (Ok(input_ids), Ok(targets)) = (narrow(&sample.input_ids), narrow(&sample.targets)) else {
            return Err(dataset.bad(id.0, "a token of an id above 2 147 483 647".to_owned()));
        };
        all.ids.push(id.0);
        all.lens.push(sample.meta.num_tokens);
        all.samples.push(dataset.place_name(id.0));
        for (row, ids) in rows.iter_mut().zip(sample.position_ids.chunks_exact(input_ids.len())) {
            row.extend_from_slice(ids);
        }
        all.input_ids.extend(input_ids);
        all.targets.extend(targets);
        all.items.extend(sample.meta.items);
        match content {
            Content::Messages(conversation) => {
                let sources = &conversation.media[..sample.num_sources];
                media(sources, base, processor, &mut all.media).map_err(wrong)?;
            }
            Content::Text(_) | Content::Tokens(_) | Content::Captioned(_) | Content::Step(_) => {}
            Content::Packed(_) => return Err(dataset.bad(id.0, "is packed already".to_owned())),
            Content::Labeled(_) | Content::Group(_) => {
                let reason = "is an answer with a label, which a run packs itself: leave `data pack` out";
                return Err(dataset.bad(id.0, reason.to_owned()));
            }
            Content::Pair(_) => {
                let reason = "is a pair of answers, which a run packs itself: leave `data pack` out";
                return Err(dataset.bad(id.0, reason.to_owned()));
            }
        }
    }
    let rows = rows.concat();
    if rows != all.all_position_ids() {
        all.position_ids = Some(rows);
    }
    Ok(all.members())
}

/// The files of pictures and videos; of frames, those that the model is shown.
fn media(
    sources: &[MediaSource],
    base: &Path,
    processor: &Processor,
    into: &mut Vec<PackedMedia>,
) -> Result<(), DataError> {
    for source in sources {
        let index = into.len();
        let file = |frame, locator: &Locator, base: &Path| -> Result<_, DataError> {
            let bytes = locator.read(base)?.into_owned();
            Ok((member_name(index, frame, locator.name()), bytes.into()))
        };
        let packed = match source {
            MediaSource::Image(locator) => {
                PackedMedia { kind: PackedKind::Image, files: vec![file(None, locator, base)?] }
            }
            MediaSource::Audio(AudioSource { locator, segment }) => {
                let kind = PackedKind::Audio { segment: *segment };
                PackedMedia { kind, files: vec![file(None, locator, base)?] }
            }
            MediaSource::Context(text) => {
                let file = (member_name(index, None, "context.txt"), text.as_bytes().into());
                PackedMedia { kind: PackedKind::Context, files: vec![file] }
            }
            MediaSource::Video(video) => {
                let folder;
                let (frames, base) = match video.locators.as_slice() {
                    [Locator::File(name)] if base.join(name).is_dir() => {
                        folder = base.join(name);
                        (in_folder(&folder)?, folder.as_path())
                    }
                    [one] if is_clip(one) => {
                        let kind = PackedKind::Video { fps: video.fps };
                        into.push(PackedMedia { kind, files: vec![file(None, one, base)?] });
                        continue;
                    }
                    frames => (frames.to_vec(), base),
                };
                let taken = match processor.media_processor() {
                    Some(media) => media.sampling().indices(frames.len(), video.fps),
                    None => (0..frames.len()).collect(),
                };
                // Without a rate they are taken as they are.
                let files = taken.iter().enumerate().map(|(at, &frame)| file(Some(at), &frames[frame], base));
                PackedMedia { kind: PackedKind::Video { fps: None }, files: files.collect::<Result<_, _>>()? }
            }
        };
        into.push(packed);
    }
    Ok(())
}
