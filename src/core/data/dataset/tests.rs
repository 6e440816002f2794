//! Mixtures of files, positions in them, and what is wrong with a source.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::*;
use crate::config::{Format, Pack, Phase, Select};
use crate::data::digits::{Digits, MODEL, compose, write_model};
use crate::data::processor::ProcessorOptions;
use crate::data::tokenizer_file::read_json;
use serde_json::Value as Json;

fn data(files: &[(PathBuf, f64)]) -> Data {
    let train = files.iter().map(|(path, weight)| TrainFile { weight: *weight, ..TrainFile::new(path.as_path()) });
    Data { pack: Pack { max_tokens: 200, ..Default::default() }, ..Data::of_files(train.collect()) }
}

fn open(data: &Data, phase: Phase, model: &Path, seed: u64) -> Result<Dataset, DataError> {
    let config = read_json(&model.join("config.json"))?;
    Dataset::open(data, Processor::open(model, &config, &ProcessorOptions::new(data, phase))?, seed)
}

#[test]
fn a_position_is_always_the_same_sample_and_bad_lines_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (model, digits) = (folder.path().join("model"), folder.path().join("digits"));
    write_model(&model, &MODEL).unwrap();
    compose(&digits, &Digits { seed: 2, num_train: 6, num_held_out: 3 }).unwrap();
    let text = folder.path().join("text.jsonl");
    let good = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
    std::fs::write(&text, format!("{good}\nno json\n{good}\n")).unwrap();
    std::fs::write(digits.join("images/train/000/000004.png"), b"\x89PNG\r\n\x1a\nbroken").unwrap();

    let config = data(&[(digits.join("train.jsonl"), 3.0), (text.clone(), 1.0)]);
    let dataset = open(&config, Phase::Sft, &model, 5).unwrap();
    let again = open(&config, Phase::Sft, &model, 5).unwrap();
    assert_eq!(dataset.len(), 9);
    let mut bad = BTreeMap::new();
    let mut with_images = 0;
    for position in (0..200).rev() {
        let sample = dataset.sample(position);
        assert_eq!(sample, again.sample(position));
        match sample {
            Ok(sample) => {
                assert_eq!(sample.meta.id, SampleId(position));
                assert_eq!(sample.meta.items.len(), sample.media.len());
                with_images += sample.media.len();
            }
            Err(error) => *bad.entry((error.file.clone(), error.at.clone())).or_insert(0) += 1,
        }
    }
    assert!((100..160).contains(&with_images), "{with_images}");
    assert_eq!(
        bad.keys().cloned().collect::<Vec<_>>(),
        [(digits.join("train.jsonl"), "5".to_owned()), (text.clone(), "2".to_owned())]
    );
    assert_ne!(
        (0..20).map(|p| open(&config, Phase::Sft, &model, 6).unwrap().sample(p).ok()).collect::<Vec<_>>(),
        (0..20).map(|p| dataset.sample(p).ok()).collect::<Vec<_>>()
    );

    let config = Data { shuffle: false, ..data(&[(digits.join("held_out.jsonl"), 1.0)]) };
    let held_out = open(&config, Phase::Sft, &model, 0).unwrap();
    let (exchange, prompt) = (held_out.exchange(2).unwrap(), held_out.prompt(2).unwrap());
    assert!(Path::new(exchange.images[0].name()).exists() && exchange.answer.chars().all(|c| c.is_ascii_digit()));
    assert!(!exchange.question.is_empty());
    assert_eq!(prompt.meta.num_targets, 0);

    let config = Data { val_size: 6.0, ..data(&[(text, 1.0), (digits.join("held_out.jsonl"), 1.0)]) };
    assert!(open(&config, Phase::Sft, &model, 0).is_err(), "nothing is left of the first");
    let config = Data { val_size: 0.3, ..data(&[(digits.join("train.jsonl"), 1.0)]) };
    let (train, model_json) =
        (open(&config, Phase::Sft, &model, 1).unwrap(), read_json(&model.join("config.json")).unwrap());
    let processor = Processor::open(&model, &model_json, &ProcessorOptions::new(&config, Phase::Sft)).unwrap();
    let held = Dataset::open_held(&config, processor).unwrap();
    assert_eq!((train.len(), held.len()), (4, 2));
    let names = |dataset: &Dataset, count: u64| (0..count).map(|at| dataset.place_name(at)).collect::<BTreeSet<_>>();
    assert!(names(&train, 12).is_disjoint(&names(&held, 2)));
    assert_eq!(names(&train, 12).len(), 4);
}

