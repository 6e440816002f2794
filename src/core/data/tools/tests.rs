//! The tools together, on the quick start's pictures.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value as Json;

use super::shard::Member;
use super::*;
use crate::config::{Data, Format, Phase, Template, TrainFile};
use crate::data::digits::{Digits, MODEL, compose, write_model};
use crate::data::source::Content;
use crate::data::tokenizer_file::read_json;
use crate::data::{
    Conversation, Dataset, IGNORE_INDEX, Locator, MediaSource, PackedSample, Processor, ProcessorOptions, Sample,
};
use crate::message::SampleId;
use crate::schedule::{PackLimits, StreamPacker};

struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    /// Makes twenty pictures with a question; the fourth is no picture, the seventh line no JSON.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        compose(&dir.path().join("data"), &Digits { seed: 4, num_train: 20, num_held_out: 1 }).unwrap();
        write_model(&dir.path().join("model"), &MODEL).unwrap();
        let fixture = Self { dir };
        fs::write(fixture.path("data/images/train/000/000003.png"), b"no picture").unwrap();
        let lines = fs::read_to_string(fixture.path("data/train.jsonl")).unwrap();
        let mut lines: Vec<&str> = lines.lines().collect();
        lines[6] = "{\"messages\": [";
        fs::write(fixture.path("data/train.jsonl"), lines.join("\n")).unwrap();
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn train(&self) -> TrainFile {
        TrainFile::new(self.path("data/train.jsonl"))
    }

    fn inputs(&self) -> Inputs {
        Inputs::open(vec![self.train()]).unwrap()
    }

    fn dataset(&self, max_tokens: usize) -> Dataset {
        self.dataset_of(&self.train(), max_tokens, true)
    }

    fn dataset_of(&self, train: &TrainFile, max_tokens: usize, shuffle: bool) -> Dataset {
        self.dataset_with(train, &serde_json::json!({ "max_tokens": max_tokens }), shuffle)
    }

    fn dataset_with(&self, train: &TrainFile, pack: &Json, shuffle: bool) -> Dataset {
        let data: Json = serde_json::json!({ "train": [train], "pack": pack, "shuffle": shuffle });
        let data: Data = serde_json::from_value(data).unwrap();
        let options = ProcessorOptions { template: Template::FromModel, ..ProcessorOptions::new(&data, Phase::Sft) };
        let model = self.path("model");
        let config = read_json(&model.join("config.json")).unwrap();
        Dataset::open(&data, Processor::open(&model, &config, &options).unwrap(), 11).unwrap()
    }
}

/// Returns the samples of a folder of shards, in order: key to members.
fn read_shards(out: &Path) -> BTreeMap<String, Vec<Member>> {
    let mut samples: BTreeMap<String, Vec<Member>> = BTreeMap::new();
    let mut shards: Vec<PathBuf> = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path()).collect();
    shards.retain(|path| path.extension().is_some_and(|extension| extension == "tar"));
    shards.sort();
    for shard in shards {
        for entry in tar::Archive::new(fs::File::open(shard).unwrap()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let (key, member) = name.split_once('.').unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            samples.entry(key.to_owned()).or_default().push((member.to_owned(), bytes.into()));
        }
    }
    samples
}

/// A line may be a whole file of many gigabytes.
#[test]
fn of_long_lines_the_beginning_alone_is_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let turns = r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#;
    let record = |key: &str, value: &str| format!("{{\"messages\": {turns}, \"{key}\": \"{value}\"}}\n");
    fs::write(&path, record("short", "x") + &record("long", &"x".repeat(64 << 20))).unwrap();
    let files = describe(&Inputs::open(vec![TrainFile::new(path)]).unwrap());
    let names: Vec<&str> = files[0].fields.iter().map(|field| field.name.as_str()).collect();
    assert_eq!((files[0].samples, names), (2, vec!["messages", "short"]));
}

