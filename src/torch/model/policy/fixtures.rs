//! What tests of policies have in common: folders of fixtures, and a policy and its tower through forward and backward.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use loongforge_core::message::{Grid, ItemMeta, SampleId, Tower};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use crate::model::batch::{MicroBatch, SampleRow};
use crate::model::columns::Columns;
use crate::model::encoder::EncoderFamily;
use crate::model::foundation::FoundationTape;
use crate::model::objective::NoisePurpose;
use crate::params::{GradBuffer, ParamSpec, ParamStore};
use crate::tape::{Execution, Policy};

/// The share of the largest gradient of all that a tensor's largest value is set to for its tolerance, if it is below: those of
/// biases of keys are sums that cancel.
const SMALL: f64 = 1e-3;

/// The folders of fixtures whose names begin with one of these words. There is one at least.
pub fn folders(begin: &[&str]) -> Vec<PathBuf> {
    let committed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies");
    let folder = std::env::var_os("LOONGFORGE_POLICIES").map_or_else(committed, PathBuf::from);
    let mut found: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| begin.iter().any(|begin| name(path).starts_with(begin)));
    found.sort();
    assert!(!found.is_empty(), "{} has no fixture of {begin:?}", folder.display());
    found
}

pub fn name(folder: &Path) -> String {
    folder.file_name().unwrap().to_string_lossy().into_owned()
}

pub fn json(path: PathBuf) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub fn tensors(path: PathBuf) -> BTreeMap<String, Tensor> {
    Tensor::read_safetensors(path).unwrap().into_iter().collect()
}

/// The share of the largest expected value that the largest difference is.
pub fn error(found: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(found.size(), expected.size());
    (found - expected).abs().max().double_value(&[]) / expected.abs().max().double_value(&[])
}

/// The numbers of samples, `[N]`, int64.
pub fn index(samples: &[usize]) -> Tensor {
    Tensor::from_slice(&samples.iter().map(|sample| *sample as i64).collect::<Vec<_>>())
}

/// These samples of what is drawn, `[K, N, …]`: samples in their order, and the draws of each side by side, `[N·K, …]`.
pub fn draws_of(x: &Tensor, samples: &[usize]) -> Tensor {
    x.transpose(0, 1).index_select(0, &index(samples)).contiguous().flatten(0, 1)
}

/// Parameters with weights; `ours` is the policy's name of a stored tensor.
pub fn store(
    specs: Vec<ParamSpec>,
    weights: &BTreeMap<String, Tensor>,
    kind: Kind,
    ours: impl Fn(&str) -> String,
) -> Rc<ParamStore> {
    let params = ParamStore::new(specs, kind, Device::Cpu);
    let weights: BTreeMap<String, &Tensor> = weights.iter().map(|(name, value)| (ours(name), value)).collect();
    for id in params.ids() {
        let found = params.spec(id).pieces.iter().find_map(|piece| weights.get(&piece.name));
        params.set(id, found.unwrap_or_else(|| panic!("no {}", params.spec(id).name)));
    }
    Rc::new(params)
}

/// The row of a training sample with pictures of these sizes.
pub fn row(
    sample: usize,
    num_tokens: usize,
    num_targets: u32,
    grids: Vec<Grid>,
    tower: &dyn EncoderFamily,
) -> SampleRow {
    let item = |grid: Grid| ItemMeta { tower: Tower::Vision, grid, num_features: tower.num_features(grid) as u32 };
    SampleRow {
        id: SampleId(sample as u64),
        num_tokens,
        num_targets,
        target: None,
        items: grids.into_iter().map(item).collect(),
        purpose: NoisePurpose::Training,
    }
}

/// A batch of these samples.
pub fn batch((columns, cu_seqlens): (Columns, Vec<usize>), rows: Vec<SampleRow>, loss_scale: f64) -> MicroBatch {
    let num_features = rows.iter().flat_map(|row| &row.items).map(|item| i64::from(item.num_features)).sum();
    MicroBatch {
        columns,
        cu_seqlens,
        samples: rows.into(),
        loss_scale,
        num_features: vec![num_features],
        feature_grads: true,
        row: None,
        shared_features: Vec::new(),
        past: None,
        evaluates: false,
    }
}

/// What a forward and backward come to.
pub struct Found {
    pub loss: f64,
    pub grads: GradBuffer,
    pub of_tower: GradBuffer,
}

