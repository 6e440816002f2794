//! Initial values of the linear maps of transformers.

use crate::nn::Linear;
use crate::params::{Init, ParamSpec};

/// Returns the standard deviation of random weights of a map with so many inputs, as torch draws them.
pub(super) fn std_of(inputs: i64) -> f64 {
    (3.0 * inputs as f64).powf(-0.5)
}

/// Returns the parameters of a map of a block's attention or feed-forward, with a bias: these have adapters where the config does not
/// choose.
pub(super) fn map(prefix: &str, name: &str, inputs: i64, outputs: i64) -> Vec<ParamSpec> {
    Linear::specs(prefix, name, inputs, outputs, true, std_of(inputs))
}

/// Returns the parameters of any other map: of embeddings, modulations or the output, which has no adapter.
pub(in crate::model) fn outer_map(prefix: &str, name: &str, inputs: i64, outputs: i64) -> Vec<ParamSpec> {
    let plain = |spec: ParamSpec| ParamSpec { is_linear: false, ..spec };
    map(prefix, name, inputs, outputs).into_iter().map(plain).collect()
}

/// Returns the parameters of the map of a block's modulation, which has no adapter.
pub(super) fn modulation_map(prefix: &str, name: &str, inputs: i64, outputs: i64) -> Vec<ParamSpec> {
    let mut specs = outer_map(prefix, name, inputs, outputs);
    specs[0].is_modulation = true;
    specs
}

/// Returns the same parameters with a weight that starts at zero.
pub(super) fn zeroed(mut specs: Vec<ParamSpec>) -> Vec<ParamSpec> {
    specs[0].init = Init::Zeros;
    specs
}
