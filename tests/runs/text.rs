//! Runs of a language model that is fed by a text tower.

use crate::fixture::{self, loss_bits};
use crate::resume::{hashes, run_in};
use loongforge::compose::Composition;
use loongforge::core::config;
use loongforge::core::data::digits::write_model;
use loongforge::core::data::{Conversation, MediaSource, PackedKind, PackedMedia, PackedSample, ProcessorOptions};
use loongforge::core::message::{SampleId, Tower};
use loongforge::core::schedule::StepSummary;
use loongforge::model::ModelFolder;
use loongforge::preflight::Asked;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Words that the tower's tokenizer knows; more than bfloat16 could count.
const NUM_WORDS: usize = 400;

/// The model's tokenizer and template with a token for contexts, a tokenizer of words for the tower, and samples with two
/// contexts of unequal length, one, or none. The answer is in the contexts alone.
struct Texts {
    dir: TempDir,
}

impl Texts {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        write_model(&at("model"), &fixture::SIZE).unwrap();
        let path = at("model/tokenizer.json");
        let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let added = tokenizer["added_tokens"].as_array_mut().unwrap();
        let mut token = added.last().unwrap().clone();
        let id = token["id"].as_u64().unwrap() + 1;
        (token["content"], token["id"]) = ("<|context_pad|>".into(), id.into());
        added.push(token);
        fs::write(path, tokenizer.to_string()).unwrap();
        fs::create_dir(at("words")).unwrap();
        fs::write(at("words/tokenizer.json"), words().to_string()).unwrap();
        let lines: Vec<String> = (0..64).map(|index| sample(index).to_string()).collect();
        fs::write(at("train.jsonl"), lines.join("\n")).unwrap();
        fs::write(
            at("run.yaml"),
            RUN.replace("ID", &id.to_string()).replace("ROOT", &dir.path().display().to_string()),
        )
        .unwrap();
        Self { dir }
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs with checkpoints in the folder `to`, from the fourth step of `from`.
    fn run(&self, to: &str, own: &[&str], from: Option<&str>) -> Vec<StepSummary> {
        run_in(self.dir.path(), to, own, from)
    }
}

const RUN: &str = "
defaults: [{ models/llama3@model.foundation: llama3_8b }, _self_]
run: { name: text, dir: ROOT/run, seed: 5, deterministic: true }
model:
  tokenizer: ROOT/model
  weights: random
  config: { text_token_id: ID }
  text: { tokenizer: ROOT/words, max_tokens: 9 }
  text_encoder: { config: { model_type: umt5, vocab_size: 408, d_model: 32, d_kv: 8, d_ff: 48, num_layers: 2, num_heads: 4 } }
  foundation: { config: { vocab_size: 272, hidden_size: 48, intermediate_size: 64, num_hidden_layers: 2,
    num_attention_heads: 2, num_key_value_heads: 1, rope_theta: 100.0, tie_word_embeddings: true, bos_token_id: 256,
    eos_token_id: 258 } }
pools: { encoder: { threads: 1 }, foundation: { threads: 1 } }
data: { train: [{ path: ROOT/train.jsonl }], pack: { max_tokens: 128 } }
train: { steps: 8, global_batch_size: 8, lr: 4e-3, warmup_steps: 2, clip_grad: 0 }
checkpoint: { every_steps: 4 }
log: { tensorboard: false }
";

