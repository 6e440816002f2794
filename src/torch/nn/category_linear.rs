//! A linear map of which every category has its own, as policies of many robots have it (`CategorySpecificLinear` of GR00T).
//!
//! Shapes: S groups of rows, L rows of each, E categories.

use tch::Tensor;

use crate::params::{Init, ParamSpec, Scope};

/// `y = x W[c] + b[c]`, `W` `[E, in, out]` and `b` `[E, out]`. Categories that no group has get a gradient of zero.
pub struct CategoryLinear {
    weight: Tensor,
    bias: Tensor,
}

impl CategoryLinear {
    /// Returns the parameters `{name}.W` and `{name}.b` of so many categories.
    pub fn specs(prefix: &str, name: &str, categories: i64, inputs: i64, outputs: i64, std: f64) -> Vec<ParamSpec> {
        vec![
            ParamSpec::new(format!("{prefix}{name}.W"), &[categories, inputs, outputs], Init::Normal(std)),
            ParamSpec::new(format!("{prefix}{name}.b"), &[categories, outputs], Init::Zeros),
        ]
    }

    /// Takes the weights `W` `[E, in, out]` and biases `b` `[E, out]` of this name.
    pub fn new(scope: &Scope<'_>, name: &str) -> CategoryLinear {
        CategoryLinear { weight: scope.take(&format!("{name}.W")), bias: scope.take(&format!("{name}.b")) }
    }

    /// Maps rows `[S, L, in]` of groups whose categories are `[S]`, int64 below E, to `[S, L, out]`, computed in the kind of the rows.
    pub fn forward(&self, x: &Tensor, categories: &Tensor) -> Tensor {
        let own = |x: &Tensor, of: &Tensor| of.index_select(0, categories).to_kind(x.kind());
        own(x, &self.bias).unsqueeze(1).baddbmm(x, &own(x, &self.weight), 1.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::CategoryLinear;
    use crate::native::grad;
    use crate::params::{ParamStore, Scope};

    /// Against one map at a time, with gradients: two groups share a category, and one category has no group.
    #[test]
    fn groups_have_the_map_of_their_category() {
        tch::manual_seed(3);
        let specs = CategoryLinear::specs("head.", "layer1", 4, 3, 5, 0.5);
        let store = ParamStore::new(specs, Kind::Float, Device::Cpu);
        store.init_random(1);
        store.set(store.id("head.layer1.b"), &Tensor::randn([4, 5], (Kind::Float, Device::Cpu)));
        let map = CategoryLinear::new(&Scope::new(&store, "head."), "layer1");
        let [weight, bias] = ["W", "b"].map(|name| store.get(&format!("head.layer1.{name}")));
        let x = Tensor::randn([3, 2, 3], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let categories = [2i64, 0, 2];
        let own = |(at, category): (usize, &i64)| x.get(at as i64).matmul(&weight.get(*category)) + bias.get(*category);
        let expected = Tensor::stack(&categories.iter().enumerate().map(own).collect::<Vec<_>>(), 0);
        let found = map.forward(&x, &Tensor::from_slice(&categories));
        assert!(found.allclose(&expected, 1e-5, 1e-6, false));
        let seed = Tensor::randn([3, 2, 5], (Kind::Float, Device::Cpu));
        let grads = |y: &Tensor| grad(&[y], &[&seed], &[&x, &map.weight, &map.bias]).unwrap();
        let found = grads(&found);
        let of_weight = found[1].as_ref().unwrap().abs().sum_dim_intlist([1i64, 2].as_slice(), false, Kind::Float);
        assert!(of_weight.get(1).double_value(&[]) == 0.0 && of_weight.get(0).double_value(&[]) > 0.0);
        for (found, expected) in found.into_iter().zip(grads(&expected)) {
            assert!(found.unwrap().allclose(&expected.unwrap(), 1e-5, 1e-6, false));
        }
    }
}
