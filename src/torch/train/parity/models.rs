//! The models of a fixture and what is done with them: logits of its documents, steps of AdamW.

use super::fixture::{Document, Fixture, TowerItems};
use super::state::{ModelState, ParityError};
use crate::model::{
    Decoder, EncoderModel, FeatureInput, ModelConfig, ModelTower, Targets, TextBatch, TextOptions, TreeNames,
    with_values,
};
use crate::params::{GradBuffer, ParamId, ParamStore};
use crate::tape::{Execution, Policy, Slot};
use crate::train::AdapterFolder;
use crate::train::peft::{PREFIX, names_in_file};
use loongforge_core::message::{Grid, Tower};
use std::path::Path;
use std::rc::Rc;
use tch::{Device, Kind, Tensor};

/// The parts of a step's loss.
pub(super) struct Loss {
    pub total: f64,
    /// The routers' weighted part of it.
    pub of_routers: f64,
    /// The load-balancing loss, unweighted.
    pub aux: Option<f64>,
}

pub(super) struct Models {
    pub text: ModelState<Decoder>,
    /// The towers, in the order of the decoder's inputs.
    pub towers: Vec<(FeatureInput, ModelState<Box<dyn EncoderModel>>)>,
    pub device: Device,
    /// The values of the last step.
    pub mixer_losses: Vec<f64>,
    /// The policy of the decoder's segments.
    pub policy: Policy,
}

/// Returns the outputs of each tower; nothing without items.
fn values(encoded: &[Option<(Execution, Vec<Slot>)>]) -> Vec<Vec<Tensor>> {
    let of_tower = |encoded: &Option<(Execution, Vec<Slot>)>| {
        let outputs = encoded.iter().flat_map(|(run, slots)| slots.iter().map(|slot| run.value(*slot)));
        outputs.map(Tensor::shallow_clone).collect()
    };
    encoded.iter().map(of_tower).collect()
}

impl Models {
    /// Loads the weights in `folder` into the models of a fixture.
    ///
    /// # Errors
    /// The weights cannot be read, or do not fit.
    pub fn load(fixture: &Fixture, config: &ModelConfig, folder: &Path) -> Result<Models, ParityError> {
        if fixture.has_adapter {
            let adapter = AdapterFolder::open(folder)?;
            let specs = [config.towers.specs(), config.foundation.specs()].concat();
            adapter.expect_all([&adapter.contents(&specs, &config.tree)?])?;
        }
        let decoder = config.decoder().expect("a fixture of a language model");
        let text = ModelState::new(config.foundation.specs(), fixture, folder, |params| Decoder::new(decoder, params))?;
        let tower = |(it, input): (&ModelTower, &FeatureInput)| {
            let build = |params: &ParamStore| it.family.build(params, Policy::Keep);
            Ok::<_, ParityError>((input.clone(), ModelState::new(it.family.specs(), fixture, folder, build)?))
        };
        let towers = config.towers.iter().zip(config.inputs()).map(tower);
        Ok(Models {
            text,
            towers: towers.collect::<Result<_, _>>()?,
            device: fixture.device,
            mixer_losses: Vec::new(),
            policy: Policy::Keep,
        })
    }

    /// Counts documents as `len` tokens long where a rotary embedding depends on the length: the reference takes the padded
    /// length of a batch.
    pub fn count_documents_as(&mut self, len: i64) {
        let mut config = self.text.model.config().clone();
        let scaled = config.all_layers_mut().map(|layer| &mut layer.rope);
        let mut changed = false;
        for rope in scaled.filter(|rope| rope.depends_on_length() && rope.min_seq_len != len) {
            (rope.min_seq_len, changed) = (len, true);
        }
        if changed {
            self.text.model = Decoder::new(&config, &self.text.params);
        }
    }

    /// Returns the towers' executions over the documents' items, after their forwards; `None` of a tower without items.
    pub fn encode(&self, documents: &[&Document], train: bool) -> Vec<Option<(Execution, Vec<Slot>)>> {
        self.towers.iter().map(|(input, state)| self.encode_by(input.tower, state, documents, train)).collect()
    }

    fn encode_by(
        &self,
        tower: Tower,
        state: &ModelState<Box<dyn EncoderModel>>,
        documents: &[&Document],
        train: bool,
    ) -> Option<(Execution, Vec<Slot>)> {
        let items: Vec<&TowerItems> = documents.iter().filter_map(|document| document.items_of(tower)).collect();
        let grids: Vec<Grid> = items.iter().flat_map(|items| items.grids.clone()).collect();
        let values: Vec<&Tensor> = items.iter().map(|items| &items.values).collect();
        if values.is_empty() {
            return None;
        }
        let made = state.model.record(&grids);
        let inputs = vec![(made.pixels, Tensor::cat(&values, 0).to_device(self.device))];
        let begin = if train { Execution::new } else { Execution::forward_only };
        let mut execution = begin(made.tape, state.params.clone(), inputs);
        execution.forward().expect("there is no other rank");
        Some((execution, made.outputs))
    }

    /// Returns the outputs of each tower for the documents' items; none without items. Each level is `[features, D]`.
    pub fn features(&self, documents: &[&Document]) -> Vec<Vec<Tensor>> {
        values(&self.encode(documents, false))
    }

    fn feature_tensors(&self) -> Vec<usize> {
        self.towers.iter().map(|(input, _)| input.num_tensors).collect()
    }

