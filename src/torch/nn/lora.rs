//! Low-rank adaptation (Hu et al. 2021): beside a frozen linear map a product of two narrow ones is trained,
//! `y = W x + (alpha / r) B A x`. Names and defaults are PEFT's (`LoraConfig`).
//!
//! An adapter is two more parameters under the map's name, `lora_A.weight` `[r, in]` and `lora_B.weight` `[out, r]`;
//! a model is built on a store that has them as on one that has not.

use std::cell::Cell;
use std::rc::Rc;

use tch::{Kind, Tensor};

use super::init::Init;
use super::params::{ParamSpec, Role};

/// How adapters are made.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    pub r: i64,
    pub alpha: f64,
    /// Of the adapters' inputs, in training.
    pub dropout: f64,
    /// Whether the factor is `alpha / sqrt(r)` (Kalajdzievski 2023).
    pub use_rslora: bool,
    pub targets: LoraTargets,
    /// Modules that are left out although `targets` names them.
    pub exclude_modules: Vec<String>,
}

/// Which linear maps get an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoraTargets {
    /// All but the head.
    AllLinear,
    /// Those whose path is, or ends with a dot and, one of these.
    Modules(Vec<String>),
}

#[derive(Debug, PartialEq, thiserror::Error)]
pub enum LoraError {
    #[error("lora.target_modules: no linear map is called {target}; there are {known}")]
    NoTarget { target: String, known: String },
    #[error("lora.exclude_modules leaves no linear map to adapt")]
    NothingLeft,
}

impl LoraConfig {
    /// The factor of `B A x`.
    pub fn scale(&self) -> f64 {
        self.alpha / if self.use_rslora { (self.r as f64).sqrt() } else { self.r as f64 }
    }

    /// The parameters with adapters added and all others frozen.
    ///
    /// # Errors
    /// A target that names nothing, and then the names there are.
    pub fn adapt(&self, specs: Vec<ParamSpec>) -> Result<Vec<ParamSpec>, LoraError> {
        let modules: Vec<(String, [i64; 2])> = specs.iter().filter_map(linear_module).collect();
        if let LoraTargets::Modules(targets) = &self.targets {
            if let Some(target) = targets.iter().find(|target| !modules.iter().any(|(module, _)| names(target, module)))
            {
                let mut known: Vec<&str> = modules.iter().map(|(module, _)| last(module)).collect();
                known.sort_unstable();
                known.dedup();
                return Err(LoraError::NoTarget { target: target.clone(), known: known.join(", ") });
            }
        }
        let wanted = |module: &str| {
            let named = match &self.targets {
                LoraTargets::AllLinear => true,
                LoraTargets::Modules(targets) => targets.iter().any(|target| names(target, module)),
            };
            named && !self.exclude_modules.iter().any(|excluded| names(excluded, module))
        };
        let mut adapted: Vec<ParamSpec> = specs
            .into_iter()
            .map(|spec| if spec.role == Role::Trained { spec.with_role(Role::Frozen) } else { spec })
            .collect();
        let num_base = adapted.len();
        for (module, [outputs, inputs]) in modules.into_iter().filter(|(module, _)| wanted(module)) {
            // PEFT's: Kaiming uniform with a slope of sqrt(5).
            let init = Init::Uniform(1.0 / (inputs as f64).sqrt());
            adapted.push(ParamSpec::new(format!("{module}.lora_A.weight"), &[self.r, inputs], init));
            adapted.push(ParamSpec::new(format!("{module}.lora_B.weight"), &[outputs, self.r], Init::Zeros));
        }
        if adapted.len() == num_base { Err(LoraError::NothingLeft) } else { Ok(adapted) }
    }
}

/// The module's path and shape, where the parameter is the weight of a linear map.
fn linear_module(spec: &ParamSpec) -> Option<(String, [i64; 2])> {
    let module = spec.name.strip_suffix(".weight").filter(|_| spec.is_linear)?;
    Some((module.to_owned(), [spec.shape[0], spec.shape[1]]))
}

