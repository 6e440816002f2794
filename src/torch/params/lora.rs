//! Low-rank adaptation (Hu et al. 2021): beside a frozen linear map a product of two narrow ones is trained,
//! `y = W x + (alpha / r) B A x`. Names and defaults are PEFT's (`LoraConfig`).
//!
//! An adapter is two more parameters under the map's name, `lora_A.weight` `[r, in]` and `lora_B.weight` `[out, r]`;
//! a model is built on a store that has them as on one that has not. Those of stacked maps, such as experts, are stacked
//! in the two dimensions of PEFT's (`target_parameters`): `[E·r, in]` and `[out, r·E]`.
//!
//! Weight-decomposed adaptation (DoRA, Liu et al. 2024) has a third parameter, `lora_magnitude_vector` `[out]`: the rows of
//! `W + (alpha / r) B A` get these norms. As in PEFT no gradient goes through the norms that they had before.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use loongforge_core::rng::mix;
use tch::{Device, Kind, Tensor};

use super::init::Init;
use super::shard::{Cut, Shard};
use super::spec::{AdapterSpec, ParamSpec};
use crate::native::linear;

/// Describes how the adapters of a part of the model are made.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    pub r: i64,
    pub alpha: f64,
    /// The dropout of the adapters' inputs, in training.
    pub dropout: f64,
    /// True if the factor is `alpha / sqrt(r)` (Kalajdzievski 2023).
    pub use_rslora: bool,
    /// True if the rows of the sum get norms that are trained.
    pub use_dora: bool,
}

/// The endings of the names of an adapter's parameters, after the path of the map that it stands beside.
pub const ADAPTER_PARTS: [&str; 3] = [".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"];

impl LoraConfig {
    /// Returns the factor of `B A x`.
    pub fn scale(&self) -> f64 {
        self.alpha / if self.use_rslora { (self.r as f64).sqrt() } else { self.r as f64 }
    }

    /// Returns the same rank with another factor of `B A x`.
    pub fn with_scale(self, scale: f64) -> Self {
        let alpha = scale * if self.use_rslora { (self.r as f64).sqrt() } else { self.r as f64 };
        Self { alpha, ..self }
    }

    /// Returns the parameters of an adapter beside the linear map `module`: A, B, and with DoRA the norms of the rows. Panics for DoRA
    /// beside a stack, which PEFT does not have either.
    pub fn specs(&self, module: &LinearModule) -> Vec<ParamSpec> {
        let path = &module.path;
        // PEFT's: Kaiming uniform with a slope of sqrt(5).
        let shard = module.shard.as_ref();
        let whole_inputs = shard.and_then(|shard| shard.shape.last()).copied().unwrap_or(module.inputs);
        let init = Init::Uniform(1.0 / (whole_inputs as f64).sqrt());
        let rows = self.r * module.stacked.unwrap_or(1);
        let a = ParamSpec::new(format!("{path}.lora_A.weight"), &[rows, module.inputs], init);
        let b = ParamSpec::new(format!("{path}.lora_B.weight"), &[module.outputs, rows], Init::Zeros);
        let adapter = Some(AdapterSpec { scale: self.scale(), dropout: self.dropout });
        // The model's own files do not have them: adapters are stored apart.
        let [a_shard, b_shard] = shard.map_or([None, None], |shard| self.shards(shard).map(Some));
        let mut specs = vec![ParamSpec { adapter, shard: a_shard, ..a }, ParamSpec { shard: b_shard, ..b }];
        if self.use_dora {
            assert!(module.stacked.is_none(), "a stack of maps has no norms of rows: {path}");
            let magnitude = ParamSpec::new(format!("{path}{}", ADAPTER_PARTS[2]), &[module.outputs], Init::Zeros);
            let of_rows = |shard: &Shard| shard.beside(&shard.shape[..1], 0, 0);
            specs.push(ParamSpec { shard: shard.map(of_rows), ..magnitude });
        }
        specs.into_iter().map(|spec| spec.stored_as(Vec::new())).collect()
    }

