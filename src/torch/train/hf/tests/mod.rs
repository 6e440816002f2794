//! Checkpoint folders as they are found: whole, packed, damaged, not the model's.

mod carried;
mod components;
mod damaged;
mod networks;
mod packed;
mod reading;

use super::*;
use crate::params::{Held, Init, ParamSpec, ParamStore, Role, Rounding, StoredTensor};
use std::fs;
use std::path::Path;
use tch::{Device, Kind, Tensor};

fn write(folder: &Path, name: &str, tensors: &[(&str, Tensor)]) {
    let tensors: Vec<(String, Tensor)> =
        tensors.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.shallow_clone())).collect();
    write_tensor_file(&tensors, &[("format", "pt")], folder, name).unwrap();
}

fn numbers(shape: &[i64], kind: Kind) -> Tensor {
    let count: i64 = shape.iter().product();
    ((Tensor::arange(count, (Kind::Double, Device::Cpu)) * 0.61).sin() * 3.0).view(shape).to_kind(kind)
}

fn store(specs: Vec<ParamSpec>, kind: Kind) -> ParamStore {
    ParamStore::new(specs, kind, Device::Cpu)
}

fn values(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.detach().to_kind(Kind::Double).flatten(0, -1)).unwrap()
}

/// Returns the error's text.
fn refused<T>(result: Result<T, WeightsError>) -> String {
    result.err().expect("an error").to_string()
}

fn specs() -> Vec<ParamSpec> {
    vec![
        ParamSpec::new("norm", &[3], Init::Ones),
        ParamSpec::new("weight", &[40, 3], Init::Normal(0.5)),
        ParamSpec::new("other", &[7, 5], Init::Normal(0.5)),
        ParamSpec::new("bias", &[4], Init::Normal(1.0)).with_role(Role::Buffer),
    ]
}
