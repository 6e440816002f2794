//! Running a fixture's batch: as one packed row, each sequence alone, and through steps of AdamW.

use super::fixture::{Document, Fixture, FixtureError};
use super::indexers::compare_indexers;
use super::report::ParityReport;
use crate::model::{Decoder, Decoding, EncoderModel, ModelConfig, Prompt, Targets, TextBatch, TextOptions, generate};
use crate::native::NativeError;
use crate::nn::{GradBuffer, ParamId, ParamSpec, ParamStore, RopeScaling};
use crate::tape::{Execution, Policy, Slot};
use crate::train::peft::names_in_file;
use crate::train::peft_names::PREFIX;
use crate::train::{AdamW, AdapterError, WeightsError, adapted, load_adapter, load_weights, merge_adapter};
use loongforge_core::message::Grid;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tch::{Device, Kind, Tensor};

#[derive(Debug, thiserror::Error)]
pub enum ParityError {
    #[error(transparent)]
    Fixture(#[from] FixtureError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error(transparent)]
    Native(#[from] NativeError),
    #[error("{path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
}

/// What a step's loss is made of.
pub(super) struct Loss {
    pub total: f64,
    /// The routers' weighted part of it.
    of_routers: f64,
    /// The load-balancing loss, unweighted.
    aux: Option<f64>,
}

/// A part of the model with its parameters and their gradients.
pub(super) struct Pool<M> {
    pub model: M,
    pub params: Rc<ParamStore>,
    pub grads: GradBuffer,
    pub adamw: AdamW,
}

pub(super) struct Models {
    pub text: Pool<Decoder>,
    pub vision: Option<Pool<Box<dyn EncoderModel>>>,
    placeholders: Vec<i64>,
    num_feature_tensors: usize,
    /// Of the last step.
    pub mixer_losses: Vec<f64>,
    /// Of the decoder's segments.
    policy: Policy,
}

/// Runs the fixture in `folder`, float32 on the CPU.
pub fn parity(folder: &Path) -> Result<ParityReport, ParityError> {
    let fixture = Fixture::read(folder)?;
    let mut models = Models::load(&fixture, &fixture.config, folder)?;
    let ill_conditioned = fixture.config.decoder.gated_delta().is_some();
    let mut report = ParityReport { ill_conditioned, ..ParityReport::default() };
    let documents: Vec<&Document> = fixture.documents.iter().collect();
    let lens = reference_lens(&fixture);

    models.count_documents_as(lens.padded);
    let (logits, routed) = models.logits(&documents);
    models.compare_routers(&fixture, routed, &mut report);
    let of_tokens = |name: &str| fixture.expected.get(name);
    if let Some(expected) = of_tokens("logits") {
        let (rows, width) = (fixture.attention_mask.flatten(0, -1).nonzero().flatten(0, -1), logits.size()[1]);
        report.compare("logits", "logits", &logits, &expected.reshape([-1, width]).index_select(0, &rows));
    }
    models.count_documents_as(lens.packed);
    if let Some(expected) = of_tokens("packed.logits") {
        let logits = if lens.differ() { models.logits(&documents).0 } else { logits };
        report.compare("packed.logits", "packed.logits", &logits, expected);
        let alone: Vec<Tensor> = documents.iter().map(|document| models.logits(&[document]).0).collect();
        report.compare("single logits", "packed.logits", &Tensor::cat(&alone, 0), expected);
        models.compare_scores(&fixture, expected, &mut report)?;
    }

    if let Some(expected) = &fixture.generated {
        models.count_documents_as(0);
        models.compare_generated(&documents, expected, &mut report);
    }

    let scale = 1.0 / fixture.num_targets() as f64;
    models.count_documents_as(lens.packed);
    let packed = if lens.differ() { Some(models.step(&documents, scale)?) } else { None };
    models.count_documents_as(lens.padded);
    let loss = models.step(&documents, scale)?;
    let packed = packed.as_ref().unwrap_or(&loss);
    // The packed reference has the cross-entropy alone.
    let alone = fixture.config.decoder.mtp.is_none();
    let packed = alone.then_some(packed.total - packed.of_routers);
    for (quantity, found) in [("loss", Some(loss.total)), ("packed.loss", packed), ("aux_loss", loss.aux)] {
        if let Some((expected, found)) = fixture.expected.get(quantity).zip(found) {
            report.compare(quantity, quantity, &Tensor::from(found), expected);
        }
    }
    models.compare_gradients(&fixture, &mut report);
    models.compare_recomputed(&documents, scale, &mut report)?;
    compare_indexers(&fixture, folder, &documents, &mut report)?;
    models.train(&fixture, &documents, &mut report)?;
    if fixture.has_adapter {
        let (before, _) = models.logits(&documents);
        merge_adapter(&models.text.params);
        report.compare("merged logits", "logits", &models.logits(&documents).0, &before);
    }
    let wanted = ["logits", "packed.logits", "loss", "adamw.loss", "adamw.grad_norm"];
    let absent = wanted.iter().filter(|key| !fixture.expected.contains_key(**key));
    report.problems.extend(absent.map(|key| format!("expected.safetensors has no {key}")));
    Ok(report)
}

/// What documents count as at least, where rotary embeddings depend on their length.
struct ReferenceLens {
    padded: i64,
    packed: i64,
}

impl ReferenceLens {
    fn differ(&self) -> bool {
        self.padded != self.packed
    }
}

/// transformers takes the longest document of a padded batch; of documents one by one, with dynamic scaling, it keeps the
/// longest so far until one is shorter than the context.
fn reference_lens(fixture: &Fixture) -> ReferenceLens {
    let lens = || fixture.documents.iter().map(|document| document.input_ids.len() as i64);
    let rope = &fixture.config.decoder.rope;
    let padded = if rope.depends_on_length() { lens().max().unwrap_or(0) } else { 0 };
    let packed = match rope.scaling {
        RopeScaling::Dynamic { max_position_embeddings: context, .. } if lens().all(|len| len >= context) => padded,
        _ => 0,
    };
    ReferenceLens { padded, packed }
}

impl<M> Pool<M> {
    pub fn new(
        specs: Vec<ParamSpec>,
        fixture: &Fixture,
        folder: &Path,
        model: impl FnOnce(&ParamStore) -> M,
    ) -> Result<Self, ParityError> {
        let specs = if fixture.has_adapter { adapted(specs, folder)? } else { specs };
        let params = ParamStore::new(specs, fixture.kind, Device::Cpu);
        load_weights(&params, folder)?;
        if fixture.has_adapter {
            load_adapter(&params, folder)?;
        }
        let (grads, adamw) = (params.new_grad(), AdamW::new(&params, fixture.adamw)?);
        Ok(Pool { model: model(&params), params: Rc::new(params), grads, adamw })
    }
}

impl Models {
    pub fn load(fixture: &Fixture, config: &ModelConfig, folder: &Path) -> Result<Models, ParityError> {
        let text = Pool::new(Decoder::specs(&config.decoder), fixture, folder, |params| {
            Decoder::new(&config.decoder, params)
        })?;
        let vision = config
            .encoder
            .as_ref()
            .map(|family| Pool::new(family.specs(), fixture, folder, |params| family.build(params, Policy::Keep)));
        Ok(Models {
            text,
            vision: vision.transpose()?,
            placeholders: config.placeholders(),
            num_feature_tensors: config.num_feature_tensors(),
            mixer_losses: Vec::new(),
            policy: Policy::Keep,
        })
    }

    fn count_documents_as(&mut self, len: i64) {
        let mut config = self.text.model.config().clone();
        if config.rope.depends_on_length() && config.rope.min_seq_len != len {
            config.rope.min_seq_len = len;
            self.text.model = Decoder::new(&config, &self.text.params);
        }
    }

    /// The encoder's execution over the documents' pictures, after its forward. `None` where there are none.
    pub(super) fn encode(&self, documents: &[&Document], train: bool) -> Option<(Execution, Vec<Slot>)> {
        let vision = self.vision.as_ref()?;
        let grids: Vec<Grid> = documents.iter().flat_map(|document| document.grids.clone()).collect();
        let pixels: Vec<&Tensor> = documents.iter().filter_map(|document| document.pixels.as_ref()).collect();
        if pixels.is_empty() {
            return None;
        }
        let made = vision.model.record(&grids);
        let inputs = vec![(made.pixels, Tensor::cat(&pixels, 0))];
        let begin = if train { Execution::new } else { Execution::forward_only };
        let mut execution = begin(made.tape, vision.params.clone(), inputs);
        execution.forward().expect("there is no other rank");
        Some((execution, made.outputs))
    }

    pub(super) fn batch(&self, documents: &[&Document]) -> TextBatch {
        let input_ids: Vec<i64> = documents.iter().flat_map(|document| document.input_ids.clone()).collect();
        let positions: Vec<&Tensor> = documents.iter().map(|document| &document.position_ids).collect();
        let mut cu_seqlens = vec![0];
        documents
            .iter()
            .for_each(|document| cu_seqlens.push(cu_seqlens[cu_seqlens.len() - 1] + document.input_ids.len()));
        let no_positions = |shape: &[i64]| Tensor::zeros(shape, (Kind::Int64, Device::Cpu));
        let placeholder = |(_, id): &(i64, &i64)| self.placeholders.contains(id);
        TextBatch {
            feature_rows: (0..).zip(&input_ids).filter(placeholder).map(|(row, _)| row).collect(),
            input_ids: Tensor::from_slice(&input_ids),
            position_ids: match positions.is_empty() {
                // An empty row.
                true if self.text.model.config().has_three_axes() => no_positions(&[3, 0]),
                true => no_positions(&[0]),
                false => Tensor::cat(&positions, -1),
            },
            cu_seqlens,
            row: None,
            past: None,
        }
    }

    /// `[T, V]` for the documents as one packed row, and what each router gave: its layer's name in the reference, and
    /// logits, weights and experts.
    pub fn logits(&self, documents: &[&Document]) -> (Tensor, Vec<(String, [Tensor; 3])>) {
        let _no_grad = tch::no_grad_guard();
        let options = TextOptions {
            num_feature_tensors: self.num_feature_tensors,
            train_features: false,
            policy: Policy::Keep,
            keep_routing: true,
        };
        let made = self.text.model.tape(&self.batch(documents), None, &options);
        let inputs = self.encode(documents, false).map_or(Vec::new(), |(encoder, outputs)| {
            made.features
                .iter()
                .zip(outputs)
                .map(|(slot, output)| (*slot, encoder.value(output).shallow_clone()))
                .collect()
        });
        let mut execution = Execution::forward_only(Rc::new(made.tape), self.text.params.clone(), inputs);
        execution.forward().expect("there is no other rank");
        let routed = made.routing.iter().flat_map(|routing| &routing.experts).filter_map(|routed| {
            let outputs = routed.outputs?.map(|slot| execution.value(slot).shallow_clone());
            Some((routed.layer.trim_start_matches("layer ").to_owned(), routed.media, outputs))
        });
        let routed: Vec<_> = routed.collect();
        let by_media = routed.iter().any(|(_, media, _)| *media);
        let named = |(layer, media, outputs)| match (by_media, media) {
            (false, _) => (layer, outputs),
            (true, false) => (format!("{layer}/text_moe"), outputs),
            (true, true) => (format!("{layer}/vision_moe"), outputs),
        };
        (self.text.model.logits(execution.value(made.hidden)), routed.into_iter().map(named).collect())
    }

    /// Logits, chosen experts and weights of every router, where the fixture has them.
    fn compare_routers(&self, fixture: &Fixture, routed: Vec<(String, [Tensor; 3])>, report: &mut ParityReport) {
        for (layer, [logits, weights, experts]) in routed {
            // A token's experts in ascending order.
            let (experts, order) = experts.sort(-1, false);
            let weights = weights.gather(-1, &order, false);
            let found = [("router logits", logits), ("router experts", experts), ("router weights", weights)];
            for (quantity, found) in found {
                let key = format!("{}/{layer}", quantity.replace(' ', "_"));
                if let Some(expected) = fixture.expected.get(&key) {
                    report.compare(quantity, &key, &found, expected);
                }
            }
        }
    }

    /// Greedy continuations, all documents as one batch of prompts: not one token may differ.
    fn compare_generated(&self, documents: &[&Document], expected: &[Vec<i64>], report: &mut ParityReport) {
        let prompts: Vec<Prompt> = documents
            .iter()
            .map(|document| {
                let encoded = self.encode(&[document], false);
                let features = encoded.map_or(Vec::new(), |(encoder, outputs)| {
                    outputs.iter().map(|output| encoder.value(*output).shallow_clone()).collect()
                });
                let feature_rows = self.batch(&[document]).feature_rows;
                let position_ids = document.position_ids.shallow_clone();
                Prompt { input_ids: document.input_ids.clone(), position_ids, feature_rows, features }
            })
            .collect();
        let max_new_tokens = expected.iter().map(Vec::len).max().unwrap_or(0);
        let decoding = Decoding { max_new_tokens, ..Decoding::default() };
        for (number, (found, expected)) in
            generate(&self.text.model, &prompts, &decoding).iter().zip(expected).enumerate()
        {
            report.compare(
                "generated tokens",
                &format!("document {number}"),
                &Tensor::from_slice(found),
                &Tensor::from_slice(expected),
            );
        }
    }

    /// The loss, and all gradients into the pools' buffers.
    pub fn step(&mut self, documents: &[&Document], scale: f64) -> Result<Loss, ParityError> {
        self.text.grads.zero();
        self.vision.iter_mut().for_each(|vision| vision.grads.zero());
        let encoder = self.encode(documents, true);
        let targets =
            Targets { labels: documents.iter().flat_map(|document| document.targets.clone()).collect(), scale };
        let options = TextOptions {
            num_feature_tensors: self.num_feature_tensors,
            train_features: true,
            policy: self.policy,
            keep_routing: false,
        };
        let made = self.text.model.tape(&self.batch(documents), Some(&targets), &options);
        let inputs = encoder.iter().flat_map(|(encoder, outputs)| {
            made.features.iter().zip(outputs).map(|(slot, output)| (*slot, encoder.value(*output).shallow_clone()))
        });
        let inputs = inputs.collect();
        let mut execution = Execution::new(Rc::new(made.tape), self.text.params.clone(), inputs);
        execution.forward()?;
        let loss_slot = made.loss.expect("targets were given");
        let value = |slot: Slot| execution.value(slot).double_value(&[]);
        let routers = made.routing.map(|routing| routing.losses).unwrap_or_default();
        let of_routers = routers.weighted(&self.text.model.config().balance).map(|(slot, weight)| weight * value(slot));
        let loss = Loss { total: value(loss_slot), of_routers: of_routers.sum(), aux: routers.aux.map(value) };
        self.mixer_losses = made.mixer_losses.iter().map(|slot| execution.value(*slot).double_value(&[])).collect();
        execution.seed(loss_slot, Tensor::from(1.0));
        execution.backward(Some(&mut self.text.grads))?;
        if let (Some((mut encoder, outputs)), Some(vision)) = (encoder, &mut self.vision) {
            for (slot, output) in made.features.iter().zip(outputs) {
                execution.input_grad(*slot).into_iter().for_each(|grad| encoder.seed(output, grad));
            }
            encoder.backward(Some(&mut vision.grads))?;
        }
        Ok(loss)
    }

    /// Piece by piece, as the reference names them. What is no parameter there (a buffer) has no gradient.
    /// Gradients that are zero in exact arithmetic (of a key's bias without rotation) are rounding on both sides.
    fn compare_gradients(&self, fixture: &Fixture, report: &mut ParityReport) {
        let norms = fixture.expected.iter().filter(|(key, _)| key.starts_with("grad_norm/"));
        let norms: Vec<f64> = norms.map(|(_, norm)| norm.double_value(&[])).collect();
        let rounding = 1e-8 * norms.iter().map(|norm| norm * norm).sum::<f64>().sqrt();
        let mut known = 0;
        for (params, grads) in self.pools() {
            for (name, found) in reference_parts(params, |id| grads.view(id).shallow_clone()) {
                let name = name.as_str();
                let Some(norm) = fixture.expected.get(&format!("grad_norm/{name}")) else {
                    report.problems.push(format!("the reference has no gradient of {name}"));
                    continue;
                };
                known += 1;
                if norm.double_value(&[]).max(found.norm().double_value(&[])) <= rounding {
                    continue;
                }
                report.compare("gradient norms", name, &found.norm(), norm);
                if let Some(expected) = fixture.expected.get(&format!("grad/{name}")) {
                    report.compare("gradients", name, &found, expected);
                }
            }
        }
        let theirs = norms.len();
        if theirs != known {
            report.problems.push(format!("the reference has {theirs} gradients, and {known} of them are known here"));
        }
    }

    /// Gradients with activations computed again are the same as those of the last step, which kept them.
    fn compare_recomputed(
        &mut self,
        documents: &[&Document],
        scale: f64,
        report: &mut ParityReport,
    ) -> Result<(), ParityError> {
        let gradients = |models: &Models| models.pools().map(|(_, grads)| grads.flat().copy()).collect::<Vec<_>>();
        let kept = gradients(self);
        self.policy = Policy::Recompute;
        self.step(documents, scale)?;
        self.policy = Policy::Keep;
        for (kept, again) in kept.iter().zip(gradients(self)) {
            report.compare("recomputed", "all gradients", &again, kept);
        }
        Ok(())
    }

    /// One of the fixture's steps of AdamW, with the norm clipped over both pools: the loss and the norm before it.
    pub fn update(&mut self, fixture: &Fixture, documents: &[&Document]) -> Result<(f64, f64), ParityError> {
        let loss = self.step(documents, 1.0 / fixture.num_targets() as f64)?.total;
        let squares = self.pools().map(|(_, grads)| grads.flat().square().sum(Kind::Double).double_value(&[]));
        let norm = squares.sum::<f64>().sqrt();
        let clip = (fixture.clip_norm / (norm + 1e-6)).min(1.0);
        let text = &mut self.text;
        text.adamw.step(text.grads.flat(), clip, fixture.learning_rate, false)?;
        if let Some(vision) = &mut self.vision {
            vision.adamw.step(vision.grads.flat(), clip, fixture.learning_rate, false)?;
        }
        Ok((loss, norm))
    }

    /// The fixture's steps, and what they make of the weights.
    fn train(
        &mut self,
        fixture: &Fixture,
        documents: &[&Document],
        report: &mut ParityReport,
    ) -> Result<(), ParityError> {
        let (mut losses, mut norms) = (Vec::new(), Vec::new());
        for _ in 0..fixture.num_steps {
            let (loss, norm) = self.update(fixture, documents)?;
            losses.push(loss);
            norms.push(norm);
        }
        losses.push(self.step(documents, 1.0 / fixture.num_targets() as f64)?.total);
        for (quantity, found) in [("adamw.loss", losses), ("adamw.grad_norm", norms)] {
            if let Some(expected) = fixture.expected.get(quantity) {
                report.compare(quantity, quantity, &Tensor::from_slice(&found), expected);
            }
        }
        for (params, _) in self.pools() {
            for (name, found) in reference_parts(params, |id| params.leaf(id).detach()) {
                if let Some(expected) = fixture.expected.get(&format!("adamw.weight_norm/{name}")) {
                    report.compare("adamw.weight_norm", &name, &found.norm(), expected);
                }
            }
        }
        Ok(())
    }

    pub fn pools(&self) -> impl Iterator<Item = (&Rc<ParamStore>, &GradBuffer)> {
        let vision = self.vision.as_ref().map(|vision| (&vision.params, &vision.grads));
        std::iter::once((&self.text.params, &self.text.grads)).chain(vision)
    }
}

/// Tensors of the trained parameters' shapes as the reference names their parts.
pub(crate) fn reference_parts(params: &ParamStore, tensor: impl Fn(ParamId) -> Tensor) -> Vec<(String, Tensor)> {
    let adapters = names_in_file(params);
    let named = |name: &str| {
        let name = adapters.get(name).map_or(name, String::as_str);
        name.strip_prefix(PREFIX).unwrap_or(name).to_owned()
    };
    let of_one = |id: ParamId| {
        let tensor = tensor(id);
        params.spec(id).parts(&tensor).into_iter().map(|(name, part)| (named(name), part)).collect::<Vec<_>>()
    };
    params.trained_ids().flat_map(of_one).collect()
}