    /// Returns which parts of an adapter a rank holds that holds this part of the base.
    fn shards(&self, base: &Shard) -> [Shard; 2] {
        let (r, [.., outputs, inputs]) = (self.r, base.shape.as_slice()) else { unreachable!("a base is a matrix") };
        let stacked = base.shape.len() == 3;
        let experts = if stacked { base.shape[0] } else { 1 };
        let last = base.shape.len() - 1;
        let mut a = base.beside(&[r * experts, *inputs], 1, last);
        let mut b = base.beside(&[*outputs, r * experts], 0, last - 1);
        if let Some(held) = base.cuts.iter().find(|cut| stacked && cut.dim == 0) {
            let ranges = &held.ranges;
            let of_rank = |rank: i64| ranges.iter().map(move |&(start, len)| (rank * experts + start, len));
            a.cuts.push(Cut { dim: 0, ranges: ranges.iter().map(|&(start, len)| (start * r, len * r)).collect() });
            b.cuts.push(Cut { dim: 1, ranges: (0..r).flat_map(of_rank).collect() });
        }
        [a, b]
    }
}

/// A linear map that may get an adapter, or a stack of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearModule {
    /// The weight's name without `.weight`; the parameter's name, where it is a stack.
    pub path: String,
    pub inputs: i64,
    pub outputs: i64,
    /// The number of maps that one parameter holds; `None` where it is one map's weight.
    pub stacked: Option<i64>,
    /// True if it is a router's: those have adapters where `target_parameters` names them.
    pub is_router: bool,
    /// The shard of the weight; `inputs`, `outputs` and `stacked` are those of the part that is held here.
    pub shard: Option<Shard>,
}

impl LinearModule {
    /// Returns the parameter that `target_parameters` names, of a stack or a router; `None`: `target_modules` names the map.
    pub fn parameter(&self) -> Option<String> {
        match self.stacked {
            Some(_) => Some(self.path.clone()),
            None => self.is_router.then(|| format!("{}.weight", self.path)),
        }
    }

    /// Returns the sizes of the whole map, of which a rank may hold a part: outputs, inputs, and how many maps a stack has.
    fn whole(&self) -> [i64; 3] {
        match self.shard.as_ref().map(|shard| shard.shape.as_slice()) {
            Some(&[count, outputs, inputs]) => [outputs, inputs, count],
            Some(&[outputs, inputs]) => [outputs, inputs, 1],
            _ => [self.outputs, self.inputs, self.stacked.unwrap_or(1)],
        }
    }

    /// Returns the number of outputs of the whole map, of which a rank may hold some.
    pub fn whole_outputs(&self) -> i64 {
        self.whole()[0]
    }

    /// Returns the number of inputs of the whole map, of which a rank may hold some.
    pub fn whole_inputs(&self) -> i64 {
        self.whole()[1]
    }

    /// Returns how many maps the whole stack has; 1 for a single map.
    pub fn whole_stack(&self) -> i64 {
        self.whole()[2]
    }

    /// Returns the module whose weight this is, of a linear map `[out, in]` other than the head, or of a stack `[E,
    /// out, in]`.
    pub fn of(spec: &ParamSpec) -> Option<LinearModule> {
        if !spec.is_linear && !spec.is_router {
            return None;
        }
        let module = |path: &str, outputs, inputs, stacked| {
            let (path, shard) = (path.to_owned(), spec.shard.clone());
            LinearModule { path, inputs, outputs, stacked, is_router: spec.is_router, shard }
        };
        match *spec.shape.as_slice() {
            [count, outputs, inputs] => Some(module(&spec.name, outputs, inputs, Some(count))),
            [outputs, inputs] => Some(module(spec.name.strip_suffix(".weight")?, outputs, inputs, None)),
            _ => None,
        }
    }
}

/// Says which masks adapters' dropout has in a micro-batch. The same give the same, so that a segment can be computed twice.
#[derive(Clone, Debug)]
pub struct Masks {
    /// Another one for every pack or unit; the same for all parts of one.
    seed: u64,
    /// The numbers that rows which a map may read here have in the whole pack or unit `[R]`, int64. A map that reads none of these
    /// many rows reads the first ones.
    rows: Rc<[Tensor]>,
}

