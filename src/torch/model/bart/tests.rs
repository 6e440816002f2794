//! transformers' numbers: scores, losses, gradients of all parameters and greedy answers of fixtures that
//! `tests/oracle/make_florence.py` makes. `LOONGFORGE_FLORENCE` has those of another folder read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use loongforge_core::data::IGNORE_INDEX;
use loongforge_core::message::{Grid, Tower};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::network::EncoderDecoder;
use crate::model::batch::MicroBatch;
use crate::model::columns::Columns;
use crate::model::config::ModelConfig;
use crate::model::decoding::Decoding;
use crate::model::encoder::EncoderFamily;
use crate::model::foundation::FoundationTape;
use crate::params::{GradBuffer, ParamSpec, ParamStore};
use crate::tape::{Execution, Policy, Tape};

/// The tolerance of losses and scores, as a share of the largest value of a tensor.
const TOLERANCE: f64 = 5e-6;
/// That of gradients: sums over all rows, in another order, through DaViT's convolutions (`xvla/tests.rs`).
const OF_GRADIENTS: f64 = 1e-4;
/// The share of the largest gradient of all that a tensor's largest value is set to for its tolerance, if it is below: those of
/// biases of keys are sums that cancel.
const SMALL: f64 = 1e-3;

struct Fixture {
    name: String,
    config: ModelConfig,
    tower: Arc<dyn EncoderFamily>,
    params: Rc<ParamStore>,
    of_tower: Rc<ParamStore>,
    num_samples: usize,
    new_tokens: usize,
    inputs: BTreeMap<String, Tensor>,
    expected: BTreeMap<String, Tensor>,
}

/// What a forward and backward come to.
struct Found {
    loss: f64,
    grads: GradBuffer,
    of_tower: GradBuffer,
}

fn fixtures() -> Vec<Fixture> {
    let committed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/florence");
    let folder = std::env::var_os("LOONGFORGE_FLORENCE").map_or_else(committed, PathBuf::from);
    let mut found: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    assert!(!found.is_empty(), "{} has no fixture", folder.display());
    found.iter().map(|folder| Fixture::read(folder)).collect()
}

fn json(path: PathBuf) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn tensors(path: PathBuf) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

fn store(specs: Vec<ParamSpec>, weights: &BTreeMap<String, Tensor>) -> Rc<ParamStore> {
    let params = ParamStore::new(specs, Kind::Float, Device::Cpu);
    for id in params.ids() {
        let name = &params.spec(id).name;
        params.set(id, weights.get(name).unwrap_or_else(|| panic!("no {name}")));
    }
    Rc::new(params)
}

/// The share of the largest expected value that the largest difference is.
fn error(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.size(), expected.size());
    (found - expected).abs().max().double_value(&[]) / expected.abs().max().double_value(&[])
}

impl Fixture {
    fn read(folder: &Path) -> Fixture {
        let config = ModelConfig::from_hf(&json(folder.join("config.json"))).unwrap();
        let weights = tensors(folder.join("model.safetensors"));
        let tower = config.towers.get(Tower::Vision).unwrap().clone();
        let specs = config.specs();
        let others: Vec<&String> =
            weights.keys().filter(|name| !specs.iter().any(|spec| spec.name == **name)).collect();
        assert!(others.is_empty(), "{others:?}");
        let [inputs, expected] = ["inputs", "expected"].map(|name| tensors(folder.join(format!("{name}.safetensors"))));
        let summary = json(folder.join("fixture.json"));
        Fixture {
            name: folder.file_name().unwrap().to_string_lossy().into_owned(),
            params: store(config.foundation.specs(), &weights),
            of_tower: store(tower.specs(), &weights),
            num_samples: summary["samples"].as_array().unwrap().len(),
            new_tokens: summary["new_tokens"].as_u64().unwrap() as usize,
            config,
            tower,
            inputs,
            expected,
        }
    }

    fn all(&self) -> Vec<usize> {
        (0..self.num_samples).collect()
    }

    fn tokens(&self, name: &str, sample: usize) -> Vec<i64> {
        Vec::try_from(&self.inputs[&format!("{name}.{sample}")]).unwrap()
    }

    fn network(&self) -> EncoderDecoder {
        let config = self.config.foundation.as_encoder_decoder().unwrap();
        EncoderDecoder::new(config, &self.params, Policy::Keep)
    }

