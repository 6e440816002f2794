//! Adapters added to their base: in its files, a tensor at a time, where no model is built; or in a model's parameters.

use super::averages::Averages;
use super::error::AdapterError;
use super::folder::{AdapterFolder, Contents};
use super::pair::{Pair, adapters, merged};
use crate::model::ModelConfig;
use crate::params::{ADAPTER_PARTS, LinearModule, ParamSpec, ParamStore, StoredTensor};
use crate::train::hf::Checkpoint;
use std::collections::BTreeMap;
use std::path::Path;
use tch::{Kind, Tensor};

/// Prediction heads that adapters may stand beside.
const MAX_HEADS: usize = 16;

/// The adapters of a folder, in memory, by the tensors of their base that they change.
pub struct Adapters {
    /// The changes, with the names of the parameters that they change.
    changes: Vec<(String, Change)>,
    /// The change and the part of the parameter that a tensor holds, by the tensor's name.
    places: BTreeMap<String, (usize, StoredTensor)>,
    /// The shapes in the model of tables of tokens of which the base has fewer rows, by the tensors' names.
    grown: BTreeMap<String, Vec<i64>>,
}

/// Says what becomes of a parameter.
enum Change {
    Adapter(Pair),
    /// Another value, in its shape.
    Whole(Tensor),
}

impl Adapters {
    /// Reads the adapters in `folder` for this model, whose weights are in `base`.
    ///
    /// # Errors
    /// Fails as [`read_adapter_config`](super::read_adapter_config) does, and names all tensors that have no place in the model.
    pub fn open(folder: &Path, model: &ModelConfig, base: &Checkpoint) -> Result<Self, AdapterError> {
        Self::of(&AdapterFolder::open(folder)?, model, base)
    }

    /// Works like [`Adapters::open`] with the averages of the adapters (`train.ema`) in their place.
    ///
    /// # Errors
    /// Fails as [`Adapters::open`] does, and where the folder has no averages.
    pub fn open_averages(folder: &Path, model: &ModelConfig, base: &Checkpoint) -> Result<Self, AdapterError> {
        Self::of(&AdapterFolder::open(folder)?.with_averages(folder)?, model, base)
    }

    fn of(folder: &AdapterFolder, model: &ModelConfig, base: &Checkpoint) -> Result<Self, AdapterError> {
        let (specs, contents) = contents(model, folder)?;
        folder.expect_all([&contents])?;
        let by_name: BTreeMap<&str, &ParamSpec> = specs.iter().map(|spec| (spec.name.as_str(), spec)).collect();
        let by_path: BTreeMap<String, &ParamSpec> =
            specs.iter().filter_map(|spec| Some((LinearModule::of(spec)?.path, spec))).collect();
        let (mut changes, mut places) = (Vec::new(), BTreeMap::new());
        let mut change = |spec: &ParamSpec, change: Change| {
            for piece in base.pieces(spec) {
                places.insert(piece.name.clone(), (changes.len(), piece));
            }
            changes.push((spec.name.clone(), change));
        };
        for found in &contents.adapters {
            let parts = folder.tensors_of(found)?.into_iter().map(|part| part.to_kind(Kind::Float)).collect();
            let pair = Pair::new(parts, found.module.stacked, found.lora.scale());
            change(by_path[&found.module.path], Change::Adapter(pair));
        }
        for found in &contents.whole {
            let spec = by_name[found.name.as_str()];
            change(spec, Change::Whole(folder.whole(found, spec.whole_shape())?));
        }
        let pieces = specs.iter().flat_map(|spec| base.pieces(spec));
        let grown = pieces.filter(|piece| base.is_short_of(piece)).map(|piece| (piece.name, piece.shape)).collect();
        Ok(Self { changes, places, grown })
    }