#[test]
fn converted_conversations_come_back_with_their_bytes() {
    let fixture = Fixture::new();
    let (inputs, out) = (fixture.inputs(), fixture.path("shards"));
    let how = Convert { max_samples: 8, ..Convert::default() };
    let mut seen = 0;
    let done = convert(&inputs, &out, &how, Share::WHOLE, 2, |_, _| seen += 1).unwrap();
    assert_eq!((done.samples, done.shards, seen), (18, 3, 20));
    let reasons: Vec<String> = done.bad.iter().map(ToString::to_string).collect();
    assert!(reasons[0].contains("train.jsonl:4") && reasons[0].contains("000003.png"), "{reasons:?}");
    assert!(reasons[1].contains("train.jsonl:7") && reasons.len() == 2, "{reasons:?}");

    let samples = read_shards(&out);
    assert_eq!(samples.len(), 18);
    let lines = fs::read_to_string(fixture.path("data/train.jsonl")).unwrap();
    for (index, line) in lines.lines().enumerate().filter(|(index, _)| ![3, 6].contains(index)) {
        let members = &samples[&format!("{index:09}")];
        let mut record: Json = serde_json::from_slice(&members[0].1).unwrap();
        record["messages"] = record["texts"].take();
        let (back, original) = (record.to_string(), Conversation::parse(line).unwrap());
        let back = Conversation::parse(&back).unwrap();
        assert_eq!(back.turns, original.turns);
        let MediaSource::Image(image) = &original.media[0] else { panic!("a picture") };
        assert_eq!(back.media[0], MediaSource::Image(Locator::File(members[1].0.clone())));
        assert_eq!(members[1].1[..], image.read(&fixture.path("data")).unwrap()[..]);
    }
    // Through the reader of a run.
    let back = Inputs::open(vec![TrainFile::new(out.as_path())]).unwrap();
    assert_eq!(back.len(), 18);
    let good = (0..20).filter(|index| ![3, 6].contains(index));
    for (index, original) in good.enumerate() {
        let (Content::Messages(ours), base) = back.read(index as u64).unwrap() else { panic!("a conversation") };
        let (Content::Messages(theirs), old_base) = inputs.read(original).unwrap() else { panic!("a conversation") };
        assert_eq!(ours.turns, theirs.turns);
        let bytes = |media: &[MediaSource], base: &Path| -> Vec<Vec<u8>> {
            let images = media.iter().map(|source| match source {
                MediaSource::Image(image) => image.read(base).unwrap().into_owned(),
                other => panic!("{other:?}"),
            });
            images.collect()
        };
        assert_eq!(bytes(&ours.media, base), bytes(&theirs.media, old_base));
    }
    let info = fs::read_to_string(out.join(".nv-meta/.info.json")).unwrap();
    let info: Json = serde_json::from_str(&info).unwrap();
    assert_eq!(
        info["shard_counts"],
        serde_json::json!({ "shard-000000.tar": 6, "shard-000001.tar": 8, "shard-000002.tar": 4 })
    );
    // Again: everything is kept.
    let again = convert(&inputs, &out, &how, Share::WHOLE, 1, |_, _| ()).unwrap();
    assert_eq!(again, Done { kept: 20, ..done });
    // A file that changed is another job, also where it has as many bytes and samples.
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    let file = fs::File::options().write(true).open(fixture.path("data/train.jsonl")).unwrap();
    file.set_modified(time).unwrap();
    assert!(convert(&fixture.inputs(), &out, &how, Share::WHOLE, 1, |_, _| ()).is_err());
}

fn append(all: &mut Sample, next: &Sample) {
    let (old, new) = (all.input_ids.len(), next.input_ids.len());
    let rows = |sample: &Sample, len: usize| sample.position_ids.chunks(len).map(<[f32]>::to_vec).collect::<Vec<_>>();
    let (first, second) = (rows(all, old), rows(next, new));
    all.position_ids = first.into_iter().zip(second).flat_map(|(a, b)| [a, b].concat()).collect();
    all.input_ids.extend(&next.input_ids);
    all.targets.extend(&next.targets);
    all.media.extend(next.media.iter().cloned());
}