/// A policy's parameters, and its tower on its own.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub params: &'a Rc<ParamStore>,
    pub tower: &'a dyn EncoderFamily,
    pub of_tower: &'a Rc<ParamStore>,
    /// False if the reference has no gradients of the tower, because the config freezes it.
    pub trains_tower: bool,
}

impl Parts<'_> {
    /// The features of pictures, `[F, D]` of each tensor of the tower.
    pub fn features(&self, (pixels, grids): (Tensor, Vec<Grid>)) -> Vec<Tensor> {
        let made = self.tower.build(self.of_tower, Policy::Keep).record(&grids);
        let mut run = Execution::forward_only(made.tape, self.of_tower.clone(), vec![(made.pixels, pixels)]);
        run.forward().unwrap();
        made.outputs.iter().map(|slot| run.value(*slot).shallow_clone()).collect()
    }

    /// Runs the tower, the policy's tape, and both back.
    pub fn run(&self, tape: FoundationTape, (pixels, grids): (Tensor, Vec<Grid>), policy: Policy) -> Found {
        let made = self.tower.build(self.of_tower, policy).record(&grids);
        let mut encoding = Execution::new(made.tape, self.of_tower.clone(), vec![(made.pixels, pixels)]);
        encoding.forward().unwrap();
        assert_eq!(tape.features[0].len(), made.outputs.len());
        let pairs: Vec<_> = tape.features[0].iter().copied().zip(made.outputs).collect();
        let inputs = pairs.iter().map(|(slot, output)| (*slot, encoding.value(*output).shallow_clone())).collect();
        let mut run = Execution::new(tape.tape, self.params.clone(), inputs);
        run.forward().unwrap();
        let loss = run.value(tape.loss.unwrap()).double_value(&[]);
        run.seed(tape.loss.unwrap(), Tensor::from(1f64));
        let (mut grads, mut of_tower) = (self.params.new_grad(), self.of_tower.new_grad());
        run.backward(Some(&mut grads)).unwrap();
        let of_features: Vec<_> =
            pairs.iter().filter_map(|(slot, output)| Some((*output, run.input_grad(*slot)?))).collect();
        // All or none: a policy without a gradient of its features has a prefix that learns nothing.
        assert!(of_features.is_empty() || of_features.len() == pairs.len());
        if !of_features.is_empty() {
            of_features.into_iter().for_each(|(output, grad)| encoding.seed(output, grad));
            encoding.backward(Some(&mut of_tower)).unwrap();
        }
        Found { loss, grads, of_tower }
    }

    /// The largest error of gradients, with its parameter, as [`gradients`] has it.
    pub fn gradients(&self, found: &Found, expected: &BTreeMap<String, Tensor>) -> (f64, String) {
        let of_tower = self.trains_tower.then_some((&**self.of_tower, &found.of_tower));
        gradients(std::iter::once((&**self.params, &found.grads)).chain(of_tower), expected)
    }
}

/// The largest error of gradients, with its parameter. `expected` has those of all trained parameters, and no others, each behind
/// `grad/`.
pub fn gradients<'a>(
    found: impl IntoIterator<Item = (&'a ParamStore, &'a GradBuffer)>,
    expected: &BTreeMap<String, Tensor>,
) -> (f64, String) {
    let mut left: BTreeMap<&str, &Tensor> =
        expected.iter().filter_map(|(name, grad)| Some((name.strip_prefix("grad/")?, grad))).collect();
    let most = left.values().map(|grad| grad.abs().max().double_value(&[])).fold(0f64, f64::max);
    let mut largest = (0f64, String::new());
    for (params, grads) in found {
        for id in params.trained_ids() {
            let (spec, grad) = (params.spec(id), grads.view(id));
            let expected = spec.pieces.iter().find_map(|piece| left.remove(piece.name.as_str()));
            let expected = expected.unwrap_or_else(|| panic!("the reference has no gradient of {}", spec.name));
            let off = (grad.view(expected.size().as_slice()) - expected).abs().max().double_value(&[]);
            let off = off / expected.abs().max().double_value(&[]).max(SMALL * most);
            // Not `max`, which drops a NaN.
            if off.is_nan() || off > largest.0 {
                largest = (off, spec.name.clone());
            }
        }
    }
    assert!(left.is_empty(), "{:?}", left.keys());
    largest
}
