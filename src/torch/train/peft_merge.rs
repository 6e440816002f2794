//! Adapters added to their base in its files, a tensor at a time: no model is built.

use super::hf::{Checkpoint, TensorFile};
use super::peft::{AdapterError, CONFIG, ENCODER_PREFIX, TENSORS, placed, read_config};
use crate::nn::{LinearModule, ParamSpec, Piece};
use std::collections::{BTreeMap, BTreeSet};
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
    a: Tensor,
    b: Tensor,
    /// As many maps as the parameter stacks.
    stacked: Option<i64>,
    scale: f64,
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
            let (config, path) = (folder.join(format!("{prefix}{CONFIG}")), folder.join(format!("{prefix}{TENSORS}")));
            if !config.is_file() {
                continue;
            }
            let (config, file) = (read_config(&config)?, TensorFile::open(&path)?);
            let found = placed(specs, &config, &file);
            let known: BTreeSet<&String> = found.iter().map(|(_, name)| name).collect();
            let extra = file.tensors().keys().filter(|name| !known.contains(name));
            let mut problems: Vec<String> = extra.map(|name| format!("{name} has no place in the model")).collect();
            for (spec, name) in &found {
                match file.tensors().get(name).map(|info| &info.shape) {
                    Some(shape) if *shape == spec.shape => {}
                    Some(shape) => {
                        problems.push(format!("{name} is {shape:?}, and the model asks for {:?}", spec.shape))
                    }
                    None => problems.push(format!("{name} is missing")),
                }
            }
            if !problems.is_empty() {
                return Err(AdapterError::Mismatch { path, problems });
            }
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
                pairs.push(Pair { a: read(&two[0].1)?, b: read(&two[1].1)?, stacked, scale: config.lora.scale() });
            }
        }
        Ok(Self { pairs, places })
    }

    /// What is added to the base's tensor of this name, in its shape; `None` where nothing is.
    pub fn product(&self, name: &str) -> Option<Tensor> {
        let (pair, piece) = self.places.get(name)?;
        let Pair { a, b, stacked, scale } = &self.pairs[*pair];
        let (product, piece) = match (stacked, piece.index) {
            (None, _) => (b.matmul(a), piece.clone()),
            (Some(count), index) => {
                // `[E·r, I]` and `[O, r·E]`, as in `nn::moe`; of one expert only where the tensor has one only.
                let a = a.view([*count, -1, a.size()[1]]);
                let b = b.view([b.size()[0], -1, *count]).permute([2, 0, 1]);
                match index {
                    Some(index) => (b.get(index).matmul(&a.get(index)), Piece { index: None, ..piece.clone() }),
                    None => (b.matmul(&a), piece.clone()),
                }
            }
        };
        Some(piece.view(&(product * *scale)))
    }
}