impl Masks {
    /// Makes the masks of `seed`. `rows` are the numbers of rows in the whole pack or unit, one tensor `[R]`, int64, for each number of
    /// rows that a map may read.
    pub fn new(seed: u64, rows: Vec<Tensor>) -> Masks {
        Masks { seed, rows: rows.into() }
    }
}

/// The present micro-batch's masks, and the run's seed.
#[derive(Clone, Default)]
pub(crate) struct DropoutSeed {
    of_batch: Rc<RefCell<Option<Masks>>>,
    of_run: Rc<Cell<u64>>,
}

impl DropoutSeed {
    pub(super) fn set(&self, of_batch: Option<Masks>) {
        self.of_batch.replace(of_batch);
    }

    pub(super) fn set_run(&self, of_run: u64) {
        self.of_run.set(of_run);
    }

    /// Returns the masks of the present batch; `None` outside of training.
    fn get(&self) -> Option<Masks> {
        let Masks { seed, rows } = self.of_batch.borrow().clone()?;
        Some(Masks { seed: seed ^ mix(self.of_run.get()), rows })
    }
}

/// The inputs of a map that a rank has, where ranks have parts of them.
pub(crate) struct HeldInputs {
    /// The numbers of the inputs among all `[in]`, int64.
    numbers: Tensor,
    num_all: i64,
}

impl HeldInputs {
    /// Returns the rows of an adapter whose first parameter has this shard; `None`: all.
    pub(super) fn of(shard: Option<&Shard>, device: Device) -> Option<HeldInputs> {
        let shard = shard?;
        let cut = shard.cuts.iter().find(|cut| cut.dim + 1 == shard.shape.len())?;
        let numbers: Vec<i64> = cut.ranges.iter().flat_map(|&(start, len)| start..start + len).collect();
        Some(HeldInputs { numbers: Tensor::from_slice(&numbers).to_device(device), num_all: shard.shape[cut.dim] })
    }
}

/// An adapter on its parameters.
pub(crate) struct Adapter {
    pub a: Tensor,
    pub b: Tensor,
    /// The norms of the rows, with DoRA.
    pub magnitude: Option<Tensor>,
    /// The norms that the rows have before, where ranks have parts of the rows: see [`ParamStore::joint_norms`].
    ///
    /// [`ParamStore::joint_norms`]: super::ParamStore::joint_norms
    pub norms: Option<Tensor>,
    pub spec: AdapterSpec,
    pub seed: DropoutSeed,
    /// `None`: all inputs are here.
    pub inputs: Option<HeldInputs>,
    /// Tells the masks of different adapters apart.
    pub key: u64,
}

impl Adapter {
    /// Maps `x` `[…, in]` to `[…, out]`: adds the adapter's share to `y` `[…, out]`, the map of `weight` `[out, in]` with its bias at `x`.
    /// These have the kind of `x`; the adapter's own may be narrower.
    pub fn add_to(&self, y: Tensor, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let dropped = self.seed.get().filter(|_| self.spec.dropout > 0.0);
        let dropped = dropped.map(|Masks { seed, rows }| {
            let places = places(x, &rows, self.inputs.as_ref());
            x * mask(x, &places, self.spec.dropout, seed, self.key)
        });
        let inputs = dropped.as_ref().unwrap_or(x);
        let [a, b] = [&self.a, &self.b].map(|part| part.to_kind(x.kind()));
        let added = linear(&linear(inputs, &a, None), &b, None) * self.spec.scale;
        let Some(magnitude) = &self.magnitude else { return y + added };
        let factor = match &self.norms {
            Some(norms) => magnitude / norms,
            None => magnitude / row_norms(&self.sum(weight)),
        };
        let of_base = match (&dropped, bias) {
            (Some(x), _) => linear(x, weight, None),
            (None, Some(bias)) => &y - bias,
            (None, None) => y.shallow_clone(),
        };
        y + (&factor - 1.0) * of_base + factor * added
    }

