//! Adapters added to their base: in its files, a tensor at a time, where no model is built; or in a model's parameters.

use super::hf::{Checkpoint, TensorFile};
use super::peft::{AdapterError, CONFIG, ENCODER_PREFIX, TENSORS, expect_fit, placed, read_config};
use crate::nn::moe::stacked_product;
use crate::nn::{LinearModule, ParamSpec, ParamStore, Piece};
use std::collections::BTreeMap;
use std::path::Path;
use tch::{Kind, Tensor};

/// The adapters of a folder, in memory, by the tensors of their base that they change.
pub struct Adapters {
    pairs: Vec<Pair>,
    /// The pair and the part of the parameter that a tensor holds, by the tensor's name.
    places: BTreeMap<String, (usize, Piece)>,
}

/// What one parameter gets, in float32: `scale · B A`.
struct Pair {
    /// The parameter's name.
    base: String,
    a: Tensor,
    b: Tensor,
    /// As many maps as the parameter stacks.
    stacked: Option<i64>,
    scale: f64,
}

impl Pair {
    /// In the shape of the parameter, or of one of the maps that it stacks.
    fn product(&self, index: Option<i64>) -> Tensor {
        let product = match self.stacked {
            Some(count) => stacked_product(&self.a, &self.b, count, index),
            None => self.b.matmul(&self.a),
        };
        product * self.scale
    }
}

impl Adapters {
    /// Reads the adapters in `folder` for the model with all of `specs`, whose weights are in `base`.
    ///
    /// # Errors
    /// As [`read_adapter_config`](super::read_adapter_config), and all adapters that have no place in the model.
    pub fn open(folder: &Path, specs: &[ParamSpec], base: &Checkpoint) -> Result<Self, AdapterError> {
        let by_path: BTreeMap<String, &ParamSpec> =
            specs.iter().filter_map(|spec| Some((LinearModule::of(spec)?.path, spec))).collect();
        let (mut pairs, mut places) = (Vec::new(), BTreeMap::new());
        for prefix in ["", ENCODER_PREFIX] {
            let config = folder.join(format!("{prefix}{CONFIG}"));
            if !config.is_file() {
                continue;
            }
            let config = read_config(&config)?;
            let file = TensorFile::open(&folder.join(format!("{prefix}{TENSORS}")))?;
            let found = placed(specs, &config, &file);
            expect_fit(&file, found.iter().map(|(spec, name)| (name, spec.shape.as_slice())))?;
            let read = |name: &str| -> Result<Tensor, AdapterError> {
                Ok(file.read(name)?.expect("its shape was found").to_kind(Kind::Float))
            };
            // Each module's A and B follow one another.
            for two in found.chunks_exact(2) {
                let module = two[0].0.name.strip_suffix(".lora_A.weight").expect("adapters begin with A");
                let spec = by_path[module];
                for piece in base.pieces(spec) {
                    places.insert(piece.name.clone(), (pairs.len(), piece));
                }
                let stacked = LinearModule::of(spec).and_then(|module| module.stacked);
                let (a, b, scale) = (read(&two[0].1)?, read(&two[1].1)?, config.lora.scale());
                pairs.push(Pair { base: spec.name.clone(), a, b, stacked, scale });
            }
        }
        Ok(Self { pairs, places })
    }

    /// What is added to the base's tensor of this name, in its shape; `None` where nothing is.
    pub fn product(&self, name: &str) -> Option<Tensor> {
        let (pair, piece) = self.places.get(name)?;
        let product = self.pairs[*pair].product(piece.index);
        Some(Piece { index: None, ..piece.clone() }.view(&product))
    }

    /// Adds them to those of their parameters that `params` has, whole and of the base's values.
    pub fn add_to(&self, params: &ParamStore) {
        for pair in &self.pairs {
            let Some(id) = params.find(&pair.base) else { continue };
            let value = params.leaf(id).detach();
            let product = pair.product(None).to_device(value.device());
            params.set(id, &(value.to_kind(Kind::Float) + product));
        }
    }
}
