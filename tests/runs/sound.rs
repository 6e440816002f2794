//! Runs of models that hear, alone and beside pictures.

use crate::fixture::{self, Fixture, Pictures, bits, loss_bits};
use crate::processes;
use crate::resume::{hashes, resume};
use crate::soak::{self, Cell};
use loongforge::core::config::{self, Loaded};
use loongforge::core::data::audio::wav;
use loongforge::core::data::heard_and_seen::{self, HeardAndSeen};
use loongforge::core::data::spoken_digits;
use loongforge::core::observe::{Console, MetricsFile, StepMetrics, read_evaluations};
use loongforge::eval::after_run::after_run;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const RATE: u32 = 16_000;

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut json = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut json);
    fs::write(path, json.to_string()).unwrap();
}

/// Returns a tiny Qwen2.5-Omni thinker with samples that have a sound and a picture, one of them, or none.
pub fn omni() -> Fixture {
    let fixture = Fixture::new(Pictures::All);
    let model = fixture.path().join("model");
    let mut first = 0;
    edit(&model.join("tokenizer.json"), |tokenizer| {
        let added = tokenizer["added_tokens"].as_array_mut().unwrap();
        first = added.last().unwrap()["id"].as_u64().unwrap() + 1;
        for (token, id) in ["<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"].into_iter().zip(first..) {
            let like = added[0].clone();
            added.push(like);
            let new = added.last_mut().unwrap();
            (new["content"], new["id"]) = (token.into(), id.into());
        }
    });
    edit(&model.join("preprocessor_config.json"), |settings| {
        (settings["feature_size"], settings["chunk_length"]) = (16.into(), 2.into());
    });
    edit(&model.join("config.json"), |config| *config = thinker(config, first));
    let train = fixture.path().join("data/train.jsonl");
    let lines = fs::read_to_string(&train).unwrap();
    let lines = lines.lines().enumerate().map(|(index, line)| with_sound(fixture.path(), index, line));
    fs::write(&train, lines.collect::<Vec<_>>().join("\n")).unwrap();
    fixture
}