    /// Makes a packed row of documents.
    pub fn batch(&self, documents: &[&Document]) -> TextBatch {
        let input_ids: Vec<i64> = documents.iter().flat_map(|document| document.input_ids.clone()).collect();
        let positions: Vec<&Tensor> = documents.iter().map(|document| &document.position_ids).collect();
        let mut cu_seqlens = vec![0];
        documents
            .iter()
            .for_each(|document| cu_seqlens.push(cu_seqlens[cu_seqlens.len() - 1] + document.input_ids.len()));
        let labels: Vec<i64> = documents.iter().flat_map(|document| document.targets.clone()).collect();
        let mask = self.text.model.config().sees.mask_of(&input_ids, &cu_seqlens, &labels);
        let no_positions = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
        TextBatch {
            feature_rows: self.towers.iter().map(|(input, _)| input.rows(&input_ids)).collect(),
            input_ids: Tensor::from_slice(&input_ids).to_device(self.device),
            position_ids: match positions.is_empty() {
                // An empty row.
                true if self.text.model.config().has_three_axes() => no_positions(&[3, 0]),
                true => no_positions(&[0]),
                false => Tensor::cat(&positions, -1),
            }
            .to_device(self.device),
            cu_seqlens,
            mask,
            row: None,
            past: None,
            shared: None,
        }
    }

    /// Returns the logits `[T, V]` of the documents as one packed row, and the results of each router: its layer's name in the reference,
    /// and logits, weights and experts.
    pub fn logits(&self, documents: &[&Document]) -> (Tensor, Vec<(String, [Tensor; 3])>) {
        let _no_grad = tch::no_grad_guard();
        let options = TextOptions {
            feature_tensors: self.feature_tensors(),
            train_features: false,
            policy: Policy::Keep,
            keep_routing: true,
        };
        let made = self.text.model.tape(&self.batch(documents), None, &options);
        let inputs = with_values(&made.features, &self.features(documents));
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

    /// Returns the loss, and all gradients into the pools' buffers.
    ///
    /// # Errors
    /// An operator failed, or a document does not fit the model.
    pub fn step(&mut self, documents: &[&Document], scale: f64) -> Result<Loss, ParityError> {
        self.text.grads.zero();
        self.towers.iter_mut().for_each(|(_, tower)| tower.grads.zero());
        let encoded = self.encode(documents, true);
        let targets = Targets {
            labels: documents.iter().flat_map(|document| document.targets.clone()).collect(),
            weights: None,
            scale,
            evaluates: false,
            answers: None,
            noise: None,
        };
        let options = TextOptions {
            feature_tensors: self.feature_tensors(),
            train_features: true,
            policy: self.policy,
            keep_routing: false,
        };
        let made = self.text.model.tape(&self.batch(documents), Some(&targets), &options);
        let inputs = with_values(&made.features, &values(&encoded));
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
        for ((encoded, slots), (_, tower)) in encoded.into_iter().zip(&made.features).zip(&mut self.towers) {
            let Some((mut encoder, outputs)) = encoded else { continue };
            for (slot, output) in slots.iter().zip(outputs) {
                execution.input_grad(*slot).into_iter().for_each(|grad| encoder.seed(output, grad));
            }
            encoder.backward(Some(&mut tower.grads))?;
        }
        Ok(loss)
    }

    /// Takes one of the fixture's steps of AdamW, with the norm clipped over both pools; returns the loss and the norm before clipping.
    ///
    /// # Errors
    /// Fails as [`Models::step`] does.
    pub fn update(&mut self, fixture: &Fixture, documents: &[&Document]) -> Result<(f64, f64), ParityError> {
        let loss = self.step(documents, 1.0 / fixture.num_targets() as f64)?.total;
        let squares = self.pools().map(|(_, grads)| grads.flat().square().sum(Kind::Double).double_value(&[]));
        let norm = squares.sum::<f64>().sqrt();
        let clip = (fixture.clip_norm / (norm + 1e-6)).min(1.0);
        let text = &mut self.text;
        text.adamw.step(text.grads.flat(), clip, fixture.learning_rate, false)?;
        for (_, tower) in &mut self.towers {
            tower.adamw.step(tower.grads.flat(), clip, fixture.learning_rate, false)?;
        }
        Ok((loss, norm))
    }

    /// Returns parameters and gradients of the language model and of each tower.
    pub fn pools(&self) -> impl Iterator<Item = (&Rc<ParamStore>, &GradBuffer)> {
        let towers = self.towers.iter().map(|(_, tower)| (&tower.params, &tower.grads));
        std::iter::once((&self.text.params, &self.text.grads)).chain(towers)
    }
}

/// Returns the tensors of the trained parameters' shapes as the reference names their parts.
pub(crate) fn reference_parts(
    params: &ParamStore,
    tree: &TreeNames,
    tensor: impl Fn(ParamId) -> Tensor,
) -> Vec<(String, Tensor)> {
    let adapters = names_in_file(params, tree);
    // Beside adapters the reference is PEFT's, which goes by modules.
    let named = |name: &str| match adapters.get(name) {
        Some(name) => name.strip_prefix(PREFIX).unwrap_or(name).to_owned(),
        None if adapters.is_empty() => name.to_owned(),
        None => tree.name(name),
    };
    let of_one = |id: ParamId| {
        let tensor = tensor(id);
        params.spec(id).parts(&tensor).into_iter().map(|(name, part)| (named(name), part)).collect::<Vec<_>>()
    };
    params.trained_ids().flat_map(of_one).collect()
}
