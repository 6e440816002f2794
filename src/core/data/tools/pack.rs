//! Packs made ahead of time: every sample is measured, packs are planned over all of them, and each is written with its
//! tokens, targets, positions and pictures. Training on them decodes pixels and nothing else.
//!
//! Three stages, each of which may be killed and run again: measure (any number of processes), plan (a pure function of
//! the measures, so every process makes the same), write (any number of processes).

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value as Json, json};

use super::job::{Done, Job, Made, Share};
use super::measure::Measure;
use super::pack_stats::{Batched, PackStats};
use super::shard::{Member, member_name};
use crate::data::audio::AudioSource;
use crate::data::dataset::{Dataset, PACKED_ALREADY};
use crate::data::error::{BadSample, DataError};
use crate::data::limits::MAX_SAMPLE_BYTES;
use crate::data::locator::Locator;
use crate::data::media::{in_folder, is_clip};
use crate::data::packed::{PackedKind, PackedMedia, PackedSample};
use crate::data::processor::Processor;
use crate::data::source::Content;
use crate::data::source::MediaSource;
use crate::data::template::TOOLS_TEMPLATE;
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
    pub order: PackOrder,
    /// Packs of a shard.
    pub max_packs: u64,
    /// Bytes of a shard.
    pub max_bytes: u64,
    /// Samples of a batch of a trainer that pads, with which packs are compared.
    pub batch: u64,
}

/// Says which samples share a pack, and in which order packs come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PackOrder {
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

/// Says what a caller is told while it runs.
#[derive(Clone, Copy, Debug)]
pub enum PackProgress<'a> {
    /// The number of samples that will be measured.
    Measures(u64),
    Measured(Option<&'a BadSample>),
    /// The number of packs that will be written.
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
        dataset.expect_unpacked()?;
        let measure = Measure { spec: self.measured(), num_samples: self.num_samples };
        measure.begin(out)?;
        progress(PackProgress::Measures(measure.num_samples_of(share)));
        measure.run(out, dataset, share, jobs, |bad| progress(PackProgress::Measured(bad)))?;
        let missing = measure.num_missing(out)?;
        if missing > 0 {
            return Ok(Packed::Measured { missing });
        }
        let (packs, mut stats, bad) = self.plan(&measure, out, dataset)?;
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
        let work = |index: u64| made(dataset, &packs[index as usize], MAX_SAMPLE_BYTES);
        let done = job.write(out, share, jobs, work, |_, bad| progress(PackProgress::Written(bad)))?;
        if !done.left_out.is_empty() {
            let left_out = done.left_out.iter().map(|&id| SampleId(id)).collect();
            stats = self.stats_without(&left_out, &packs, &measure, out)?;
        }
        if share == Share::WHOLE {
            job.merge(out)?;
        }
        Ok(Packed::Written(done, stats))
    }

    /// Works like [`PackJob::plan`] for the numbers, where these samples turned out to be bad as packs were written. They are not
    /// among `bad`: whoever writes lists them.
    fn stats_without(
        &self,
        left_out: &BTreeSet<SampleId>,
        packs: &[Vec<SampleId>],
        measure: &Measure,
        out: &Path,
    ) -> Result<PackStats, DataError> {
        let (mut stats, mut batched) = (PackStats::default(), Batched::default());
        for sample in measure.samples(out) {
            match sample? {
                Ok(sample) if left_out.contains(&sample.id) => {}
                Ok(sample) => match self.limits.check(sample.id, SampleSize::of(&sample)) {
                    Ok(()) => stats.add(SampleSize::of(&sample), &mut batched, self.batch),
                    Err(_) => stats.bad += 1,
                },
                Err(bad) if bad.too_long => stats.too_long += 1,
                Err(_) => stats.bad += 1,
            }
        }
        let is_left = |pack: &&Vec<SampleId>| pack.iter().any(|id| !left_out.contains(id));
        Ok(stats.of_packs(packs.iter().filter(is_left).count(), &batched, (self.batch, self.limits.max_tokens)))
    }

    fn measured(&self) -> Json {
        json!({ "data": self.spec, "samples": self.num_samples })
    }

    fn planned(&self) -> Json {
        let PackLimits { max_tokens, max_samples, max_images, max_visual_tokens } = self.limits;
        let order = match self.order {
            PackOrder::Stream { look_ahead } => json!({ "stream": look_ahead }),
            PackOrder::Offline => json!("offline"),
        };
        json!({ "data": self.spec, "order": order, "limits": [max_tokens, max_samples, max_images, max_visual_tokens] })
    }

    /// Positions of each pack's samples, and the samples that are left out.
    fn plan(&self, measure: &Measure, out: &Path, dataset: &Dataset) -> Result<Plan, DataError> {
        let (mut packs, mut stats, mut bad) = (Vec::new(), PackStats::default(), Vec::new());
        let (mut good, mut batched) = (Vec::new(), Batched::default());
        let mut packer = match self.order {
            PackOrder::Stream { look_ahead } => Some(StreamPacker::new(self.limits, look_ahead)),
            PackOrder::Offline => None,
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
            stats.add(size, &mut batched, self.batch);
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
        let stats = stats.of_packs(packs.len(), &batched, (self.batch, self.limits.max_tokens));
        Ok((packs, stats, bad))
    }
}

