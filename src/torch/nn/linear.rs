//! Linear maps with and without bias.

use tch::{Kind, Tensor};

use crate::native::linear;
use crate::params::Adapter;
use crate::params::ParamSpec;
use crate::params::{Init, Scope};

/// `y = x Wᵀ + b`, `weight` `[out, in]` (torch's `nn.Linear`), and an adapter's share where the store has one.
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    adapter: Option<Box<Adapter>>,
}

impl Linear {
    /// Declares `weight` `[outputs, inputs]`, normal with `std`, and `bias` `[outputs]`, zeros, where there is one.
    pub fn specs(prefix: &str, name: &str, inputs: i64, outputs: i64, bias: bool, std: f64) -> Vec<ParamSpec> {
        let weight = ParamSpec::new(format!("{prefix}{name}.weight"), &[outputs, inputs], Init::Normal(std));
        let mut specs = vec![ParamSpec { is_linear: true, ..weight }];
        if bias {
            specs.push(ParamSpec::new(format!("{prefix}{name}.bias"), &[outputs], Init::Zeros));
        }
        specs
    }

    /// Takes the weight of this name, and the bias and the adapter that the store has beside it.
    pub fn new(scope: &Scope<'_>, name: &str) -> Linear {
        let weight = scope.take(&format!("{name}.weight"));
        Linear {
            weight,
            bias: scope.take_bias(&format!("{name}.bias")),
            adapter: scope.take_adapter(name).map(Box::new),
        }
    }

    /// Returns the type of its weight.
    pub fn kind(&self) -> Kind {
        self.weight.kind()
    }

    /// Returns the weight `[out, in]`, the adapter's share included.
    pub fn merged_weight(&self) -> Tensor {
        match &self.adapter {
            Some(adapter) => adapter.merged(&self.weight),
            None => self.weight.shallow_clone(),
        }
    }

    /// Works like `forward`, computed in the kind of `x` where that is wider than the weight's. `[…, inputs]` to `[…, outputs]`.
    pub fn forward_wide(&self, x: &Tensor) -> Tensor {
        if x.kind() == self.kind() {
            return self.forward(x);
        }
        // The adapter's product is not rounded to the weight's kind, in which it may be nothing.
        let weight = self.weight.to_kind(x.kind());
        let bias = self.bias.as_ref().map(|bias| bias.to_kind(x.kind()));
        self.adapted(linear(x, &weight, bias.as_ref()), x, &weight, bias.as_ref())
    }

    /// Maps `[…, inputs]` to `[…, outputs]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let y = linear(x, &self.weight, self.bias.as_ref());
        self.adapted(y, x, &self.weight, self.bias.as_ref())
    }

    /// Returns `y`, the map of `weight` and `bias` at `x`, all of the kind of `x`, with the adapter's share: `[…, outputs]`.
    fn adapted(&self, y: Tensor, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        match &self.adapter {
            Some(adapter) => adapter.add_to(y, x, weight, bias),
            None => y,
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::Linear;
    use crate::params::{LinearModule, LoraConfig, Masks, ParamStore, Scope, row_norms};

    #[test]
    fn an_adapter_starts_at_nothing_and_adds_its_product() {
        let config = LoraConfig { r: 2, alpha: 6.0, dropout: 0.0, use_rslora: false, use_dora: false };
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
        let plain = crate::native::linear(&x, &get("weight"), Some(&get("bias")));
        assert_eq!(linear.forward(&x), plain);
        store.set(store.id("attn.q_proj.lora_B.weight"), &Tensor::ones([4, 2], (Kind::Float, Device::Cpu)));
        let merged = get("weight") + get("lora_B.weight").matmul(&get("lora_A.weight")) * 3.0;
        assert!(linear.forward(&x).allclose(&x.linear(&merged, Some(get("bias"))), 1e-5, 1e-6, false));
    }

    /// Products of the size of a step, which a weight of 1 in bfloat16 would swallow, and dropout, which reaches them.
    #[test]
    fn an_adapter_meets_wide_rows_without_the_rounding_of_its_weight() {
        let config = LoraConfig { r: 2, alpha: 6.0, dropout: 0.5, use_rslora: false, use_dora: false };
        let mut specs = Linear::specs("", "q_proj", 5, 4, true, 0.5);
        specs.extend(config.specs(&LinearModule::of(&specs[0]).unwrap()));
        let store = ParamStore::new(specs, Kind::BFloat16, Device::Cpu);
        let fill = |name: &str, value: f64| {
            let id = store.id(name);
            store.set(id, &Tensor::full(store.spec(id).shape.as_slice(), value, (Kind::Float, Device::Cpu)));
        };
        fill("q_proj.weight", 1.0);
        fill("q_proj.lora_A.weight", 1.0);
        fill("q_proj.lora_B.weight", 2f64.powi(-14));
        let linear = Linear::new(&Scope::new(&store, ""), "q_proj");
        let x = Tensor::ones([3, 5], (Kind::Float, Device::Cpu));
        let y = linear.forward_wide(&x);
        assert_eq!(y, Tensor::full([3, 4], 5.0 * (1.0 + 6.0 * 2f64.powi(-14)), (Kind::Float, Device::Cpu)));
        y.sum(Kind::Float).backward();
        assert!(store.get("q_proj.lora_B.weight").grad().abs().min().double_value(&[]) > 0.0);
        store.set_dropout(Some(Masks::new(1, Vec::new())));
        assert_ne!(linear.forward_wide(&x), y);
    }

    #[test]
    fn rows_get_the_norms_that_dora_trains() {
        let config = LoraConfig { r: 2, alpha: 6.0, dropout: 0.0, use_rslora: false, use_dora: true };
        let mut specs = Linear::specs("attn.", "q_proj", 5, 4, true, 0.5);
        specs.extend(config.specs(&LinearModule::of(&specs[0]).unwrap()));
        let store = ParamStore::new(specs, Kind::Float, Device::Cpu);
        store.init_random(1);
        let get = |name: &str| store.get(&format!("attn.q_proj.{name}"));
        store.set(store.id("attn.q_proj.lora_B.weight"), &Tensor::ones([4, 2], (Kind::Float, Device::Cpu)));
        let norms = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0]);
        store.set(store.id("attn.q_proj.lora_magnitude_vector"), &norms);
        let linear = Linear::new(&Scope::new(&store, "attn."), "q_proj");
        let x = Tensor::randn([3, 5], (Kind::Float, Device::Cpu));
        let sum = get("weight").detach() + get("lora_B.weight").detach().matmul(&get("lora_A.weight").detach()) * 3.0;
        let merged = &sum * (&norms / row_norms(&sum)).unsqueeze(1);
        assert!(row_norms(&merged).allclose(&norms, 1e-5, 1e-6, false));
        assert!(linear.merged_weight().allclose(&merged, 1e-5, 1e-6, false));
        let y = linear.forward(&x);
        assert!(y.allclose(&x.linear(&merged, Some(get("bias"))), 1e-5, 1e-5, false));
        // The norm before is a constant of the gradient: B's is that of a factor that does not change.
        y.sum(Kind::Float).backward();
        let factor = (&norms / row_norms(&sum)).unsqueeze(1);
        let ax = get("lora_A.weight").detach().matmul(&x.tr()).sum_dim_intlist([1i64].as_slice(), false, Kind::Float);
        let expected = factor * ax.unsqueeze(0) * 3.0;
        assert!(get("lora_B.weight").grad().allclose(&expected, 1e-4, 1e-5, false));
    }
}
