//! Adapters added to their base: in its files, a tensor at a time, where no model is built; or in a model's parameters.

use super::config::{AdapterConfig, CONFIG, read_config};
use super::error::AdapterError;
use super::file::{ENCODER_PREFIX, TENSORS, adapters, expect_fit, placed};
use crate::model::{Decoder, ModelConfig};
use crate::nn::moe::stacked_product;
use crate::nn::{LinearModule, ParamId, ParamSpec, ParamStore, Piece};
use crate::train::hf::{Checkpoint, TensorFile};
use std::collections::BTreeMap;
use std::path::Path;
use tch::{Kind, Tensor};

/// Prediction heads that adapters may stand beside.
const MAX_HEADS: usize = 16;

/// The adapters of a folder, in memory, by the tensors of their base that they change.
pub struct Adapters {
    /// With the names of the parameters that they are added to.
    pairs: Vec<(String, Pair)>,
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
    /// Reads the adapters in `folder` for this model, whose weights are in `base`.
    ///
    /// # Errors
    /// As [`read_adapter_config`](super::read_adapter_config), and all adapters that have no place in the model.
    pub fn open(folder: &Path, model: &ModelConfig, base: &Checkpoint) -> Result<Self, AdapterError> {
        let (mut pairs, mut places) = (Vec::new(), BTreeMap::new());
        for prefix in ["", ENCODER_PREFIX] {
            let config = folder.join(format!("{prefix}{CONFIG}"));
            if !config.is_file() {
                continue;
            }
            let config = read_config(&config)?;
            let file = TensorFile::open(&folder.join(format!("{prefix}{TENSORS}")))?;
            let (specs, found) = placed_in(model, &config, &file);
            expect_fit(&file, found.iter().map(|(spec, name)| (name, spec.whole_shape())))?;
            let read = |name: &str| -> Result<Tensor, AdapterError> {
                Ok(file.read(name)?.expect("its shape was found").to_kind(Kind::Float))
            };
            let by_path: BTreeMap<String, &ParamSpec> =
                specs.iter().filter_map(|spec| Some((LinearModule::of(spec)?.path, spec))).collect();
            // Each module's A and B follow one another.
            for two in found.chunks_exact(2) {
                let module = two[0].0.name.strip_suffix(".lora_A.weight").expect("adapters begin with A");
                let spec = by_path[module];
                for piece in base.pieces(spec) {
                    places.insert(piece.name.clone(), (pairs.len(), piece));
                }
                let stacked = LinearModule::of(spec).and_then(|module| module.stacked);
                let (a, b, scale) = (read(&two[0].1)?, read(&two[1].1)?, config.lora.scale());
                pairs.push((spec.name.clone(), Pair { a, b, stacked, scale }));
            }
        }
        Ok(Self { pairs, places })
    }

    /// What is added to the base's tensor of this name, in its shape; `None` where nothing is.
    pub fn product(&self, name: &str) -> Option<Tensor> {
        let (pair, piece) = self.places.get(name)?;
        let product = self.pairs[*pair].1.product(piece.index);
        Some(Piece { index: None, ..piece.clone() }.view(&product))
    }

    /// Adds them to those of their parameters that `params` has, whole and of the base's values.
    pub fn add_to(&self, params: &ParamStore) {
        for (base, pair) in &self.pairs {
            let Some(id) = params.find(base) else { continue };
            let value = params.leaf(id).detach();
            let product = pair.product(None).to_device(value.device());
            params.set(id, &(value.to_kind(Kind::Float) + product));
        }
    }
}

/// The parameters of the model, with as many prediction heads as the adapters stand beside, and the adapters' own with their
/// names in the file. A config does not say which heads were trained.
fn placed_in(
    model: &ModelConfig,
    config: &AdapterConfig,
    file: &TensorFile,
) -> (Vec<ParamSpec>, Vec<(ParamSpec, String)>) {
    let with = |num_heads: usize| {
        let mut decoder = model.decoder.clone();
        (num_heads == 0 || decoder.enable_mtp(num_heads, 0.0)).then(|| {
            let mut specs = Decoder::specs(&decoder);
            specs.extend(model.encoder.iter().flat_map(|family| family.specs()));
            let found = placed(&specs, config, file);
            (specs, found)
        })
    };
    let has_all = |(_, found): &(_, Vec<_>)| found.len() == file.tensors().len();
    (0..=MAX_HEADS).map_while(with).find(has_all).unwrap_or_else(|| with(0).expect("the model as its config says"))
}

/// Adds the adapters' products to their base and sets the adapters to nothing.
pub fn merge_adapter(params: &ParamStore) {
    let _no_grad = tch::no_grad_guard();
    for (module, id) in adapters(params).filter(|(_, id)| params.spec(*id).adapter.is_some()) {
        let base = base(params, module);
        params.set(base, &merged(params, base));
        let b = params.find(&params.spec(id).name.replace(".lora_A.", ".lora_B.")).expect("adapters come in twos");
        let _ = params.leaf(b).detach().zero_();
    }
}

/// A parameter with the product of its adapter added, in float32, where it has one; else as it is.
pub fn merged(params: &ParamStore, id: ParamId) -> Tensor {
    let (value, spec) = (params.leaf(id).detach(), params.spec(id));
    let Some(module) = LinearModule::of(spec) else { return value };
    let Some(a) = params.find(&format!("{}.lora_A.weight", module.path)) else { return value };
    let _no_grad = tch::no_grad_guard();
    let float = |id| params.leaf(id).detach().to_kind(Kind::Float);
    let b = params.id(&format!("{}.lora_B.weight", module.path));
    let scale = params.spec(a).adapter.expect("an adapter's first parameter tells its scale").scale;
    let pair = Pair { a: float(a), b: float(b), stacked: module.stacked, scale };
    (float(id) + pair.product(None)).to_kind(value.kind())
}

/// The parameter that the adapter of `module` stands beside.
fn base(params: &ParamStore, module: &str) -> ParamId {
    params.find(module).unwrap_or_else(|| params.id(&format!("{module}.weight")))
}