#[test]
fn packs_made_ahead_equal_those_of_a_run() {
    let fixture = Fixture::new();
    let dataset = fixture.dataset(120);
    let (limits, look_ahead) = (PackLimits::tokens(120), 6);
    let job = |order| PackJob {
        spec: "a".into(),
        num_samples: 20,
        limits,
        order,
        max_packs: 3,
        max_bytes: 1 << 20,
        batch: 4,
    };
    let stream = job(PackOrder::Stream { look_ahead });
    let out = fixture.path("packs");
    // Measured by two, written by one.
    for index in [1, 0] {
        let share = Share { index, num: 2 };
        stream.run(&dataset, &out, share, 1, |_| ()).unwrap();
    }
    let Packed::Written(done, stats) = stream.run(&dataset, &out, Share::WHOLE, 2, |_| ()).unwrap() else {
        panic!("everything is measured")
    };
    assert_eq!((stats.samples, stats.bad, done.samples), (18, 2, stats.packs));
    assert_eq!(fs::read_to_string(out.join(BAD)).unwrap().lines().count(), 2);
    assert!(stats.fill() > 0.5 && stats.fill() <= 1.0, "{stats:?}");

    let mut packer = StreamPacker::new(limits, look_ahead);
    let mut expected = Vec::new();
    for position in 0..20 {
        let Ok(sample) = dataset.sample(position) else { continue };
        packer.push(sample.meta).unwrap();
        expected.extend(packer.pop());
    }
    packer.finish();
    expected.extend(std::iter::from_fn(|| packer.pop()));
    let packs = read_shards(&out);
    assert_eq!(packs.len(), expected.len());
    for ((key, members), expected) in packs.iter().zip(&expected) {
        let pack = PackedSample::from_members(members).unwrap();
        assert_eq!(pack.ids, expected.iter().map(|sample| sample.id.0).collect::<Vec<_>>(), "{key}");
        let mut samples = expected.iter().map(|sample| dataset.sample(sample.id.0).unwrap());
        let mut all = samples.next().unwrap();
        samples.for_each(|next| append(&mut all, &next));
        let sample = dataset.processor().unwrap().packed_sample(SampleId(9), &pack).unwrap();
        assert_eq!((&sample.input_ids, &sample.targets), (&all.input_ids, &all.targets));
        assert_eq!((&sample.position_ids, &sample.media), (&all.position_ids, &all.media));
        assert_eq!(sample.meta.document_lens(), pack.lens);
        let num_targets = all.targets.iter().filter(|&&target| target != IGNORE_INDEX).count();
        assert_eq!((sample.meta.id, sample.meta.num_targets as usize), (SampleId(9), num_targets));
    }

    // A run reads them as they are, in their order.
    let run =
        fixture.dataset_of(&TrainFile { format: Format::Packed, ..TrainFile::new(fixture.path("packs")) }, 120, false);
    assert_eq!(run.len(), packs.len());
    for (position, members) in packs.values().enumerate() {
        let pack = PackedSample::from_members(members).unwrap();
        let id = SampleId(position as u64);
        assert_eq!(
            run.sample(position as u64).unwrap(),
            dataset.processor().unwrap().packed_sample(id, &pack).unwrap()
        );
    }

    let out = fixture.path("offline");
    let Packed::Written(_, offline) = job(PackOrder::Offline).run(&dataset, &out, Share::WHOLE, 1, |_| ()).unwrap()
    else {
        panic!("everything is measured")
    };
    assert_eq!(offline.samples, 18);
    // What rows of one sample each would take, by hand.
    let sizes: Vec<u64> = (0..20).filter_map(|at| Some(u64::from(dataset.sample(at).ok()?.meta.num_tokens))).collect();
    let longest = *sizes.iter().max().unwrap();
    let batched: u64 = sizes.chunks(4).map(|rows| rows.len() as u64 * rows.iter().max().unwrap()).sum();
    assert_eq!((offline.longest, offline.batched, offline.tokens), (longest, batched, sizes.iter().sum::<u64>()));
    let tokens = offline.tokens as f64;
    let padded = [18.0 / offline.packs as f64, (18 * longest) as f64 / tokens, batched as f64 / tokens];
    assert_eq!(offline.compression(), padded);
    assert_eq!((offline.batched, stats.longest), (stats.batched, longest), "the order of packs is no matter");
    let mut ids: Vec<u64> =
        read_shards(&out).values().flat_map(|members| PackedSample::from_members(members).unwrap().ids).collect();
    ids.sort_unstable();
    let mut good: Vec<u64> = expected.iter().flatten().map(|sample| sample.id.0).collect();
    good.sort_unstable();
    assert_eq!(ids, good, "nothing is lost and nothing doubled");
    // Another length of packs is refused, in the run and in the folder.
    let short = fixture.dataset(40);
    let members = packs.values().max_by_key(|members| members[1].1.len()).unwrap();
    let error = short.processor().unwrap().packed_sample(SampleId(0), &PackedSample::from_members(members).unwrap());
    assert!(error.unwrap_err().to_string().contains("pack.max_tokens = 40"));
    let other = PackJob { spec: "b".into(), ..stream };
    assert!(other.run(&dataset, &out, Share::WHOLE, 1, |_| ()).unwrap_err().to_string().contains("other data"));
}