    /// The patches of the samples' pictures, and the size of each.
    fn pixels(&self, samples: &[usize]) -> (Vec<Tensor>, Vec<Grid>) {
        let patch = ((self.tower.patch_dim() / 3) as f64).sqrt() as i64;
        let of = |sample: &usize| {
            let image = self.inputs.get(&format!("image.{sample}"))?;
            let [rows, columns] = [1, 2].map(|axis: usize| image.size()[axis] / patch);
            let patches = image.view([3, rows, patch, columns, patch]).permute([1, 3, 0, 2, 4]);
            let grid = Grid { t: 1, h: rows as u32, w: columns as u32 };
            Some((patches.reshape([rows * columns, -1]), grid))
        };
        samples.iter().filter_map(of).unzip()
    }

    /// Samples with their answers, or without.
    fn batch(&self, samples: &[usize], answers: bool) -> MicroBatch {
        let bart = self.config.foundation.as_encoder_decoder().unwrap();
        let (mut ids, mut positions, mut targets, mut ends) = (Vec::new(), Vec::new(), Vec::new(), vec![0]);
        for sample in samples {
            let (prompt, labels) = (self.tokens("prompt", *sample), self.tokens("labels", *sample));
            positions.extend((0..prompt.len()).map(|at| at as f32));
            targets.extend(vec![IGNORE_INDEX; prompt.len()]);
            ids.extend(prompt);
            if answers {
                positions.extend((0..labels.len()).map(|at| at as f32));
                ids.push(bart.answers.start);
                let before = labels[..labels.len() - 1].iter();
                ids.extend(before.map(|id| if *id == IGNORE_INDEX { bart.bart.pad_token } else { *id }));
                targets.extend(labels);
            }
            ends.push(ids.len());
        }
        let image = bart.image_token.unwrap();
        let of = |sample: usize| self.tokens("labels", sample).iter().filter(|id| **id >= 0).count();
        let num_targets: usize = self.all().into_iter().map(of).sum();
        let positions = Tensor::from_slice(&positions).unsqueeze(0).repeat([3, 1]);
        MicroBatch {
            num_features: vec![ids.iter().filter(|id| **id == image).count() as i64],
            columns: Columns::of_tokens(Tensor::from_slice(&ids), positions, Tensor::from_slice(&targets)),
            cu_seqlens: ends,
            samples: Rc::new([]),
            loss_scale: 1.0 / num_targets as f64,
            feature_grads: true,
            row: None,
            shared_features: Vec::new(),
            past: None,
            evaluates: false,
        }
    }

    fn features(&self, samples: &[usize]) -> Vec<Vec<Tensor>> {
        let (pixels, grids) = self.pixels(samples);
        if grids.is_empty() {
            return vec![Vec::new()];
        }
        let made = self.tower.build(&self.of_tower, Policy::Keep).record(&grids);
        let inputs = vec![(made.pixels, Tensor::cat(&pixels, 0))];
        let mut run = Execution::forward_only(made.tape, self.of_tower.clone(), inputs);
        run.forward().unwrap();
        vec![made.outputs.iter().map(|slot| run.value(*slot).shallow_clone()).collect()]
    }

    fn run(&self, samples: &[usize], policy: Policy) -> Found {
        let tape = self.config.foundation.build(&self.params, policy).record(&self.batch(samples, true));
        self.run_tape(tape, samples, policy)
    }

    fn run_tape(&self, tape: FoundationTape, samples: &[usize], policy: Policy) -> Found {
        let (pixels, grids) = self.pixels(samples);
        let (mut grads, mut of_tower) = (self.params.new_grad(), self.of_tower.new_grad());
        let mut encoding = (!grids.is_empty()).then(|| {
            let made = self.tower.build(&self.of_tower, policy).record(&grids);
            let inputs = vec![(made.pixels, Tensor::cat(&pixels, 0))];
            let mut encoding = Execution::new(made.tape, self.of_tower.clone(), inputs);
            encoding.forward().unwrap();
            (encoding, made.outputs[0])
        });
        let slot = tape.features.first().map(|slots| slots[0]);
        assert_eq!(slot.is_some(), encoding.is_some());
        let inputs =
            slot.iter().zip(&encoding).map(|(slot, (run, output))| (*slot, run.value(*output).shallow_clone()));
        let mut run = Execution::new(tape.tape, self.params.clone(), inputs.collect());
        run.forward().unwrap();
        let loss = run.value(tape.loss.unwrap()).double_value(&[]);
        run.seed(tape.loss.unwrap(), Tensor::from(1f64));
        run.backward(Some(&mut grads)).unwrap();
        if let (Some(slot), Some((encoding, output))) = (slot, &mut encoding) {
            encoding.seed(*output, run.input_grad(slot).unwrap());
            encoding.backward(Some(&mut of_tower)).unwrap();
        }
        Found { loss, grads, of_tower }
    }