/// Whether `target` names `module`, as PEFT does it.
fn names(target: &str, module: &str) -> bool {
    module.strip_suffix(target).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

fn last(module: &str) -> &str {
    module.rsplit('.').next().unwrap_or(module)
}

/// What the adapters of one store share.
pub(super) struct LoraShared {
    pub scale: f64,
    pub dropout: f64,
    /// Of the present micro-batch; `None` outside of training. The same seed gives the same mask, so that a segment
    /// can be computed twice.
    pub seed: Rc<Cell<Option<u64>>>,
}

/// An adapter on its parameters.
pub(super) struct Adapter {
    pub a: Tensor,
    pub b: Tensor,
    pub scale: f64,
    pub dropout: f64,
    pub seed: Rc<Cell<Option<u64>>>,
    /// Tells the masks of different adapters apart.
    pub key: u64,
}

impl Adapter {
    /// `[…, in]` to `[…, out]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let x = match self.seed.get().filter(|_| self.dropout > 0.0) {
            Some(seed) => x * mask(x, self.dropout, seed ^ self.key),
            None => x.shallow_clone(),
        };
        x.linear(&self.a, None::<Tensor>).linear(&self.b, None::<Tensor>) * self.scale
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

    use super::{LoraConfig, LoraError, LoraTargets, mask};
    use crate::nn::{Linear, ParamSpec, ParamStore, Role, Scope};

    fn config(targets: LoraTargets) -> LoraConfig {
        LoraConfig { r: 2, alpha: 6.0, dropout: 0.0, use_rslora: false, targets, exclude_modules: Vec::new() }
    }

    fn specs() -> Vec<ParamSpec> {
        let mut specs = Linear::specs("layers.0.attn.", "q_proj", 5, 4, true, 0.5);
        specs.extend(Linear::specs("layers.0.mlp.", "up_proj", 5, 7, false, 0.5));
        specs.push(ParamSpec::new("embed.weight", &[9, 5], crate::nn::Init::Normal(0.1)));
        specs
    }

    fn adapted(config: &LoraConfig) -> Vec<String> {
        let specs = config.adapt(specs()).unwrap();
        assert!(specs.iter().all(|spec| (spec.role == Role::Trained) == spec.name.contains("lora_")));
        specs.into_iter().map(|spec| spec.name).filter(|name| name.contains("lora_A")).collect()
    }

    #[test]
    fn targets_are_named_as_peft_names_them() {
        let modules = |list: &[&str]| LoraTargets::Modules(list.iter().map(|name| name.to_string()).collect());
        let both = ["layers.0.attn.q_proj.lora_A.weight", "layers.0.mlp.up_proj.lora_A.weight"];
        assert_eq!(adapted(&config(LoraTargets::AllLinear)), both);
        assert_eq!(adapted(&config(modules(&["q_proj"]))), both[..1]);
        assert_eq!(adapted(&config(modules(&["mlp.up_proj"]))), both[1..]);
        let mut excluding = config(LoraTargets::AllLinear);
        excluding.exclude_modules = vec!["up_proj".into()];
        assert_eq!(adapted(&excluding), both[..1]);
        let error = config(modules(&["proj"])).adapt(specs()).unwrap_err();
        assert_eq!(error, LoraError::NoTarget { target: "proj".into(), known: "q_proj, up_proj".into() });
    }

    #[test]
    fn an_adapter_starts_at_nothing_and_adds_its_product() {
        let config = config(LoraTargets::AllLinear);
        let mut store = ParamStore::new(config.adapt(specs()).unwrap(), Kind::Float, Device::Cpu);
        store.set_lora(&config);
        store.init_random(1);
        let linear = Linear::new(&Scope::new(&store, "layers.0.attn."), "q_proj");
        let x = Tensor::randn([3, 5], (Kind::Float, Device::Cpu));
        let get = |name: &str| store.get(&format!("layers.0.attn.q_proj.{name}")).detach();
        let plain = x.linear(&get("weight"), Some(get("bias")));
        assert_eq!(linear.forward(&x), plain);
        store.set(store.id("layers.0.attn.q_proj.lora_B.weight"), &Tensor::ones([4, 2], (Kind::Float, Device::Cpu)));
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