#[test]
fn samples_beyond_a_limit_are_neither_trained_on_nor_held_out() {
    let folder = tempfile::tempdir().unwrap();
    let (model, text) = (folder.path().join("model"), folder.path().join("text.jsonl"));
    write_model(&model, &MODEL).unwrap();
    let line = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
    std::fs::write(&text, format!("{line}\n").repeat(40)).unwrap();
    let json = read_json(&model.join("config.json")).unwrap();
    let lines = |select: Select, seed: u64| {
        let mut config = Data { val_size: 0.3, ..data(&[(text.clone(), 1.0)]) };
        (config.train[0].max_samples, config.train[0].select) = (Some(10), select);
        let train = open(&config, Phase::Sft, &model, seed).unwrap();
        let processor = Processor::open(&model, &json, &ProcessorOptions::new(&config, Phase::Sft)).unwrap();
        let held = Dataset::open_held(&config, processor).unwrap();
        assert_eq!((train.len(), held.len()), (7, 3));
        let names =
            |dataset: &Dataset, count: u64| (0..count).map(|at| dataset.place_name(at)).collect::<BTreeSet<_>>();
        let (trained, held) = (names(&train, 21), names(&held, 3));
        assert!(trained.len() == 7 && trained.is_disjoint(&held));
        let all = trained.union(&held).map(|name| name.rsplit_once(':').unwrap().1.parse().unwrap());
        all.collect::<BTreeSet<u64>>()
    };
    assert_eq!(lines(Select::First, 1), (1..=10).collect::<BTreeSet<_>>());
    let random = lines(Select::Random, 1);
    assert!(random.iter().zip(0..).all(|(line, part)| (line - 1) / 4 == part), "{random:?}");
    assert_eq!(lines(Select::Random, 2), random, "the seed plays no part");
}

#[test]
fn sets_that_are_mixed_by_samples_are_read_once_per_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    write_model(&model, &MODEL).unwrap();
    let line = r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
    let [small, large] = [("small.jsonl", 3), ("large.jsonl", 17)].map(|(name, count)| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("{line}\n").repeat(count)).unwrap();
        path
    });
    let mut config = Data { mix: Mix::Samples, ..data(&[(small, 1.0), (large, 1.0)]) };
    let dataset = open(&config, Phase::Sft, &model, 1).unwrap();
    for epoch in 0..3 {
        let names: BTreeSet<String> = (0..20).map(|at| dataset.place_name(20 * epoch + at)).collect();
        assert_eq!(names.len(), 20, "epoch {epoch}");
    }
    // Each sample of the first set twice as often as one of the other: 6 of 23.
    config.train[0].weight = 2.0;
    let dataset = open(&config, Phase::Sft, &model, 1).unwrap();
    let count = (0..2300).filter(|&position| dataset.place_of(position).0 == 0).count();
    assert!((500..700).contains(&count), "{count}");
}

#[test]
fn wrong_sources_are_named() {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), &MODEL).unwrap();
    let error = |config: &Data| open(config, Phase::Sft, folder.path(), 0).err().unwrap().to_string();
    assert!(error(&data(&[])).contains("no data source"));
    assert!(error(&data(&[("gone.jsonl".into(), 1.0)])).contains("gone.jsonl"));
    assert!(error(&data(&[("a.jsonl".into(), 0.0)])).contains("weight 0"));
    let error = BadSample { file: "a.jsonl".into(), at: "3".into(), reason: "x".into(), too_long: false };
    assert_eq!(error.to_string(), "a.jsonl:3: x");
    assert_eq!(error.into_message(SampleId(1)).source, "a.jsonl:3");
}