    /// The largest error of gradients, of all trained parameters.
    fn check_grads(&self, found: &Found) -> f64 {
        let expected = |name: &str| {
            let grad = self.expected.iter().find(|(key, _)| key.strip_prefix("grad/") == Some(name));
            grad.map(|(_, grad)| grad)
        };
        let of = |name: &str| expected(name).map_or(0.0, |grad| grad.abs().max().double_value(&[]));
        let names: Vec<String> = self.config.specs().into_iter().map(|spec| spec.name).collect();
        let small = SMALL * names.iter().map(|name| of(name)).fold(0.0, f64::max);
        let mut worst = 0f64;
        let (mut num_compared, num_expected) = (0, self.expected.keys().filter(|key| key.starts_with("grad/")).count());
        for (params, grads) in [(&self.params, &found.grads), (&self.of_tower, &found.of_tower)] {
            for id in params.trained_ids() {
                let (name, own) = (&params.spec(id).name, grads.view(id));
                let wanted = expected(name).unwrap_or_else(|| panic!("the reference has no gradient of {name}"));
                num_compared += 1;
                let difference =
                    (own.view(wanted.size().as_slice()) - wanted).abs().max().double_value(&[]) / of(name).max(small);
                assert!(difference < OF_GRADIENTS, "{}: {name} is off by {difference:e}", self.name);
                worst = worst.max(difference);
            }
        }
        assert_eq!(num_compared, num_expected);
        worst
    }
}

#[test]
fn packed_losses_scores_and_gradients_are_those_of_samples_alone() {
    for fixture in fixtures() {
        let all = fixture.all();
        let expected = fixture.expected["loss"].double_value(&[]);
        for policy in [Policy::Keep, Policy::Recompute] {
            for order in [all.clone(), all.iter().rev().copied().collect()] {
                let found = fixture.run(&order, policy);
                let off = (found.loss - expected).abs() / expected;
                let worst = fixture.check_grads(&found);
                println!("{}: loss off by {off:.1e}, gradients by {worst:.1e}", fixture.name);
                assert!(off < TOLERANCE, "{}: {} and not {expected}", fixture.name, found.loss);
            }
        }
        // Sums over micro-batches are those over one.
        let parts: Vec<Found> = all.iter().map(|sample| fixture.run(&[*sample], Policy::Keep)).collect();
        let sum: f64 = parts.iter().map(|part| part.loss).sum();
        assert!((sum - expected).abs() / expected < TOLERANCE, "{}: {sum}", fixture.name);
    }
}

#[test]
fn scores_are_those_of_transformers() {
    for fixture in fixtures() {
        let (network, all) = (fixture.network(), fixture.all());
        let features = fixture.features(&all);
        // Every target counts, so that all scores are there.
        let mut batch = fixture.batch(&all, true);
        let (ids, mut targets) = (batch.input_ids(), batch.targets());
        let lens: Vec<[usize; 2]> =
            all.iter().map(|it| ["prompt", "labels"].map(|name| fixture.tokens(name, *it).len())).collect();
        for (ends, [prompt, _]) in batch.cu_seqlens.windows(2).zip(&lens) {
            targets[ends[0] + prompt..ends[1]].iter_mut().for_each(|target| *target = (*target).max(0));
        }
        batch.columns = Columns::of_tokens(
            Tensor::from_slice(&ids),
            batch.columns.get("position_ids").shallow_clone(),
            Tensor::from_slice(&targets),
        );
        let positions = Vec::<f32>::try_from(batch.columns.get("position_ids").get(0)).unwrap();
        let samples = super::record::Samples {
            ids: &ids,
            positions: &positions,
            targets: &targets,
            cu_seqlens: &batch.cu_seqlens,
            feature_rows: fixture.config.inputs()[0].rows(&ids),
        };
        let mut tape = Tape::new();
        let recorded = network.record_states(&mut tape, &samples, false);
        tape.keep(recorded.hidden);
        let inputs = vec![(recorded.features[0][0], features[0][0].shallow_clone())];
        let mut run = Execution::forward_only(Rc::new(tape), fixture.params.clone(), inputs);
        run.forward().unwrap();
        let scores = run.value(recorded.hidden).matmul(&network.tokens.part.table().tr());
        let of_samples = all.iter().map(|sample| &fixture.expected[&format!("scores.{sample}")]);
        let expected = Tensor::cat(&of_samples.collect::<Vec<_>>(), 0);
        let off = error(&scores, &expected);
        println!("{}: scores off by {off:.1e}", fixture.name);
        assert!(off < TOLERANCE, "{}: scores off by {off:e}", fixture.name);
        // What an evaluation scores are the same.
        let rows = &samples.feature_rows;
        let scored = network
            .score(&fixture.params, (&ids, &positions, &targets), &batch.cu_seqlens, (rows, &features[0]))
            .unwrap();
        let best = Vec::<i64>::try_from(expected.argmax(-1, false)).unwrap();
        let counted: Vec<i64> = targets.iter().copied().filter(|target| *target >= 0).collect();
        let correct: Vec<bool> = best.iter().zip(&counted).map(|(one, other)| one == other).collect();
        assert_eq!(scored.correct, correct);
        let losses = Tensor::from_slice(&scored.losses);
        let index = Tensor::from_slice(&counted).unsqueeze(1);
        let wanted = -expected.log_softmax(-1, Kind::Float).gather(1, &index, false).squeeze_dim(1);
        assert!(error(&losses, &wanted) < 1e-5);
    }
}

