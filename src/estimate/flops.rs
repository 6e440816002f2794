//! Estimates the cost of a run before it ran: seconds from FLOPs and a device's rate.

use crate::model::folder::ModelFolder;
use crate::model::size::ModelSize;
use loongforge_core::data::ModelCard;
use loongforge_core::message::Tower;
use loongforge_core::simulate::{Costs, RoleCosts};
use loongforge_torch::params::{ParamSpec, Role};
use serde_json::Value;

/// The speed of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceRate {
    /// FLOP/s that a run gets.
    pub flops: f64,
    /// Bytes a second of its memory: an optimizer reads and writes.
    pub memory_bandwidth: f64,
}

/// Bytes a second of the memory of devices, by part of their name (makers' data sheets).
const MEMORY_BANDWIDTHS: [(&str, f64); 9] = [
    ("B200", 8.0e12),
    ("H200", 4.8e12),
    ("H100", 3.35e12),
    ("H800", 3.35e12),
    ("H20", 4.0e12),
    ("A100", 2.0e12),
    ("A800", 2.0e12),
    ("L40", 0.864e12),
    ("4090", 1.008e12),
];

/// Returns the memory bandwidth of a device by its name; 1 TB/s where it is not known.
pub fn memory_bandwidth(device: &str) -> f64 {
    MEMORY_BANDWIDTHS.iter().find(|(name, _)| device.contains(name)).map_or(1e12, |&(_, bandwidth)| bandwidth)
}

/// Parameters of one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ParamCounts {
    pub trained: u64,
    pub frozen: u64,
}

impl ParamCounts {
    /// Counts the elements of trained and of frozen parameters; sums saturate.
    pub fn of<'a>(specs: impl Iterator<Item = &'a ParamSpec>) -> Self {
        specs.fold(Self::default(), |sum, spec| {
            let count = spec.shape.iter().fold(1, |count: u64, &size| count.saturating_mul(size as u64));
            match spec.role {
                Role::Trained => Self { trained: sum.trained.saturating_add(count), ..sum },
                _ => Self { frozen: sum.frozen.saturating_add(count), ..sum },
            }
        })
    }

    /// Bytes of weights, of gradients, and of the optimizer's state with its masters.
    pub fn memory(self, is_bf16: bool) -> [u64; 3] {
        match is_bf16 {
            true => [2 * (self.trained + self.frozen), 4 * self.trained, 12 * self.trained],
            false => [4 * (self.trained + self.frozen), 4 * self.trained, 8 * self.trained],
        }
    }
}

/// Width of a vision tower, and its layers whose attention grows with the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Trunk {
    pub hidden_size: f64,
    /// Layers whose attention is over the whole frame.
    pub full_layers: f64,
}

impl Trunk {
    /// Returns the vision tower of a `config.json`.
    pub fn encoder(json: &Value) -> Self {
        let Some(vision) = ModelCard::of(json).vision() else { return Self::default() };
        let number = |names: &[&str]| names.iter().find_map(|name| vision.get(name)?.as_f64()).unwrap_or(0.0);
        let layers = number(&["depth", "num_hidden_layers"]);
        let full = vision.get("fullatt_block_indexes").and_then(Value::as_array);
        // Qwen2.5-VL calls the width of its merged features `out_hidden_size`, and both its own and theirs `hidden_size`.
        Self {
            hidden_size: number(&["embed_dim", "hidden_size"]),
            full_layers: full.map_or(layers, |indices| indices.len() as f64),
        }
    }
}

impl DeviceRate {
    /// Returns the costs of a pool with these parameters, from the FLOPs of a row and of a pair of rows that attend to each other.
    fn role(self, of_row: f64, of_pair: f64, pool: ParamCounts, is_bf16: bool) -> RoleCosts {
        let [_, gradients, state] = pool.memory(is_bf16);
        // Gradients and state are read, state and weights written.
        let once = (gradients + 2 * state + 4 * pool.trained) as f64;
        RoleCosts {
            per_token: of_row / self.flops,
            per_square: of_pair / self.flops,
            per_step: once / self.memory_bandwidth,
            gradient_bytes: 4.0 * pool.trained as f64,
            ..RoleCosts::default()
        }
    }
}

/// Returns the FLOPs of a pair of patches of a frame: queries times keys and scores times values, both ways, forward and twice backward,
/// not causal.
fn of_patches(json: &Value) -> f64 {
    let trunk = Trunk::encoder(json);
    12.0 * trunk.full_layers * trunk.hidden_size
}

/// Costs from FLOPs: `6` a parameter and token, and attention over documents and frames. Nothing is known of latencies
/// and of what a batch costs by itself.
pub fn costs(
    folder: &ModelFolder,
    encoder: ParamCounts,
    foundation: ParamCounts,
    rate: DeviceRate,
    is_bf16: bool,
) -> Costs {
    let size = ModelSize::of(&folder.config);
    let per_token = size.flops_per_token(0);
    Costs {
        encoder: rate.role(6.0 * size.encoder as f64, of_patches(&folder.json), encoder, is_bf16),
        foundation: rate.role(per_token, size.flops_per_token(1) - per_token, foundation, is_bf16),
        ..Costs::default()
    }
}

/// Returns the costs of one of several towers, whose rows meet its own parameters alone.
pub fn tower_costs(
    folder: &ModelFolder,
    tower: Tower,
    params: ParamCounts,
    rate: DeviceRate,
    is_bf16: bool,
) -> RoleCosts {
    let of_pair = if tower == Tower::Vision { of_patches(&folder.json) } else { 0.0 };
    rate.role(6.0 * (params.trained + params.frozen) as f64, of_pair, params, is_bf16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn memory_is_16_and_18_bytes_a_trained_parameter() {
        let pool = ParamCounts { trained: 10, frozen: 5 };
        assert_eq!(pool.memory(false).iter().sum::<u64>(), 16 * 10 + 4 * 5);
        assert_eq!(pool.memory(true).iter().sum::<u64>(), 18 * 10 + 2 * 5);
    }

    #[test]
    fn windows_count_as_no_full_layer() {
        let json =
            json!({"vision_config": {"depth": 32, "hidden_size": 1280, "fullatt_block_indexes": [7, 15, 23, 31]}});
        let trunk = Trunk::encoder(&json);
        assert_eq!((trunk.full_layers, trunk.hidden_size), (4.0, 1280.0));
        assert_eq!(Trunk::encoder(&json!({})), Trunk::default());
    }
}