    /// Returns the one weight `[out, in]` that computes the same as `weight` `[out, in]` with this adapter.
    pub fn merged(&self, weight: &Tensor) -> Tensor {
        assert!(self.norms.is_none(), "parts of rows are not merged apart from the others");
        merged_weight(weight, &self.a, &self.b, self.magnitude.as_ref(), self.spec.scale)
    }

    fn sum(&self, weight: &Tensor) -> Tensor {
        weight.detach() + self.b.detach().matmul(&self.a.detach()) * self.spec.scale
    }
}

/// Returns `[out, in]`: a weight with its adapter added, its rows with the norms of DoRA where there are some.
pub fn merged_weight(weight: &Tensor, a: &Tensor, b: &Tensor, magnitude: Option<&Tensor>, scale: f64) -> Tensor {
    let sum = weight + b.matmul(a) * scale;
    match magnitude {
        Some(magnitude) => &sum * (magnitude / row_norms(&sum.detach())).unsqueeze(-1),
        None => sum,
    }
}

/// Returns `[out]`: the norms of the rows of a weight `[out, in]`.
pub fn row_norms(weight: &Tensor) -> Tensor {
    weight.norm_scalaropt_dim(2.0, [1i64].as_slice(), false)
}

/// Returns the places that the numbers of `x` `[…, in]` have in the tensor of a process that had the whole, flat, int64. The numbers of
/// the rows of `x` are in the tensor of `rows` with as many rows; `inputs` has those of the inputs.
fn places(x: &Tensor, rows: &[Tensor], inputs: Option<&HeldInputs>) -> Tensor {
    let first = |len: i64| Tensor::arange(len, (Kind::Int64, x.device()));
    let (len, width) = (x.numel() as i64, x.size().last().copied().unwrap_or(1).max(1));
    let rows = rows.iter().find(|rows| rows.size()[0] == len / width);
    if rows.is_none() && inputs.is_none() {
        return first(len);
    }
    let rows_R = rows.map_or_else(|| first(len / width), Tensor::shallow_clone);
    let (inputs_I, num_all) = match inputs {
        Some(HeldInputs { numbers, num_all }) => (numbers.shallow_clone(), *num_all),
        None => (first(width), width),
    };
    (rows_R.unsqueeze(1) * num_all + inputs_I).flatten(0, -1)
}

/// Returns a mask in the shape of `x`: 0 with probability `dropout`, else `1 / (1 - dropout)`, by a hash of seed, key and place.
fn mask(x: &Tensor, places: &Tensor, dropout: f64, seed: u64, key: u64) -> Tensor {
    // Seeds that follow each other are spread, lest one's mask be that of the other, moved by a place.
    let kept = kept(&(places + (mix(seed) ^ key) as i64), dropout);
    (kept.to_kind(x.kind()) / (1.0 - dropout)).view(x.size().as_slice())
}