#[test]
fn greedy_answers_are_those_of_transformers() {
    for fixture in fixtures() {
        let all = fixture.all();
        let model = fixture.config.foundation.build(&fixture.params, Policy::Keep);
        let batch = fixture.batch(&all, false);
        let answers = |stop_token_ids: Vec<i64>| {
            let decoding = Decoding { max_new_tokens: fixture.new_tokens, stop_token_ids, ..Decoding::default() };
            model.generate(&batch, &fixture.features(&all), &decoding).unwrap()
        };
        // transformers returns the token that ends an answer, and stops there.
        let (end, whole) = (2, answers(Vec::new()));
        for (sample, (found, cut)) in whole.iter().zip(answers(vec![end])).enumerate() {
            let expected = Vec::<i64>::try_from(&fixture.expected[&format!("answer.{sample}")]).unwrap();
            assert_eq!(found[..expected.len()], expected, "{} sample {sample}", fixture.name);
            let before = expected.iter().position(|token| *token == end).unwrap_or(expected.len());
            assert_eq!(cut, expected[..before], "{} sample {sample}", fixture.name);
        }
    }
}

/// A rank that has nothing to learn records every parameter, and its loss and gradients are zero.
#[test]
fn a_sample_without_an_answer_counts_for_nothing() {
    for fixture in fixtures() {
        let model = fixture.config.foundation.build(&fixture.params, Policy::Keep);
        let filler = MicroBatch::filler(model.columns(), Device::Cpu);
        let tape = model.record(&filler);
        let mut run = Execution::new(tape.tape, fixture.params.clone(), Vec::new());
        run.forward().unwrap();
        assert_eq!(run.value(tape.loss.unwrap()).double_value(&[]), 0.0);
        run.seed(tape.loss.unwrap(), Tensor::from(1f64));
        let mut grads = fixture.params.new_grad();
        run.backward(Some(&mut grads)).unwrap();
        for id in fixture.params.trained_ids() {
            assert_eq!(grads.view(id).abs().max().double_value(&[]), 0.0, "{}", fixture.params.spec(id).name);
        }
    }
}

#[test]
fn configs_that_are_not_implemented_are_named() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/florence/florence2-seed1/config.json");
    let read = |pointer: &str, key: &str, value: Value| {
        let mut config = json(folder.clone());
        config.pointer_mut(pointer).unwrap()[key] = value;
        ModelConfig::from_hf(&config).unwrap_err().to_string()
    };
    for (pointer, key, value, expected) in [
        (
            "",
            "image_token_id",
            Value::from(40),
            "image_token_id is 40, but must be below the decoder's vocab_size (40)",
        ),
        ("", "tie_word_embeddings", Value::from(false), "tie_word_embeddings is false"),
        ("/text_config", "model_type", Value::from("mbart"), "text_config.model_type is \"mbart\""),
        ("/text_config", "decoder_attention_heads", Value::from(5), "text_config.decoder_attention_heads is 5"),
        ("/text_config", "decoder_layerdrop", Value::from(0.1), "text_config.decoder_layerdrop is 0.1"),
        ("/text_config", "decoder_start_token_id", Value::from(99), "text_config.decoder_start_token_id is 99"),
        ("/text_config", "d_model", Value::from(24), "must be vision_config.projection_dim (12)"),
        ("/vision_config", "drop_path_rate", Value::from(1.5), "vision_config.drop_path_rate is 1.5"),
    ] {
        let message = read(pointer, key, value);
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    }
}
