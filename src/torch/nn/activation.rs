//! Activation functions, by Hugging Face's names.

use tch::Tensor;

use crate::native::{can_fuse, gelu_tanh, swiglu};

/// Says what a linear map's output goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Hendrycks and Gimpel 2016.
    Gelu,
    /// GELU by its approximation with tanh.
    GeluTanh,
    /// `x · sigmoid(1.702 x)`.
    QuickGelu,
    Silu,
    Relu,
    /// The square of `relu`.
    Relu2,
    /// gpt-oss's gate: `QuickGelu` of what is at most 7; of a gated product the ups lie within ±7, and one is added to them.
    ClampedSwiGlu,
    /// `Silu` of what is at most the limit; of a gated product the ups lie within ± the limit (DeepSeek-V4).
    LimitedSilu(Limit),
}

/// A bound of gates and ups, above 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(u64);

impl Limit {
    /// Holds a limit as its bits, so that activations can be compared and hashed.
    pub fn new(limit: f64) -> Limit {
        Limit(limit.to_bits())
    }

    /// Returns the number whose bits are kept.
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

/// `swiglu_limit` of gpt-oss, which transformers has as a constant.
pub const SWIGLU_LIMIT: f64 = 7.0;

impl Activation {
    /// The names of `hidden_act` that are known.
    pub const NAMES: [&'static str; 8] =
        ["gelu", "gelu_pytorch_tanh", "gelu_new", "quick_gelu", "silu", "swish", "relu", "relu2"];

    /// Returns the activation that `hidden_act` calls `name`; `None` for a name that is not known.
    pub fn from_name(name: &str) -> Option<Activation> {
        match name {
            "gelu" => Some(Activation::Gelu),
            "gelu_pytorch_tanh" | "gelu_new" => Some(Activation::GeluTanh),
            "quick_gelu" => Some(Activation::QuickGelu),
            "silu" | "swish" => Some(Activation::Silu),
            "relu" => Some(Activation::Relu),
            "relu2" => Some(Activation::Relu2),
            _ => None,
        }
    }

    /// Returns the activation of `x`, element by element; the shape, which may be any, and the type stay.
    pub fn forward(self, x: &Tensor) -> Tensor {
        match self {
            Activation::Gelu => x.gelu("none"),
            Activation::GeluTanh if can_fuse(x) => gelu_tanh(x),
            Activation::GeluTanh => x.gelu("tanh"),
            Activation::QuickGelu => x * (x * 1.702).sigmoid(),
            Activation::Silu => x.silu(),
            Activation::Relu => x.relu(),
            Activation::Relu2 => x.relu().square(),
            Activation::ClampedSwiGlu => Activation::QuickGelu.forward(&x.clamp_max(SWIGLU_LIMIT)),
            Activation::LimitedSilu(limit) => x.clamp_max(limit.get()).silu(),
        }
    }

    /// Returns `act(gate) · up`; those with limits have their own. Both and what is returned have one shape, `[…, F]`.
    pub fn gated(self, gate: &Tensor, up: &Tensor) -> Tensor {
        if self == Activation::ClampedSwiGlu {
            return self.forward(gate) * (up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT) + 1.0);
        }
        if let Activation::LimitedSilu(limit) = self {
            return self.forward(gate) * up.clamp(-limit.get(), limit.get());
        }
        if self == Activation::Silu && can_fuse(gate) && can_fuse(up) {
            return swiglu(gate, up);
        }
        self.forward(gate) * up
    }
}