/// Returns a mask that is false with probability `dropout`: a hash of each counter, int64 (SplitMix64 in tensor operators).
pub(crate) fn kept(counters: &Tensor, dropout: f64) -> Tensor {
    const BITS: i64 = 31;
    let mut z = counters * 0x9E37_79B9_7F4A_7C15u64 as i64;
    for (shift, factor) in [(30, 0xBF58_476D_1CE4_E5B9u64), (27, 0x94D0_49BB_1331_11EB)] {
        z = z.bitwise_xor_tensor(&z.bitwise_right_shift_tensor_scalar(shift)) * factor as i64;
    }
    let drawn = z.bitwise_and(i64::from(i32::MAX));
    drawn.ge((dropout * (1i64 << BITS) as f64) as i64)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::super::scope::Scope;
    use super::super::store::ParamStore;
    use super::{Cut, HeldInputs, Init, LinearModule, LoraConfig, Masks, ParamSpec, Shard, mask, places};

    #[test]
    fn masks_belong_to_the_run() {
        let lora = LoraConfig { r: 2, alpha: 2.0, dropout: 0.5, use_rslora: false, use_dora: false };
        let (path, shard, stacked) = ("map".to_owned(), None, None);
        let module = LinearModule { path, inputs: 64, outputs: 64, stacked, is_router: false, shard };
        let specs = lora.specs(&module).into_iter().map(|spec| ParamSpec { init: Init::Ones, ..spec });
        let params = ParamStore::new(specs.collect(), Kind::Float, Device::Cpu);
        params.init_random(0);
        let x = Tensor::ones([3, 64], (Kind::Float, Device::Cpu));
        let added = |run: u64, batch: Option<u64>| {
            params.set_run_seed(run);
            params.set_dropout(batch.map(|seed| Masks::new(seed, Vec::new())));
            let adapter = Scope::new(&params, "").take_adapter("map").unwrap();
            tch::no_grad(|| adapter.add_to(x.zeros_like(), &x, &x, None))
        };
        assert_eq!(added(3, Some(1)), added(3, Some(1)));
        assert_ne!(added(3, Some(1)), added(4, Some(1)));
        assert_ne!(added(3, Some(1)), added(3, Some(2)));
        assert_eq!(added(3, None), added(4, None));
    }

    #[test]
    fn parts_of_rows_and_inputs_have_the_masks_of_the_whole() {
        let mask = |x: &Tensor, rows: &[&Tensor], inputs: Option<&HeldInputs>| {
            let rows: Vec<Tensor> = rows.iter().map(|rows| rows.shallow_clone()).collect();
            mask(x, &places(x, &rows, inputs), 0.5, 3, 4)
        };
        let x = Tensor::ones([9, 20], (Kind::Float, Device::Cpu));
        let whole = mask(&x, &[], None);
        // As of a rank of two that share a row, and of the second of two that share layers.
        let rows = Tensor::from_slice(&[0i64, 1, 6, 7, 8]);
        let (dim, ranges) = (1, vec![(4, 3), (10, 5)]);
        let shard = Shard { cuts: vec![Cut { dim, ranges }], ..Shard::whole(&[2, 20]) };
        let held = HeldInputs::of(Some(&shard), Device::Cpu).unwrap();
        assert!(HeldInputs::of(Some(&Shard::whole(&[2, 20])), Device::Cpu).is_none());
        let of_rows = whole.index_select(0, &rows);
        assert_eq!(mask(&x.narrow(0, 0, 5), &[&rows], None), of_rows);
        // Beside those that another map reads.
        assert_eq!(mask(&x.narrow(0, 0, 5), &[&rows.narrow(0, 1, 3), &rows], None), of_rows);
        let of_inputs = whole.index_select(1, &held.numbers);
        assert_eq!(mask(&x.narrow(1, 0, 8), &[], Some(&held)), of_inputs);
        let both = x.narrow(0, 0, 5).narrow(1, 0, 8);
        assert_eq!(mask(&both, &[&rows], Some(&held)), of_inputs.index_select(0, &rows));
        // What has other rows is numbered as it is, and of a rank without rows nothing is drawn.
        assert_eq!(mask(&x, &[&rows], None), whole);
        assert_eq!(mask(&x.narrow(0, 0, 0), &[&rows.narrow(0, 0, 0)], None).size(), [0, 20]);
    }

    #[test]
    fn masks_depend_on_the_seed_and_keep_the_mean() {
        let x = Tensor::ones([100, 100], (Kind::Float, Device::Cpu));
        let mask = |seed, key| mask(&x, &places(&x, &[], None), 0.25, seed, key);
        let [first, next] = [7, 8].map(|seed| mask(seed, 0));
        assert_eq!(first, mask(7, 0));
        assert_ne!(first, next);
        assert_ne!(first, mask(7, 1));
        let (moved, next) = (first.view([-1]).narrow(0, 1, 9_000), next.view([-1]).narrow(0, 0, 9_000));
        let same = moved.eq_tensor(&next).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
        assert!((same - 0.625).abs() < 0.03, "the masks of seeds that follow each other are alike by chance: {same}");
        assert!((first.mean(Kind::Float).double_value(&[]) - 1.0).abs() < 0.03);
        assert_eq!(first.max().double_value(&[]), (1.0f32 / 0.75) as f64);
    }
}