#[test]
fn a_video_is_packed_with_the_frames_that_are_shown() {
    let fixture = Fixture::new();
    let clip = fixture.path("data/clip");
    fs::create_dir(&clip).unwrap();
    for index in 0..9u8 {
        image::RgbImage::from_pixel(16, 16, image::Rgb([index * 25; 3]))
            .save(clip.join(format!("{index}.png")))
            .unwrap();
    }
    let line = r#"{"messages":[{"role":"user","content":"<video>a<image>"},{"role":"assistant","content":"b"}],
        "videos":[{"video":"clip","fps":4}],"images":["clip/8.png"]}"#;
    fs::write(fixture.path("data/train.jsonl"), line.replace('\n', " ")).unwrap();
    let dataset = fixture.dataset(200);
    let job = PackJob {
        spec: Json::Null,
        num_samples: 1,
        limits: PackLimits::tokens(200),
        order: PackOrder::Stream { look_ahead: 1 },
        max_packs: 1,
        max_bytes: 1 << 20,
        batch: 1,
    };
    let out = fixture.path("packs");
    job.run(&dataset, &out, Share::WHOLE, 1, |_| ()).unwrap();
    let packs = read_shards(&out);
    let pack = PackedSample::from_members(packs.values().next().unwrap()).unwrap();
    assert!(pack.media[0].files.len() < 9, "{:?}", pack.media[0].files.len());
    let (ours, online) =
        (dataset.processor().unwrap().packed_sample(SampleId(0), &pack).unwrap(), dataset.sample(0).unwrap());
    assert_eq!(ours, online);
}

/// The sample is cut before its second picture.
#[test]
fn a_truncated_sample_is_packed_and_counted_as_a_run_has_it() {
    let fixture = Fixture::new();
    let picture = "images/train/000/000000.png";
    let line = format!(
        r#"{{"messages":[{{"role":"user","content":"<image>a"}},{{"role":"assistant","content":"b"}},{{"role":"user","content":"<image>c"}},
        {{"role":"assistant","content":"d"}}],"images":["{picture}","{picture}"]}}"#
    );
    fs::write(fixture.path("data/train.jsonl"), line.replace('\n', " ")).unwrap();
    let uncut = fixture.dataset(500);
    let (whole, image) = (uncut.sample(0).unwrap(), uncut.processor().unwrap().tokenizer().special().image.unwrap());
    let mut placeholders = (0..whole.input_ids.len()).filter(|&at| whole.input_ids[at] == image);
    let second = placeholders.nth(whole.media[0].num_features).unwrap();
    let pack = serde_json::json!({ "max_tokens": second + 1, "too_long": "truncate" });
    let dataset = fixture.dataset_with(&fixture.train(), &pack, true);
    let online = dataset.sample(0).unwrap();
    assert_eq!((online.meta.num_tokens as usize, online.media.len(), online.num_sources), (second, 1, 1));

    let job = PackJob {
        spec: Json::Null,
        num_samples: 1,
        limits: PackLimits::tokens(second + 1),
        order: PackOrder::Stream { look_ahead: 1 },
        max_packs: 1,
        max_bytes: 1 << 20,
        batch: 1,
    };
    let out = fixture.path("packs");
    job.run(&dataset, &out, Share::WHOLE, 1, |_| ()).unwrap();
    let pack = PackedSample::from_members(read_shards(&out).values().next().unwrap()).unwrap();
    assert_eq!(pack.media.len(), 1);
    assert_eq!(dataset.processor().unwrap().packed_sample(SampleId(0), &pack).unwrap(), online);

    let stats = stats(&fixture.inputs(), Some(dataset.maker()), 1, |_, _| ());
    let sum = |wanted| stats.histograms.iter().find(|(name, _)| *name == wanted).unwrap().1.sum() as usize;
    assert_eq!((stats.bad.len(), sum("tokens"), sum("visual tokens")), (0, second, whole.media[0].num_features));
    let shown = show(&fixture.inputs(), 0, Some(dataset.maker())).unwrap();
    assert_eq!(shown.num_tokens, Some(second as u32));
}

