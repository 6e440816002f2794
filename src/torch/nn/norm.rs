//! Norms over the last dimension.

use tch::{Kind, Tensor};

use super::Rope;
use crate::native::{Turn, can_fuse, norm_rope, norm_rope_parts};
use crate::params::ParamSpec;
use crate::params::{Init, Scope};

/// Root mean square norm (Zhang and Sennrich 2019), as `Qwen3RMSNorm`: computed in float32.
pub struct RmsNorm {
    weight: Tensor,
    eps: f64,
    zero_centered: bool,
}

impl RmsNorm {
    /// Declares `weight` `[width]`, ones.
    pub fn specs(prefix: &str, name: &str, width: i64) -> Vec<ParamSpec> {
        vec![ParamSpec::new(format!("{prefix}{name}.weight"), &[width], Init::Ones)]
    }

    /// Takes the weight of this name, which multiplies what is normalized.
    pub fn new(scope: &Scope<'_>, name: &str, eps: f64) -> RmsNorm {
        RmsNorm { weight: scope.take(&format!("{name}.weight")), eps, zero_centered: false }
    }

    /// Maps `[…, D]` to `[…, D]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let weight = self.factor();
        if can_fuse(x) && x.dim() == 2 {
            return norm_rope(&x.unsqueeze(1), Some((&weight, self.eps)), None).squeeze_dim(1);
        }
        if !self.zero_centered || weight.kind() == x.kind() {
            return x.rms_norm(weight.size(), Some(&weight), self.eps);
        }
        // The operator takes a factor of the kind of `x` alone, and rounds once.
        x.to_kind(weight.kind()).rms_norm(weight.size(), Some(&weight), self.eps).to_kind(x.kind())
    }

    /// Returns the norm of rows of which this is a part, `[T, part]`: `squares` `[T, 1]`, float32, are the sums of squares of whole rows
    /// of `width` values, the weight is the part's.
    pub fn forward_part(&self, x: &Tensor, squares: &Tensor, width: i64) -> Tensor {
        let factor = (squares / width as f64 + self.eps).rsqrt();
        (x.to_kind(Kind::Float) * factor * self.factor().to_kind(Kind::Float)).to_kind(x.kind())
    }

    /// Returns the norm of every head of `x_THC`, or, where the weight is `[H·C]`, of all heads together.
    pub fn forward_heads(&self, x_THC: &Tensor) -> Tensor {
        if self.num_parts(x_THC) > 1 {
            return self.forward(&x_THC.flatten(1, 2)).view_as(x_THC);
        }
        match can_fuse(x_THC) {
            true => norm_rope(x_THC, Some((&self.factor(), self.eps)), None),
            false => self.forward(x_THC),
        }
    }

    /// Works like `forward_heads`, and turns every head. Panics where `can_fuse` is false. `[T, H, C]` to `[T, H, C]`.
    pub fn forward_turned(&self, x_THC: &Tensor, turn: Turn<'_>) -> Tensor {
        let (parts, norm) = (self.num_parts(x_THC), self.factor());
        if parts == 1 {
            return norm_rope(x_THC, Some((&norm, self.eps)), Some(turn));
        }
        norm_rope_parts(&x_THC.flatten(1, 2).unsqueeze(1), Some((&norm, self.eps)), Some(turn), parts).view_as(x_THC)
    }

    /// Returns the number of heads of `x_THC` that have a norm together.
    fn num_parts(&self, x_THC: &Tensor) -> i64 {
        self.weight.size()[0] / x_THC.size()[2]
    }

    /// Returns the norm of every head of `x_THC`, and then the rotation. `[T, H, C]` to `[T, H, C]`.
    pub fn forward_rotated(&self, x_THC: &Tensor, rope: &Rope) -> Tensor {
        match rope.turn().filter(|_| can_fuse(x_THC)) {
            Some(turn) => norm_rope(x_THC, Some((&self.factor(), self.eps)), Some(turn)),
            None => rope.apply(&self.forward(x_THC)),
        }
    }

    /// One plus the weight is float32 at least, as in transformers: beside the one bfloat16 has no digits left for a small weight.
    fn factor(&self) -> Tensor {
        match self.zero_centered {
            true if self.weight.kind() == Kind::Double => &self.weight + 1.0,
            true => self.weight.to_kind(Kind::Float) + 1.0,
            false => self.weight.shallow_clone(),
        }
    }
}