/// Returns the config of a thinker, with the token ids and pictures of the fixture's model and sound tokens from `first` on.
fn thinker(seeing: &Value, first: u64) -> Value {
    let mut text = seeing["text_config"].clone();
    text.as_object_mut().unwrap().remove("head_dim");
    text["model_type"] = "qwen2_5_omni_text".into();
    text["vocab_size"] = (first + 3).into();
    text["tie_word_embeddings"] = false.into();
    text["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 100.0, "mrope_section": [4, 4, 4]});
    let width = &text["hidden_size"];
    json!({
        "architectures": ["Qwen2_5OmniThinkerForConditionalGeneration"],
        "model_type": "qwen2_5_omni_thinker", "dtype": "float32", "tie_word_embeddings": false,
        "audio_start_token_id": first, "audio_token_index": first + 1, "audio_end_token_id": first + 2,
        "image_token_index": seeing["image_token_id"], "video_token_index": seeing["video_token_id"],
        "vision_start_token_id": seeing["vision_start_token_id"],
        "vision_end_token_id": seeing["vision_end_token_id"],
        "position_id_per_seconds": 25, "seconds_per_chunk": 2, "initializer_range": 0.05,
        "audio_config": {
            "model_type": "qwen2_5_omni_audio_encoder", "num_mel_bins": 16, "d_model": 32, "encoder_layers": 2,
            "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "max_source_positions": 64, "n_window": 10,
            "output_dim": width, "activation_function": "gelu", "dropout": 0.0, "attention_dropout": 0.0,
            "activation_dropout": 0.0, "scale_embedding": false, "initializer_range": 0.05,
        },
        "vision_config": {
            "model_type": "qwen2_5_omni_vision_encoder", "depth": 2, "hidden_act": "silu", "hidden_size": 32,
            "intermediate_size": 48, "num_heads": 2, "in_channels": 3, "patch_size": 8, "spatial_merge_size": 2,
            "temporal_patch_size": 2, "window_size": 32, "out_hidden_size": width, "fullatt_block_indexes": [1],
            "initializer_range": 0.05,
        },
        "text_config": text,
    })
}

/// Returns the sample of a picture with one more recording, a recording in its place, as it is, or of text alone.
fn with_sound(dir: &Path, index: usize, line: &str) -> String {
    let seen: Value = serde_json::from_str(line).unwrap();
    let pitch = index / 4 % 5;
    if index % 4 < 2 {
        let turn = std::f32::consts::TAU * 300.0 * (pitch + 1) as f32 / RATE as f32;
        let sine: Vec<f32> = (0..3200 + 800 * (index % 7)).map(|at| 0.4 * (turn * at as f32).sin()).collect();
        fs::write(dir.join(format!("data/{index}.wav")), wav(&sine, 1, RATE)).unwrap();
    }
    let sample = |question: &str, answer: &str| {
        let (user, assistant) =
            (json!({"role": "user", "content": question}), json!({"role": "assistant", "content": answer}));
        json!({"messages": [user, assistant]})
    };
    let mut sample = match index % 4 {
        0 => sample("<audio>then<image>?", &format!("{pitch} {}", seen["messages"][1]["content"].as_str().unwrap())),
        1 => sample("<audio>?", &pitch.to_string()),
        2 => return line.to_owned(),
        _ => sample(&format!("Say {index}."), "abcdefgh"),
    };
    if index % 4 < 2 {
        sample["audios"] = json!([format!("{index}.wav")]);
    }
    if index.is_multiple_of(4) {
        sample["images"] = seen["images"].clone();
    }
    sample.to_string()
}

/// A model put together from a Whisper tower, a projector that stacks states, and a language model.
const PARTS: &str = "
defaults: [{ models/llama3@model.foundation: llama3_8b }, _self_]
run: { name: parts, dir: ROOT/run, seed: 5, deterministic: true }
model:
  tokenizer: ROOT/data/model
  weights: random
  config: { audio_token_id: 260 }
  audio_encoder: { config: { model_type: whisper, num_mel_bins: 80, d_model: 32, encoder_layers: 2,
    encoder_attention_heads: 2, encoder_ffn_dim: 64, max_source_positions: 100 } }
  audio_projector: { config: { model_type: mlp, stack_factor: 4 } }
  foundation: { config: { vocab_size: 262, hidden_size: 48, intermediate_size: 64, num_hidden_layers: 2,
    num_attention_heads: 2, num_key_value_heads: 1, rope_theta: 100.0, tie_word_embeddings: true, bos_token_id: 256,
    eos_token_id: 258 } }
pools: { encoder: { threads: 1 }, foundation: { threads: 1 } }
data: { train: [{ path: ROOT/data/train.jsonl }], pack: { max_tokens: 256 } }
train: { steps: 6, global_batch_size: 8, lr: 2e-3, warmup_steps: 2 }
log: { tensorboard: false }
";

const OMNI: [&str; 4] =
    ["run.deterministic=true", "train.steps=8", "checkpoint.every_steps=4", "data.pack.max_tokens=160"];
const FROZEN: [&str; 2] = ["model.audio_encoder.freeze=true", "model.audio_projector.freeze=true"];

/// Both towers are in every encoder actor. Whoever computes them, and wherever the run is stopped, it is the same, also where recordings
/// are changed at random.
#[test]
fn sound_and_pictures_in_one_sample_are_bit_equal_in_any_layout() {
    let fixture = omni();
    let run = |to: &str, own: &[&str], from: Option<&str>| {
        let folder = |name: &str| fixture.path().join(name);
        let dir = format!("checkpoint.dir={}", folder(to).display());
        let resumed = from.map(|from| resume(folder(from).join("step-00000004")));
        let steps = fixture.run(&[&OMNI[..], own, &[&dir]].concat(), resumed);
        (bits(&steps), hashes(&folder(to).join("step-00000008")), steps)
    };
    let noise = format!("noise: {{ path: {}, prob: 0.5 }}", fixture.path().join("data/1.wav").display());
    let changes = format!("data.audio.augment={{ speed: 0.1, volume: 6, mask_time_prob: 0.2, {noise} }}");
    for (name, own) in [("trained", &[changes.as_str()][..]), ("frozen", &FROZEN[..])] {
        let (losses, weights, steps) = run(name, &[own, &["pools.placement=colocated"]].concat(), None);
        assert!(steps[7].loss < 0.9 * steps[0].loss, "{steps:?}");
        for encoders in ["pools.encoder.replicas=1", "pools.encoder.replicas=3"] {
            let found = run(&format!("{name}-{encoders}"), &[own, &[encoders]].concat(), None);
            assert_eq!((&found.0, &found.1), (&losses, &weights), "{name}, {encoders}");
        }
        let rest = run(&format!("{name}-rest"), &[own, &["pools.encoder.replicas=3"]].concat(), Some(name));
        assert_eq!((&rest.0[..], &rest.1), (&losses[4..], &weights), "{name}, resumed");
    }
    let weights = |name: &str| hashes(&fixture.path().join(name).join("step-00000008"));
    assert_ne!(weights("trained"), weights("frozen"), "the audio tower learned nothing");
}

/// Each tower in a pool of its own, with any number of actors, sharing one with a name, resumed under other pools: always
/// the losses of one process, and the weights where files are cut alike. No gradient of it is clipped: the norm is a sum over
/// pools, and rounds as they are made up.
#[test]
fn towers_in_pools_of_their_own_are_bit_equal() {
    let fixture = omni();
    let folder = |name: &str| fixture.path().join(name);
    let run = |to: &str, own: &[&str], from: Option<&str>| {
        let dir = format!("checkpoint.dir={}", folder(to).display());
        let resumed = from.map(|from| resume(folder(from).join("step-00000004")));
        let steps = fixture.run(&[&OMNI[..], own, &["train.clip_grad=0", &dir]].concat(), resumed);
        (steps, hashes(&folder(to).join("step-00000008")))
    };
    let two = ["pools.audio.replicas=1", "pools.audio.threads=1"];
    let many = ["pools.encoder.replicas=2", "pools.audio.replicas=3", "pools.audio.threads=1"];
    for (name, own) in [("trained", &[][..]), ("frozen", &FROZEN[..])] {
        let (one, _) = run(name, &[own, &["pools.placement=colocated"]].concat(), None);
        let (apart, weights) = run(&format!("{name}-two"), &[own, &two].concat(), None);
        assert_eq!(loss_bits(&apart), loss_bits(&one), "{name}");
        for (step, alone) in apart.iter().zip(&one) {
            // Squares are summed in float32 over 1,024 elements at a time, which begin elsewhere in another pool.
            let (norm, alone) = (step.grad_norm, alone.grad_norm);
            assert!((norm / alone - 1.0).abs() < 1e-6, "{name}: {norm}, {alone}");
        }
        let (wide, found) = run(&format!("{name}-many"), &[own, &many].concat(), None);
        assert_eq!((bits(&wide), &found), (bits(&apart), &weights), "{name}");
        let media = ["pools.media.towers=[audio, vision]", "pools.media.replicas=2", "pools.media.threads=1"];
        assert_eq!(
            loss_bits(&run(&format!("{name}-media"), &[own, &media].concat(), None).0),
            loss_bits(&one),
            "{name}"
        );
        // From a checkpoint of one pool, and from one of two pools with another number of actors.
        for (what, from) in [("one", name.to_owned()), ("two", format!("{name}-two"))] {
            let (rest, _) = run(&format!("{name}-rest-{what}"), &[own, &many].concat(), Some(&from));
            assert_eq!(loss_bits(&rest), loss_bits(&one[4..]), "{name}, resumed from {what}");
        }
    }
    // A rate of its own changes what one pool learns and nothing else that is refused or ignored.
    let (slow, _) = run("slow", &[&two[..], &["pools.audio.lr=1e-9"]].concat(), None);
    let (full, _) = run("full", &two, None);
    assert_eq!(loss_bits(&slow[..1]), loss_bits(&full[..1]));
    assert_ne!(loss_bits(&slow[..3]), loss_bits(&full[..3]));
}

/// A pool for each tower, stopped after any step and resumed with other numbers of actors; and where one is frozen and serves
/// later epochs from its cache.
#[test]
fn towers_in_pools_of_their_own_go_on_from_every_step() {
    let fixture = omni();
    let folder = |name: &str| fixture.path().join(name);
    let run = |to: &str, own: &[&str], from: Option<(&str, usize)>| {
        let dir = format!("checkpoint.dir={}", folder(to).display());
        let resumed = from.map(|(whole, step)| resume(folder(whole).join(format!("step-{step:08}"))));
        let common = ["run.deterministic=true", "train.steps=6", "data.pack.max_tokens=160", "pools.audio.threads=1"];
        let saves = ["checkpoint.every_steps=1", "checkpoint.keep_last=10", &dir];
        let steps = fixture.run(&[&common[..], own, &saves].concat(), resumed);
        (loss_bits(&steps), hashes(&folder(to).join("step-00000006")))
    };
    // Actors of `encoder` and of `audio` after each step.
    let numbers = [(1, 2), (2, 3), (2, 1), (3, 1), (3, 3)];
    let cached = [&FROZEN[..], &["pools.audio.cache=1MiB", "data.train.0.max_samples=16"]].concat();
    for (name, own) in [("trained", &[][..]), ("cached", &cached[..])] {
        let (losses, weights) = run(name, &[own, &["pools.audio.replicas=1"]].concat(), None);
        for (step, (seeing, hearing)) in (1..6).zip(numbers) {
            let others = [format!("pools.encoder.replicas={seeing}"), format!("pools.audio.replicas={hearing}")];
            let others = others.each_ref().map(String::as_str);
            let (rest, found) = run(&format!("{name}-{step}"), &[own, &others].concat(), Some((name, step)));
            assert_eq!((&rest[..], &found), (&losses[step..], &weights), "{name}, after step {step}");
        }
    }
}

/// Numbers of actors of `encoder` and of `audio`, whether the audio tower is frozen and cached, and whether actors are processes.
type PoolsCase = ([usize; 2], bool, bool);

/// One to three actors in each of two pools give the losses and weights of one in each, in one process.
#[test]
#[ignore = "soak"]
fn soak_named_pools() {
    let fixture = omni();
    let cached = [&FROZEN[..], &["pools.audio.cache=1MiB", "data.train.0.max_samples=16"]].concat();
    let result = |name: &str, &([seeing, hearing], is_cached, are_processes): &PoolsCase| {
        let common = ["run.deterministic=true", "train.steps=6", "data.pack.max_tokens=160", "pools.audio.threads=1"];
        let actors = [format!("pools.encoder.replicas={seeing}"), format!("pools.audio.replicas={hearing}")];
        let actors = actors.each_ref().map(String::as_str);
        let own: &[&str] = if is_cached { &cached } else { &[] };
        let how: &[&str] = if are_processes { &["--processes"] } else { &[] };
        processes::run(&fixture, name, &[&common[..], &actors, own, how].concat());
        let folder = fixture.path().join(name);
        (processes::losses_in(&folder), hashes(&folder.join("checkpoints/step-00000006")))
    };
    let one = [("one", false), ("cached", true)].map(|(name, is_cached)| result(name, &([1, 1], is_cached, false)));
    let cell = |number: usize| {
        let (seeing, hearing) = (number % 3 + 1, number / 3 % 3 + 1);
        let (is_cached, are_processes) = (number / 9 % 2 == 1, number / 18 == 1);
        let tower = if is_cached { "cached" } else { "trained" };
        let place = if are_processes { "processes" } else { "threads" };
        (format!("{seeing} encoder, {hearing} audio, {tower}, {place}"), ([seeing, hearing], is_cached, are_processes))
    };
    let cells: Vec<(String, PoolsCase)> = (0..36).map(cell).collect();
    let mut number = 0;
    soak::run("named_pools", &cells, |case| {
        number += 1;
        let (found, expected) = (result(&format!("cell-{number}"), case), &one[usize::from(case.1)]);
        match found == *expected {
            true => Ok(Cell::Passed(format!("{} losses and {} files of weights", found.0.len(), found.1.len()))),
            false => Err(format!("{found:?}, not {expected:?}")),
        }
    });
}

/// Recordings are decoded as a user's are.
#[test]
fn bad_recordings_are_skipped_counted_and_listed() {
    let fixture = omni();
    let sound = |index: usize| fixture.path().join(format!("data/{index}.wav"));
    fs::remove_file(sound(0)).unwrap();
    fs::write(sound(1), "no sound at all").unwrap();
    fs::write(sound(4), "").unwrap();
    let whole = fs::read(sound(5)).unwrap();
    fs::write(sound(5), &whole[..whole.len() / 2]).unwrap();
    let own = ["train.steps=3", "train.warmup_steps=1", "data.pack.max_tokens=160", "security.sandbox=auto"];
    // All of them are among the first samples that are read.
    let in_order = ["data.shuffle=false", "data.on_bad_sample.max_fraction=0.5"];
    processes::run(&fixture, "bad", &[&own[..], &in_order].concat());
    let lines = |name: &str| -> Vec<Value> {
        let text = fs::read_to_string(fixture.path().join("bad").join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let listed = lines("bad.jsonl");
    let found: Vec<_> = listed.iter().map(|bad| ["source", "reason"].map(|key| bad[key].as_str().unwrap())).collect();
    let expected = [(1, "No such file"), (2, "not a supported audio file"), (5, "empty file"), (6, "truncated")];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ([source, reason], (line, part)) in found.into_iter().zip(expected) {
        assert!(source.ends_with(&format!("train.jsonl:{line}")) && reason.contains(part), "{source}: {reason}");
    }
    // Every step is whole, and the last says how many were skipped.
    let steps = lines("metrics.jsonl");
    assert_eq!((steps.len(), &steps[2]["bad_samples"]), (3, &json!(4)));
}

/// Returns a committed config, shortened, with the data below `dir`.
fn shortened(dir: &Path, name: &str, own: &[&str]) -> Loaded {
    let data = dir.join("data");
    let sets = [("eval.path", "held_out"), ("data.train.0.path", "train")];
    let mut overrides = vec![
        format!("run.dir={}", dir.join("run").display()),
        format!("model.load={}", data.join("model").display()),
        "train.warmup_steps=4".to_owned(),
        "checkpoint.every_steps=0".to_owned(),
        "log.tensorboard=false".to_owned(),
        "pools.encoder.threads=1".to_owned(),
        "pools.foundation.threads=1".to_owned(),
    ];
    overrides.extend(sets.map(|(key, file)| format!("{key}={}", data.join(format!("{file}.jsonl")).display())));
    overrides.extend(own.iter().map(|own| own.replace("DATA", &data.display().to_string())));
    config::load(Path::new(&format!("configs/{name}.yaml")), &overrides, std::iter::empty())
        .unwrap_or_else(|report| panic!("{report}"))
}

/// Runs the example of two towers in a sample, shortened. The results after it name every control, with what is expected.
#[test]
fn what_is_heard_and_seen_is_told_with_its_controls() {
    let dir = tempfile::tempdir().unwrap();
    heard_and_seen::compose(&dir.path().join("data"), &HeardAndSeen { seed: 1, num_train: 64, num_held_out: 6 })
        .unwrap();
    let own = [
        "train.steps=10",
        "train.global_batch_size=8",
        "eval.sets.shuffled_sound=DATA/shuffled_sound.jsonl",
        "eval.sets.shuffled_picture=DATA/shuffled_picture.jsonl",
        "+eval.pooled_statistics=30",
        "eval.scores=[words,wer]",
    ];
    let loaded = shortened(dir.path(), "heard_and_seen", &own);
    let config = loaded.config.clone();
    let (steps, _) = fixture::run(loaded, None);
    assert!(steps[9].loss < 0.8 * steps[0].loss, "{steps:?}");
    // What the command line writes, and draws a curve of.
    let metrics = StepMetrics { step: 10, loss: steps[9].loss, ..StepMetrics::default() };
    MetricsFile::open(&dir.path().join("run/metrics.jsonl"), 1).unwrap().write(&metrics).unwrap();
    after_run(&config, &Console::stderr()).unwrap();
    let found = read_evaluations(&dir.path().join("run/eval.jsonl")).unwrap();
    let names: Vec<&str> = found.iter().map(|record| record.set.as_str()).collect();
    assert_eq!(names, ["held_out", "shuffled_picture", "shuffled_sound", "pooled_statistics"]);
    for record in &found {
        let scores = &record.scores;
        // Two words each.
        assert_eq!((record.answers.len(), scores.words.len(), scores.wer.unwrap().reference), (6, 2, 12), "{record:?}");
        assert_eq!(scores.verdict.is_some(), record.set != "pooled_statistics", "{record:?}");
    }
    let place = |number: usize| found[number].scores.verdict.as_ref().unwrap().expected.word;
    assert_eq!([0, 1, 2].map(place), [None, Some(2), Some(1)]);
}

/// Runs the committed example, shortened: the loss falls, and held-out voices are answered. A model put together from parts
/// hears the same recordings.
#[test]
fn spoken_digits_are_learned_and_asked() {
    let dir = tempfile::tempdir().unwrap();
    spoken_digits::compose(&dir.path().join("data")).unwrap();
    let own = [
        "eval.sets.shuffled_sound=DATA/shuffled_sound.jsonl",
        "eval.every_steps=12",
        "eval.max_samples=10",
        "train.steps=12",
        "train.global_batch_size=16",
    ];
    let (steps, evaluations) = fixture::run(shortened(dir.path(), "spoken_digits", &own), None);
    assert!(steps[11].loss < 0.5 * steps[0].loss, "{steps:?}");
    let found = &evaluations.last().unwrap().sets[0].found;
    assert!(found.outputs.len() >= 10, "{found:?}");

    let file = dir.path().join("parts.yaml");
    fs::write(&file, PARTS.replace("ROOT", &dir.path().display().to_string())).unwrap();
    let parts = |own: &str| {
        let loaded = config::load(&file, &[own.to_owned()], std::iter::empty());
        fixture::run(loaded.unwrap_or_else(|report| panic!("{report}")), None).0
    };
    let single = parts("pools.placement=colocated");
    assert!(single[5].loss < 0.9 * single[0].loss, "{single:?}");
    assert_eq!(bits(&single), bits(&parts("pools.encoder.replicas=2")));
}