/// Checksums of the files of a model's folder that samples depend on: tokenizer, chat template, processors, ends of answers.
///
/// # Errors
/// The folder or a file cannot be read.
pub fn model_spec(folder: &Path) -> Result<Json, DataError> {
    let mut files = serde_json::Map::new();
    let mut names: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| DataError::read(folder, error))? {
        let name = entry.map_err(|error| DataError::read(folder, error))?.file_name().to_string_lossy().into_owned();
        let begins = [
            "tokenizer",
            "text_tokenizer",
            "spiece.model",
            "added_tokens",
            "qwen.tiktoken",
            "tiktoken",
            "chat_template",
            "preprocessor",
            "processor",
            "video_",
            "generation_config",
        ];
        if begins.iter().any(|start| name.starts_with(start)) {
            names.push(name);
        }
    }
    names.extend(folder.join(TOOLS_TEMPLATE).is_file().then(|| TOOLS_TEMPLATE.to_owned()));
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

/// Returns the members of a pack, without the samples that cannot be read any more, and those whose files take it beyond `max_bytes`.
fn made(dataset: &Dataset, pack: &[SampleId], max_bytes: u64) -> Made {
    let (mut pack, mut made) = (pack.to_vec(), Made::default());
    while !pack.is_empty() {
        match members(dataset, &pack, max_bytes) {
            Ok(members) => return Made { members: Some(members), ..made },
            Err((id, sample)) => {
                pack.retain(|other| *other != id);
                made.bad.push(sample);
                made.left_out.push(id.0);
            }
        }
    }
    made
}

/// Returns the members of a pack, of at most `max_bytes`.
fn members(dataset: &Dataset, pack: &[SampleId], max_bytes: u64) -> Result<Vec<Member>, (SampleId, BadSample)> {
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
    let (mut rows, mut largest) = ([const { Vec::new() }; 3], (0_usize, pack[0]));
    for id in pack {
        let bad = |reason: &str| (*id, dataset.bad(id.0, reason.to_owned()));
        let wrong = |error: DataError| bad(&error.to_string());
        let no_tokens = || bad("is not a sample of tokens, which packs are made of");
        let (content, base) = dataset.content(id.0).map_err(|bad| (*id, bad))?;
        let processor = dataset.processor().ok_or_else(no_tokens)?;
        let sample = processor.sample_of(*id, &content, base).map_err(wrong)?;
        let narrow = |ids: &[i64]| ids.iter().map(|&id| i32::try_from(id)).collect::<Result<Vec<i32>, _>>();
        let (Ok(input_ids), Ok(targets)) = (narrow(&sample.input_ids), narrow(&sample.targets)) else {
            return Err(bad("has a token id above 2 147 483 647"));
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
        let first = all.media.len();
        match content {
            Content::Messages(conversation) => {
                let sources = &conversation.media[..sample.num_sources];
                media(sources, base, processor, &mut all.media).map_err(wrong)?;
            }
            Content::Text(_) | Content::Tokens(_) | Content::Captioned(_) | Content::Step(_) => {}
            Content::Packed(_) => return Err(bad(PACKED_ALREADY)),
            Content::Labeled(_) | Content::Group(_) => {
                return Err(bad("is an answer with a label, which a run packs itself: leave `data pack` out"));
            }
            Content::Pair(_) => {
                return Err(bad("is a pair of answers, which a run packs itself: leave `data pack` out"));
            }
        }
        let files = all.media[first..].iter().flat_map(|media| &media.files);
        largest = largest.max((files.map(|(_, bytes)| bytes.len()).sum(), *id));
    }
    let rows = rows.concat();
    if rows != all.all_position_ids() {
        all.position_ids = Some(rows);
    }
    let members = all.members();
    let num_bytes: u64 = members.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    if num_bytes > max_bytes {
        let (own, id) = largest;
        let reason = format!(
            "its files have {own} of the {num_bytes} bytes of its pack, more than the {max_bytes} that are read of \
             one: make them smaller, or lower data.pack.max_tokens"
        );
        return Err((id, dataset.bad(id.0, reason)));
    }
    Ok(members)
}

/// Adds the files of pictures and videos to `into`; of frames, those that the model is shown.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Data, Phase};
    use crate::data::digits::{Digits, MODEL, compose, write_model};
    use crate::data::processor::ProcessorOptions;
    use crate::data::tokenizer_file::read_json;

    /// A reader of shards would refuse the pack with all of its samples.
    #[test]
    fn samples_that_make_a_pack_too_large_to_be_read_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        compose(&dir.path().join("data"), &Digits { seed: 4, num_train: 3, num_held_out: 1 }).unwrap();
        let model = dir.path().join("model");
        write_model(&model, &MODEL).unwrap();
        let data = json!({ "train": [{ "path": dir.path().join("data/train.jsonl") }], "pack": { "max_tokens": 900 } });
        let data: Data = serde_json::from_value(data).unwrap();
        let config = read_json(&model.join("config.json")).unwrap();
        let processor = Processor::open(&model, &config, &ProcessorOptions::new(&data, Phase::Sft)).unwrap();
        let dataset = Dataset::open(&data, processor, 1).unwrap();
        let pack = [0, 1, 2].map(SampleId);
        let num_bytes: u64 =
            made(&dataset, &pack, u64::MAX).members.unwrap().iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let less = made(&dataset, &pack, num_bytes - 1);
        assert_eq!((less.members.is_some(), less.left_out.len(), less.bad.len()), (true, 1, 1));
        let reason = format!("bytes of its pack, more than the {} that are read of one", num_bytes - 1);
        assert!(less.bad[0].reason.contains(&reason), "{}", less.bad[0]);
        let none = made(&dataset, &pack, 1);
        assert_eq!((none.members.is_some(), none.left_out.len()), (false, 3));
    }
}