/// The norms of a decoder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormConfig {
    pub eps: f64,
    /// True if the factor is one plus the weight (Gemma, Qwen3-Next).
    pub zero_centered: bool,
}

impl NormConfig {
    /// Declares `weight` `[width]`: zeros where one is added to it, as in Gemma and Qwen3-Next, else ones.
    pub fn specs(&self, prefix: &str, name: &str, width: i64) -> Vec<ParamSpec> {
        let init = if self.zero_centered { Init::Zeros } else { Init::Ones };
        vec![ParamSpec::new(format!("{prefix}{name}.weight"), &[width], init)]
    }

    /// Takes the weight that [`NormConfig::specs`] declares.
    pub fn build(&self, scope: &Scope<'_>, name: &str) -> RmsNorm {
        RmsNorm { zero_centered: self.zero_centered, ..RmsNorm::new(scope, name, self.eps) }
    }
}

/// Layer norm with weight and bias.
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl LayerNorm {
    /// Declares `weight` `[width]`, ones, and `bias` `[width]`, zeros.
    pub fn specs(prefix: &str, name: &str, width: i64) -> Vec<ParamSpec> {
        vec![
            ParamSpec::new(format!("{prefix}{name}.weight"), &[width], Init::Ones),
            ParamSpec::new(format!("{prefix}{name}.bias"), &[width], Init::Zeros),
        ]
    }

    /// Takes `weight` and `bias` of this name.
    pub fn new(scope: &Scope<'_>, name: &str, eps: f64) -> LayerNorm {
        let (weight, bias) = (scope.take(&format!("{name}.weight")), scope.take(&format!("{name}.bias")));
        LayerNorm { weight, bias, eps }
    }

    /// Works like `forward`, in float32 and back whatever the kind of `x` is. `[…, D]` to `[…, D]`.
    pub fn forward_wide(&self, x: &Tensor) -> Tensor {
        if matches!(x.kind(), Kind::Float | Kind::Double) {
            return self.forward(x);
        }
        let [x32, weight, bias] = [x, &self.weight, &self.bias].map(|of| of.to_kind(Kind::Float));
        x32.layer_norm(weight.size(), Some(&weight), Some(&bias), self.eps, false).to_kind(x.kind())
    }

    /// Maps `[…, D]` to `[…, D]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        x.layer_norm(self.weight.size(), Some(&self.weight), Some(&self.bias), self.eps, false)
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::RmsNorm;

    /// In bfloat16 the factor of small weights would be 1, and all rows that come out would be off alike.
    #[test]
    fn a_factor_beside_one_keeps_the_digits_of_its_weight() {
        tch::manual_seed(3);
        let weight = Tensor::from_slice(&[0.0029f32, -0.0015, 0.334, -0.95]).to_kind(Kind::BFloat16);
        let x = Tensor::randn([4096, 4], (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
        let wide = x.to_kind(Kind::Float);
        let squares = wide.square().mean_dim([-1i64].as_slice(), true, Kind::Float);
        let expected = wide * (squares + 1e-6).rsqrt() * (weight.to_kind(Kind::Float) + 1.0);
        let norm = RmsNorm { weight, eps: 1e-6, zero_centered: true };
        let sizes = |y: &Tensor| y.to_kind(Kind::Float).abs().sum_dim_intlist([0i64].as_slice(), false, Kind::Float);
        // Fused, and by plain operators.
        for found in [norm.forward(&x), norm.forward(&x.unsqueeze(1)).squeeze_dim(1)] {
            assert_eq!(found.kind(), Kind::BFloat16);
            let off = (sizes(&found) / sizes(&expected) - 1.0).abs().max().double_value(&[]);
            assert!(off < 3e-4, "{off}");
        }
    }
}
