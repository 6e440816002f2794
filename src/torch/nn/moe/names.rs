//! The names of the tensors of a mixture of experts in checkpoints, within the layer's module.

use crate::params::StoredTensor;

#[derive(Clone, Debug, PartialEq)]
pub struct MoeNames {
    /// The router's weight `[E, D]`.
    pub router: &'static str,
    /// True if the checkpoint has it as `[D, E]`.
    pub router_transposed: bool,
    pub bias: BiasName,
    pub experts: ExpertNames,
    /// The module of the shared experts.
    pub shared: &'static str,
    pub shared_gate: &'static str,
}

/// The balancing bias, which may be one row of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BiasName {
    pub name: &'static str,
    /// `[E]` where `None`, else `[rows, E]`.
    pub rows: Option<i64>,
    pub row: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpertNames {
    /// `experts.{first}.gate_proj.weight` …, three tensors an expert, numbered from `first`.
    Each { gate_up_down: [&'static str; 3], first: i64 },
    /// `experts.gate_up_proj` `[E, 2F, D]` and `experts.down_proj` `[E, D, F]`.
    Stacked,
    /// `experts.gate_up_proj` `[E, D, 2F]`, each gate before its up, and `experts.down_proj` `[E, F, D]` (gpt-oss).
    Interleaved,
}

impl Default for MoeNames {
    /// Makes the names of Qwen3-MoE.
    fn default() -> Self {
        MoeNames {
            router: "gate.weight",
            router_transposed: false,
            bias: BiasName { name: "gate.e_score_correction_bias", rows: None, row: 0 },
            experts: ExpertNames::Each { gate_up_down: ["gate_proj", "up_proj", "down_proj"], first: 0 },
            shared: "shared_experts",
            shared_gate: "shared_expert_gate.weight",
        }
    }
}

impl ExpertNames {
    /// Names of our own for the stacked parameters, unlike those of another set of experts of the same layer.
    pub(super) fn params(&self) -> [String; 2] {
        match self {
            ExpertNames::Each { first, .. } if *first > 0 => {
                ["gate_up", "down"].map(|name| format!("experts.{name}_from_{first}"))
            }
            _ => ["experts.gate_up_proj".to_owned(), "experts.down_proj".to_owned()],
        }
    }

    /// Returns the checkpoint's tensors of the gate and up weights `[E, 2F, D]`, and of the down weights `[E, D, F]`.
    pub(super) fn pieces(&self, prefix: &str, [experts, width, inner]: [i64; 3]) -> [Vec<StoredTensor>; 2] {
        match self {
            ExpertNames::Each { gate_up_down: [gate, up, down], first } => {
                let piece = |expert: i64, name: &str, shape: [i64; 2], rows: Option<(i64, i64)>| {
                    let name = format!("{prefix}experts.{}.{name}.weight", first + expert);
                    StoredTensor { index: Some(expert), rows, ..StoredTensor::whole(&name, &shape) }
                };
                let both = |expert| {
                    let half = |name, start| piece(expert, name, [inner, width], Some((start, inner)));
                    [half(gate, 0), half(up, inner)]
                };
                let downs = (0..experts).map(|expert| piece(expert, down, [width, inner], None));
                [(0..experts).flat_map(both).collect(), downs.collect()]
            }
            ExpertNames::Interleaved => {
                let [gate_up, down] = ["gate_up_proj", "down_proj"].map(|name| format!("{prefix}experts.{name}"));
                let turned = |name: &str, shape: [i64; 3]| {
                    vec![StoredTensor { transposed: true, ..StoredTensor::whole(name, &shape) }]
                };
                [turned(&gate_up, [experts, width, 2 * inner]), turned(&down, [experts, inner, width])]
            }
            ExpertNames::Stacked => [
                vec![StoredTensor::whole(&format!("{prefix}experts.gate_up_proj"), &[experts, 2 * inner, width])],
                vec![StoredTensor::whole(&format!("{prefix}experts.down_proj"), &[experts, width, inner])],
            ],
        }
    }
}
