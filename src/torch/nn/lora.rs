//! Low-rank adaptation (Hu et al. 2021): beside a frozen linear map a product of two narrow ones is trained,
//! `y = W x + (alpha / r) B A x`. Names and defaults are PEFT's (`LoraConfig`).
//!
//! An adapter is two more parameters under the map's name, `lora_A.weight` `[r, in]` and `lora_B.weight` `[out, r]`;
//! a model is built on a store that has them as on one that has not. Those of stacked maps, such as experts, are stacked
//! in the two dimensions of PEFT's (`target_parameters`): `[E·r, in]` and `[out, r·E]`.

use std::cell::Cell;
use std::rc::Rc;

use tch::{Kind, Tensor};

use super::init::Init;
use super::shard::{Cut, Shard};
use super::spec::ParamSpec;
use crate::native::linear;

/// How the adapters of a part of the model are made.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    pub r: i64,
    pub alpha: f64,
    /// Of the adapters' inputs, in training.
    pub dropout: f64,
    /// Whether the factor is `alpha / sqrt(r)` (Kalajdzievski 2023).
    pub use_rslora: bool,
}

impl LoraConfig {
    /// The factor of `B A x`.
    pub fn scale(&self) -> f64 {
        self.alpha / if self.use_rslora { (self.r as f64).sqrt() } else { self.r as f64 }
    }

    /// The parameters of an adapter beside the linear map `module`.
    pub fn specs(&self, module: &LinearModule) -> [ParamSpec; 2] {
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
        let (a, b) = (ParamSpec { adapter, shard: a_shard, ..a }, ParamSpec { shard: b_shard, ..b });
        [a, b].map(|spec| spec.stored_as(Vec::new()))
    }

    /// Which parts of an adapter a rank holds that holds this part of the base.
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

/// What an adapter is told beside its parameters; part of its first one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterSpec {
    pub scale: f64,
    pub dropout: f64,
}

/// A linear map that may get an adapter, or a stack of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearModule {
    /// The weight's name without `.weight`; the parameter's name, where it is a stack.
    pub path: String,
    pub inputs: i64,
    pub outputs: i64,
    /// How many maps one parameter holds; `None` where it is one map's weight.
    pub stacked: Option<i64>,
    /// Of the weight; `inputs`, `outputs` and `stacked` are those of the part that is held here.
    pub shard: Option<Shard>,
}

impl LinearModule {
    /// Of the weight of a linear map `[out, in]`, the head being none, or of a stack `[E, out, in]`.
    pub fn of(spec: &ParamSpec) -> Option<LinearModule> {
        if !spec.is_linear {
            return None;
        }
        let module = |path: &str, outputs, inputs, stacked| {
            let (path, shard) = (path.to_owned(), spec.shard.clone());
            LinearModule { path, inputs, outputs, stacked, shard }
        };
        match *spec.shape.as_slice() {
            [count, outputs, inputs] => Some(module(&spec.name, outputs, inputs, Some(count))),
            [outputs, inputs] => Some(module(spec.name.strip_suffix(".weight")?, outputs, inputs, None)),
            _ => None,
        }
    }
}

/// The seed of the present micro-batch's masks; `None` outside of training. The same seed gives the same masks, so that
/// a segment can be computed twice.
pub(super) type DropoutSeed = Rc<Cell<Option<u64>>>;

/// An adapter on its parameters.
pub(super) struct Adapter {
    pub a: Tensor,
    pub b: Tensor,
    pub spec: AdapterSpec,
    pub seed: DropoutSeed,
    /// Tells the masks of different adapters apart.
    pub key: u64,
}

impl Adapter {
    /// `[…, in]` to `[…, out]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let x = match self.seed.get().filter(|_| self.spec.dropout > 0.0) {
            Some(seed) => x * mask(x, self.spec.dropout, seed ^ self.key),
            None => x.shallow_clone(),
        };
        linear(&linear(&x, &self.a, None), &self.b, None) * self.spec.scale
    }
}

/// Zero with probability `dropout`, else `1 / (1 - dropout)`: a hash of seed and place (SplitMix64 in tensor operators).
fn mask(x: &Tensor, dropout: f64, seed: u64) -> Tensor {
    const BITS: i64 = 31;
    let counter = Tensor::arange(x.numel() as i64, (Kind::Int64, x.device()));
    let mut z = (counter + seed as i64) * 0x9E37_79B9_7F4A_7C15u64 as i64;
    for (shift, factor) in [(30, 0xBF58_476D_1CE4_E5B9u64), (27, 0x94D0_49BB_1331_11EB)] {
        z = z.bitwise_xor_tensor(&z.bitwise_right_shift_tensor_scalar(shift)) * factor as i64;
    }
    let drawn = z.bitwise_and(i64::from(i32::MAX));
    let kept = drawn.ge((dropout * (1i64 << BITS) as f64) as i64);
    (kept.to_kind(x.kind()) / (1.0 - dropout)).view(x.size().as_slice())
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{LinearModule, LoraConfig, mask};
    use crate::nn::{Linear, ParamStore, Scope};

    #[test]
    fn an_adapter_starts_at_nothing_and_adds_its_product() {
        let config = LoraConfig { r: 2, alpha: 6.0, dropout: 0.0, use_rslora: false };
        let mut specs = Linear::specs("attn.", "q_proj", 5, 4, true, 0.5);
        let module = LinearModule::of(&specs[0]).unwrap();
        assert_eq!((module.path.as_str(), module.inputs, module.outputs), ("attn.q_proj", 5, 4));
        assert_eq!(LinearModule::of(&specs[1]), None);
        specs.extend(config.specs(&module));
        let store = ParamStore::new(specs, Kind::Float, Device::Cpu);
        store.init_random(1);
        let linear = Linear::new(&Scope::new(&store, "attn."), "q_proj");
        let x = Tensor::randn([3, 5], (Kind::Float, Device::Cpu));
        let get = |name: &str| store.get(&format!("attn.q_proj.{name}")).detach();
        let plain = x.linear(&get("weight"), Some(get("bias")));
        assert_eq!(linear.forward(&x), plain);
        store.set(store.id("attn.q_proj.lora_B.weight"), &Tensor::ones([4, 2], (Kind::Float, Device::Cpu)));
        let merged = get("weight") + get("lora_B.weight").matmul(&get("lora_A.weight")) * 3.0;
        assert!(linear.forward(&x).allclose(&x.linear(&merged, Some(get("bias"))), 1e-5, 1e-6, false));
    }

    #[test]
    fn masks_depend_on_the_seed_and_keep_the_mean() {
        let x = Tensor::ones([100, 100], (Kind::Float, Device::Cpu));
        let first = mask(&x, 0.25, 7);
        assert_eq!(first, mask(&x, 0.25, 7));
        assert_ne!(first, mask(&x, 0.25, 8));
        assert!((first.mean(Kind::Float).double_value(&[]) - 1.0).abs() < 0.03);
        assert_eq!(first.max().double_value(&[]), (1.0f32 / 0.75) as f64);
    }
}