    /// Returns the averages of the weights (`train.ema`) in a checkpoint, in place of the weights.
    ///
    /// # Errors
    /// The checkpoint has none or those of adapters, or a file is torn.
    pub fn averages(folder: &Path, model: &ModelConfig, base: &Checkpoint) -> Result<Self, AdapterError> {
        let averages = Averages::open(folder)?;
        averages.expect_of_weights()?;
        let (mut changes, mut places) = (Vec::new(), BTreeMap::new());
        for spec in model.specs() {
            let Some(average) = averages.find(&spec.name)? else { continue };
            for piece in base.pieces(&spec) {
                places.insert(piece.name.clone(), (changes.len(), piece));
            }
            changes.push((spec.name, Change::Whole(average.view(spec.shape.as_slice()).to_kind(Kind::Float))));
        }
        Ok(Self { changes, places, grown: BTreeMap::new() })
    }

    /// Returns whether the base's tensor of this name is changed.
    pub fn changes(&self, name: &str) -> bool {
        self.places.contains_key(name) || self.grown.contains_key(name)
    }

    /// Returns the shapes in the model of the base's tables of tokens that have fewer rows than there, by the tensors' names: the model
    /// has grown (`model.resize_embeddings`).
    pub fn grown(&self) -> &BTreeMap<String, Vec<i64>> {
        &self.grown
    }

    /// Returns the new value of the base's tensor of this name, `base` `[…]` in float32, in its shape or in that of [`Adapters::grown`].
    pub fn apply(&self, name: &str, base: &Tensor) -> Tensor {
        let base = self.grow(name, base);
        let Some((change, piece)) = self.places.get(name) else { return base };
        match &self.changes[*change].1 {
            Change::Adapter(pair) => pair.apply(&base, Some(piece)),
            Change::Whole(value) => piece.view(value),
        }
    }

    /// Returns a table of tokens with the rows that the base lacks: they are the mean of the others, as a run begins with them.
    fn grow(&self, name: &str, base: &Tensor) -> Tensor {
        let Some([rows, width]) = self.grown.get(name).map(Vec::as_slice) else { return base.shallow_clone() };
        let mean = base.mean_dim([0i64].as_slice(), true, Kind::Double).to_kind(base.kind());
        let new = mean.expand([rows - base.size()[0], *width], false);
        Tensor::cat(&[base.shallow_clone(), new], 0)
    }

    /// Changes those of their parameters that `params` has, whole and of the base's values.
    pub fn add_to(&self, params: &ParamStore) {
        for (base, change) in &self.changes {
            let Some(id) = params.find(base) else { continue };
            let value = params.value(id);
            let cpu = value.to_device(tch::Device::Cpu).to_kind(Kind::Float);
            params.set(
                id,
                &match change {
                    Change::Adapter(pair) => pair.apply(&cpu, None),
                    Change::Whole(value) => value.shallow_clone(),
                },
            );
        }
    }
}

/// Returns the parameters of the model, with as many prediction heads as the adapters stand beside, and the contents of the folder that
/// belong to them. A config does not say which heads were trained.
fn contents(model: &ModelConfig, folder: &AdapterFolder) -> Result<(Vec<ParamSpec>, Contents), AdapterError> {
    let with = |num_heads: usize| -> Option<Result<_, AdapterError>> {
        let mut model = model.clone();
        let mut enable = || model.edit_decoder(|decoder| decoder.enable_mtp(num_heads, 0.0)) == Some(true);
        (num_heads == 0 || enable()).then(|| {
            let specs = model.specs();
            let contents = folder.contents(&specs, &model.tree)?;
            Ok((specs, contents))
        })
    };
    for found in (0..=MAX_HEADS).map_while(with) {
        let found = found?;
        if folder.is_all(&found.1) {
            return Ok(found);
        }
    }
    with(0).expect("the model as its config says")
}

/// Adds the adapters' products to their base and sets the adapters to nothing.
pub fn merge_adapter(params: &ParamStore) {
    let _no_grad = tch::no_grad_guard();
    for (module, _, _) in adapters(params).filter(|(_, part, _)| *part == 0) {
        let base = params.find(module).unwrap_or_else(|| params.id(&format!("{module}.weight")));
        params.set(base, &merged(params, base));
        let _ = params.leaf(params.id(&format!("{module}{}", ADAPTER_PARTS[1]))).detach().zero_();
    }
}