#[test]
fn texts_are_learned_whole_and_end() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    write_model(&model, &MODEL).unwrap();
    std::fs::remove_file(model.join("chat_template.jinja")).unwrap();
    let path = folder.path().join("a.jsonl");
    std::fs::write(&path, "{\"text\": \"hello\"}\n").unwrap();
    let mut config = data(&[(path.clone(), 1.0)]);
    config.train[0].format = Format::Text;
    assert!(open(&config, Phase::Sft, &model, 0).err().unwrap().to_string().contains("data.template"));
    let sample = open(&config, Phase::Pretrain, &model, 0).unwrap().sample(0).unwrap();
    let eos = 256 + 2;
    assert_eq!(sample.input_ids, [104, 101, 108, 108, 111, eos]);
    assert_eq!(sample.targets, [101, 108, 108, 111, eos, -100]);
    config.train[0].format = Format::Messages;
    assert!(open(&config, Phase::Midtrain, &model, 0).err().unwrap().to_string().contains("data.template"));
}

#[test]
fn tokens_make_the_samples_of_their_texts() {
    let folder = tempfile::tempdir().unwrap();
    let (model, at) = (folder.path().join("model"), |name: &str| folder.path().join(name));
    write_model(&model, &MODEL).unwrap();
    std::fs::remove_file(model.join("chat_template.jinja")).unwrap();
    let texts: Vec<String> = (0..40).map(|number| "ab ".repeat(number % 7 + 1)).collect();
    std::fs::write(at("texts.txt"), texts.join("\n")).unwrap();
    let json = read_json(&model.join("config.json")).unwrap();
    let tokenizer = crate::data::Tokenizer::open(&model, &json, &Json::Null).unwrap();
    let eos = tokenizer.special().eos.unwrap();
    let documents: Vec<Vec<i64>> = texts
        .iter()
        .map(|text| tokenizer.encode(text).unwrap().iter().map(|token| token.id).chain([eos]).collect())
        .collect();
    write_tokens(&at("tokens"), &documents);
    let of = |name: &str, format| {
        let mut config = data(&[(at(name), 1.0)]);
        config.train[0].format = format;
        open(&config, Phase::Pretrain, &model, 3)
    };
    let (ours, theirs) = (of("tokens", Format::Auto).unwrap(), of("texts.txt", Format::Plain).unwrap());
    assert_eq!((ours.len(), theirs.len()), (40, 40));
    for position in 0..120 {
        assert_eq!(ours.sample(position).unwrap(), theirs.sample(position).unwrap(), "{position}");
    }
    write_tokens(&at("foreign"), &[vec![5, 9999], vec![6]]);
    let foreign = of("foreign", Format::Auto).unwrap();
    let bad: Vec<String> = (0..2).filter_map(|at| Some(foreign.sample(at).err()?.to_string())).collect();
    assert!(bad.len() == 1 && bad[0].contains("document 1: not a sample: has the token 9999"), "{bad:?}");
}

/// Documents of one sequence each, 32-bit, as Megatron keeps them.
fn write_tokens(prefix: &Path, documents: &[Vec<i64>]) {
    let name = |ending: &str| prefix.with_extension(ending);
    let ids = documents.iter().flatten().flat_map(|&id| i32::try_from(id).unwrap().to_le_bytes());
    std::fs::write(name("bin"), ids.collect::<Vec<u8>>()).unwrap();
    let count = documents.len() as u64;
    let mut index =
        [&b"MMIDIDX\0\0"[..], &1u64.to_le_bytes(), &[4], &count.to_le_bytes(), &(count + 1).to_le_bytes()].concat();
    documents.iter().for_each(|ids| index.extend((ids.len() as i32).to_le_bytes()));
    let mut place = 0i64;
    for ids in documents {
        index.extend(place.to_le_bytes());
        place += ids.len() as i64 * 4;
    }
    (0..=count).for_each(|boundary| index.extend(boundary.to_le_bytes()));
    std::fs::write(name("idx"), index).unwrap();
}