#[test]
fn packs_depend_on_the_files_of_every_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let names = [
        "added_tokens.json",
        "additional_chat_templates/tool_use.jinja",
        "generation_config.json",
        "spiece.model",
        "text_tokenizer.json",
        "tiktoken.model",
        "tokenizer.json",
    ];
    fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
    names.iter().chain(&["model.safetensors"]).for_each(|name| fs::write(folder.path().join(name), name).unwrap());
    let spec = model_spec(folder.path()).unwrap();
    assert_eq!(spec.as_object().unwrap().keys().collect::<Vec<_>>(), names);
}

#[test]
fn captioned_pictures_are_not_taken_for_packs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("captions.jsonl");
    fs::write(&path, "{\"image\": \"a.png\", \"caption\": \"a cat\"}\n").unwrap();
    let (inputs, out) = (Inputs::open(vec![TrainFile::new(path)]).unwrap(), folder.path().join("shards"));
    let error = convert(&inputs, &out, &Convert::default(), Share::WHOLE, 1, |_, _| ()).unwrap_err().to_string();
    assert!(error.contains("captions.jsonl") && error.contains("pictures or clips with captions"), "{error}");
    assert!(!out.exists());
}

#[test]
fn calls_of_functions_are_shown_with_what_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("calls.jsonl");
    let call = r#"[{"function":{"name":"f"}}]"#;
    let turns = format!(
        r#"{{"role":"user","content":"a"}},{{"role":"assistant","content":null,"tool_calls":{call}}},{{"role":"assistant","content":"b","tool_calls":{call}}}"#
    );
    fs::write(&path, format!("{{\"messages\":[{turns}],\"tools\":[{{\"name\":\"f\"}}]}}\n")).unwrap();
    let shown = show(&Inputs::open(vec![TrainFile::new(path)]).unwrap(), 0, None).unwrap();
    assert!(shown.turns[0].0 == "tools" && shown.turns[0].1.contains(r#""name":"f""#), "{:?}", shown.turns[0]);
    let said: Vec<&str> = shown.turns[1..].iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(said, ["a", call, &format!("b {call}")]);
}

#[test]
fn everything_that_cannot_be_used_is_found() {
    let fixture = Fixture::new();
    let inputs = fixture.inputs();
    for with_model in [false, true] {
        let dataset = fixture.dataset(120);
        let processor = with_model.then(|| dataset.maker());
        let mut bad = Vec::new();
        let all = verify(&inputs, processor, 2, |index, sample| {
            bad.extend(sample.map(|sample| (index, sample.at)));
            Ok::<(), ()>(())
        });
        assert_eq!((all, bad), (Ok(()), vec![(3, "4".to_owned()), (6, "7".to_owned())]));
    }
    // What is too long is told apart: a run skips it without calling it bad.
    let (dataset, mut long) = (fixture.dataset(5), 0);
    let all = verify(&inputs, Some(dataset.maker()), 1, |_, sample| {
        long += usize::from(sample.is_some_and(|sample| sample.too_long));
        Ok::<(), ()>(())
    });
    assert_eq!((all, long), (Ok(()), 18));
}

/// The texts are cut as a run cuts them.
#[test]
fn texts_are_cut_where_lengths_are_asked_for() {
    let fixture = Fixture::new();
    let path = fixture.path("text.jsonl");
    fs::write(&path, serde_json::json!({ "text": "a b c d ".repeat(50) }).to_string()).unwrap();
    let files = vec![TrainFile::new(path)];
    assert_eq!(Inputs::open(files.clone()).unwrap().len(), 1);
    let dataset = fixture.dataset(20);
    let maker = dataset.maker();
    let inputs = Inputs::open_cut(files, 20, &|text: &str| maker.num_tokens(text)).unwrap();
    let counted = stats(&inputs, Some(maker), 1, |_, _| ());
    assert_eq!((counted.bad.len(), counted.too_long), (0, 0));
    assert!(inputs.len() > 10, "{}", inputs.len());
}

#[test]
fn a_picture_of_a_folder_is_shown_by_its_path() {
    let dir = tempfile::tempdir().unwrap();
    image::RgbImage::new(4, 4).save(dir.path().join("a b.png")).unwrap();
    fs::write(dir.path().join("a b.txt"), "a square").unwrap();
    let inputs = Inputs::open(vec![TrainFile::new(dir.path())]).unwrap();
    assert_eq!(show(&inputs, 0, None).unwrap().place, dir.path().join("a b.png").display().to_string());
}