/// Returns a tokenizer that puts `</s>` behind the words of a text, as T5's does.
pub fn words() -> Value {
    let mut vocabulary = json!({"<unk>": 0, "</s>": 1});
    (0..NUM_WORDS).for_each(|number| vocabulary[format!("w{number}")] = (number + 2).into());
    let end = json!({"SpecialToken": {"id": "</s>", "type_id": 0}});
    let of = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
        "added_tokens": [{"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {"type": "TemplateProcessing", "single": [of("A"), end], "pair": [of("A"), end, of("B"), end],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    })
}

fn sample(index: usize) -> Value {
    let text = |number: usize| {
        (0..number % 5 + 1).map(|at| format!("w{} ", (number * 97 + at) % NUM_WORDS)).collect::<String>()
    };
    let chat = |question: &str, answer: String, contexts: Vec<String>| {
        json!({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
            "contexts": contexts})
    };
    let letter = |number: usize| char::from(b'a' + (number % 8) as u8);
    match index % 4 {
        0 => chat("Say.", "abc".to_owned(), Vec::new()),
        1 => chat(
            "<context>then<context>?",
            format!("{}{}", letter(index), letter(index + 3)),
            vec![text(index), text(index + 3)],
        ),
        _ => chat("<context>?", letter(index).to_string(), vec![text(index)]),
    }
}

const FROZEN: [&str; 2] = ["model.text_encoder.freeze=true", "model.text_projector.freeze=true"];
const DECODER: [&str; 4] = [
    "model.text_encoder.config={model_type: qwen2, vocab_size: 408, hidden_size: 32, intermediate_size: 48, \
     num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1}",
    "model.text.layers=[1, -1]",
    "model.text.template=w1 w2 {} w3",
    "model.text.drop_tokens=2",
];
const CLIP: [&str; 2] = [
    "model.text_encoder.config={model_type: clip_text_model, vocab_size: 408, hidden_size: 32, intermediate_size: 48, \
     num_hidden_layers: 2, num_attention_heads: 4, max_position_embeddings: 9}",
    "model.text.layers=[-2]",
];
const OWN_POOL: [&str; 2] = ["pools.text.replicas=2", "pools.text.threads=1"];

/// T5 is trained, frozen and kept, and a decoder's states are taken behind a template: a pool of its own, any number of actors and a
/// resumed run have the losses of one process.
#[test]
fn a_text_tower_is_bit_equal_in_any_layout() {
    let texts = Texts::new();
    for (name, own) in [("trained", &[][..]), ("frozen", &FROZEN), ("decoder", &DECODER)] {
        let one = texts.run(name, &[own, &["pools.placement=colocated"]].concat(), None);
        assert!(one[7].loss < 0.8 * one[0].loss, "{name}: {one:?}");
        let weights = |name: &str| hashes(&texts.folder(name).join("step-00000008"));
        let wide = format!("{name}-wide");
        assert_eq!(
            loss_bits(&texts.run(&wide, &[own, &["pools.encoder.replicas=2"]].concat(), None)),
            loss_bits(&one),
            "{name}"
        );
        assert_eq!(weights(&wide), weights(name), "{name}");
        let apart = texts.run(&format!("{name}-apart"), &[own, &OWN_POOL].concat(), None);
        assert_eq!(loss_bits(&apart), loss_bits(&one), "{name}");
        let rest = texts.run(&format!("{name}-rest"), &[own, &OWN_POOL].concat(), Some(name));
        assert_eq!(loss_bits(&rest), loss_bits(&one[4..]), "{name}, resumed");
    }
    let kept = texts.run("kept", &[&FROZEN[..], &OWN_POOL, &["pools.text.cache=1MiB"]].concat(), None);
    let fresh = texts.run("fresh", &[&FROZEN[..], &["pools.encoder.cache=1MiB"]].concat(), None);
    assert_eq!(loss_bits(&kept), loss_bits(&fresh));
    let first = |name: &str| hashes(&texts.folder(name).join("step-00000008"));
    assert_ne!(first("trained"), first("frozen"), "the text tower learned nothing");
    reads_as_in_the_run(&texts.folder("decoder/step-00000008"));
}

/// Ranks that share the layers of a tower, trained or frozen: sums of another order.
#[test]
fn a_text_tower_learns_the_same_on_ranks_that_share_it() {
    let texts = Texts::new();
    for (name, own) in [("umt5", &[][..]), ("decoder", &DECODER), ("clip", &CLIP)] {
        let one = texts.run(name, own, None);
        assert!(one[7].loss < 0.9 * one[0].loss, "{name}: {one:?}");
        for split in ["pools.encoder.tensor_parallel=2", "pools.text={tensor_parallel: 2, threads: 1}"] {
            let found = texts.run(&format!("{name}-split"), &[own, &[split]].concat(), None);
            for (found, expected) in found.iter().zip(&one) {
                // Eight steps of AdamW spread what rounding alone makes.
                let off = (found.loss - expected.loss).abs() / expected.loss;
                assert!(off < 2e-4, "{name}, {split}, step {}: {} and {}", found.step, found.loss, expected.loss);
            }
        }
    }
}

#[test]
fn what_a_text_tower_cannot_do_is_refused_before_a_run() {
    let texts = Texts::new();
    let refusal = |own: &str| {
        let loaded = config::load(&texts.folder("run.yaml"), &[own.to_owned()], std::iter::empty());
        let loaded = loaded.map_err(|report| report.to_string())?;
        let run = Composition::unsettled(loaded.config).map_err(|error| error.to_string())?;
        let asked = Asked { device: true, weights: true, alone: true };
        run.preflight(asked).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(refusal("train.steps=4"), Ok(()));
    let cases = [
        ("pools.text={tensor_parallel: 3}", "text_encoder.num_heads is 4, which tensor_parallel=3 does not divide"),
        ("model.text.layers=[0, 3]", "text.layers is [0,3], but must be a list of numbers from -3 to 2"),
        ("model.text.template=no place", "text.template must contain {} exactly once"),
        ("model.text.tokenizer=nowhere", "`model.text.tokenizer`: no such directory"),
        (
            "model.text_encoder.config.vocab_size=300",
            "has token id 401, but the model's config.json says vocab_size 300",
        ),
        (
            "model.text_encoder.config={model_type: clip_text_model, vocab_size: 408, hidden_size: 32, max_position_embeddings: 8}",
            "text.max_tokens is 9, but the text tower has 8 positions",
        ),
        ("model.config.text_token_id=272", "text_token_id is 272, but must be below the decoder's vocab_size (272)"),
    ];
    let found = cases.map(|(own, expected)| (own, expected, refusal(own).err().unwrap_or_default()));
    let other: Vec<_> = found.iter().filter(|(_, expected, found)| !found.contains(expected)).collect();
    assert!(other.is_empty(), "{other:#?}");
}

/// A checkpoint has the tower's tokenizer and template: the sample of a folder alone is that of the run.
fn reads_as_in_the_run(checkpoint: &Path) {
    let folder = ModelFolder::open_plain(checkpoint).unwrap();
    let processor = folder.processor(&ProcessorOptions { max_tokens: 128, ..ProcessorOptions::default() }).unwrap();
    let conversation = Conversation::parse(&sample(1).to_string()).unwrap();
    let sample = processor.training_sample(SampleId(0), &conversation, checkpoint).unwrap();
    let item =
        |index: usize| (sample.media[index].tower, &sample.media[index].pixels[..], sample.media[index].num_features);
    // The template's words, those of the text, the template's last, and the end.
    assert_eq!(item(0), (Tower::Text, &[3.0, 4.0, 99.0, 100.0, 5.0, 1.0][..], 4));
    assert_eq!(sample.media.len(), 2);
    // A pack that was made of it is read alike.
    let packed = |(index, source): (usize, &MediaSource)| {
        let MediaSource::Context(text) = source else { panic!("{source:?} is no context") };
        let file = (format!("{index}_context.txt"), text.as_bytes().into());
        PackedMedia { kind: PackedKind::Context, files: vec![file] }
    };
    let narrow = |ids: &[i64]| ids.iter().map(|&id| id as i32).collect::<Vec<i32>>();
    let pack = PackedSample {
        ids: vec![1],
        lens: vec![sample.meta.num_tokens],
        samples: vec!["train.jsonl:2".to_owned()],
        input_ids: narrow(&sample.input_ids),
        targets: narrow(&sample.targets),
        position_ids: None,
        media: conversation.media.iter().enumerate().map(packed).collect(),
        items: sample.meta.items.clone(),
    };
    let read = processor.packed_sample(SampleId(0), &pack).unwrap();
    assert_eq!((&read.input_ids, &read.targets, &read.media), (&sample.input_ids, &sample.targets, &sample.media));
}
