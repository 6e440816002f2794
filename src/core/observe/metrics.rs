//! The measurements of a step. How they are shown is not decided here.

use crate::message::{ExpertLoads, MemoryReport, PairReport, PoolName};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The measurements of a pool in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolMetrics {
    pub actors: usize,
    /// Share of the step in which its engines computed, 0 to 1, the mean over the pool.
    pub busy: f64,
    /// The fitted costs, as in `encoder_cost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<[f64; 3]>,
    /// The memory, as in `encoder_memory`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryReport>,
}

/// The measurements of one of several foundation pools in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExpertMetrics {
    /// The number of its samples. With none its model stays as it is in this step.
    pub samples: u64,
    /// Mean over its own targets; `None` where there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Norm of the gradient of that loss, before clipping.
    #[serde(deserialize_with = "number")]
    pub grad_norm: f64,
}

/// The means over a step's answers that are pairs or have labels. A mean of no answers is not a number, and is not written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PairMetrics {
    /// Rewards of the chosen and of the rejected answers.
    #[serde(skip_serializing_if = "is_nan", default = "nan", deserialize_with = "number")]
    pub chosen_reward: f64,
    #[serde(skip_serializing_if = "is_nan", default = "nan", deserialize_with = "number")]
    pub rejected_reward: f64,
    /// The share of pairs of which the chosen answer has the higher one; of single answers those on the right side.
    #[serde(deserialize_with = "number")]
    pub accuracy: f64,
    /// Log-probabilities of the answers.
    #[serde(skip_serializing_if = "is_nan", default = "nan", deserialize_with = "number")]
    pub chosen_logp: f64,
    #[serde(skip_serializing_if = "is_nan", default = "nan", deserialize_with = "number")]
    pub rejected_logp: f64,
    /// The divergence of single answers from the reference model; 0 of pairs.
    #[serde(default, deserialize_with = "number")]
    pub divergence: f64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_nan(value: &f64) -> bool {
    value.is_nan()
}

fn nan() -> f64 {
    f64::NAN
}

/// Reads a number, or `null`, as which JSON has what is not finite.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

impl PairMetrics {
    /// `None` where no pair counts.
    pub fn of(report: &PairReport) -> Option<Self> {
        (report.pairs > 0.0).then(|| Self {
            chosen_reward: report.chosen_reward / report.chosen,
            rejected_reward: report.rejected_reward / report.rejected,
            accuracy: report.preferred / report.pairs,
            chosen_logp: report.chosen_logp / report.chosen,
            rejected_logp: report.rejected_logp / report.rejected,
            divergence: report.divergence / report.pairs,
        })
    }

    /// Returns the difference between the rewards of the chosen answers and of the others.
    pub fn margin(&self) -> f64 {
        self.chosen_reward - self.rejected_reward
    }
}

/// One step's measurements: a line of `metrics.jsonl`, a point of every TensorBoard curve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepMetrics {
    /// The number of the step, counted from 0.
    pub step: u64,
    /// Mean over the step's target tokens.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// Norm of the gradient over all pools, before clipping.
    #[serde(deserialize_with = "number")]
    pub grad_norm: f64,
    /// The foundation pools, where there are several; the loss above is the mean over the samples of all.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub experts: BTreeMap<PoolName, ExpertMetrics>,
    pub learning_rate: f64,
    /// Real tokens of the step; there is no padding.
    pub tokens: u64,
    pub images: u64,
    /// The number of `images` whose features came from the encoders' cache.
    pub cached_images: u64,
    pub tokens_per_s: f64,
    pub images_per_s: f64,
    pub step_ms: f64,
    /// Seconds that the run was active when this step was done, over all its starts: what [`Goodput`](super::Goodput) is a share of.
    pub active_s: f64,
    /// Share of the step in which the pool's engines computed, 0 to 1, the mean over the pool.
    pub encoder_busy: f64,
    pub foundation_busy: f64,
    /// Tokens of the packs over what they could hold.
    pub pack_fill: f64,
    /// The most that a replica of the pool had to do over the mean, by the cost that the plan goes by; and of the
    /// seconds that it took. 1 where all had alike, 0 where there was nothing.
    pub encoder_imbalance: f64,
    pub foundation_imbalance: f64,
    pub encoder_imbalance_measured: f64,
    pub foundation_imbalance_measured: f64,
    /// The encoder pools, where the run has others than `encoder`, and the foundation pools, where there are several; what
    /// stands above is then of all encoders, or all foundations, together.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pools: BTreeMap<PoolName, PoolMetrics>,
    /// Fitted costs in seconds, with `scheduler.balance: fitted`: of a pair of tokens that attend to each other, of a
    /// token, of a document (media item).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoder_cost: Option<[f64; 3]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foundation_cost: Option<[f64; 3]>,
    /// Model FLOPs utilization, 0 to 1, where the device's peak is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mfu: Option<f64>,
    /// Load-balancing loss of a mixture of experts and its router z-loss, unweighted, where they are computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aux_loss: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub z_loss: Option<f64>,
    /// Divergence of what the indexers of sparse attention choose from what attention looks at: of a token, summed over
    /// layers; unweighted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub indexer_loss: Option<f64>,
    /// The means over pairs of answers, where the run learns from such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<PairMetrics>,
    /// Tokens of each expert, layer by layer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expert_loads: Vec<ExpertLoads>,
    /// Bytes of tensors of the pool's actor that has taken the most so far, by what they are for, at that moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub encoder_memory: Option<MemoryReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foundation_memory: Option<MemoryReport>,
    /// Hash chain over the steps so far and their samples: equal where no sample was lost or doubled.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ledger: String,
    /// The step's gradient was dropped.
    pub skipped: bool,
    /// Bad samples so far.
    pub bad_samples: u64,
    /// Losses of held-out samples with the parameters that this step began with, by the names of their sets; of steps before
    /// which there was an evaluation.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub eval_loss: BTreeMap<String, f64>,
    /// Samples so far that were skipped because they are longer than a pack.
    #[serde(default)]
    pub too_long: u64,
    /// Checkpoints so far that are not in the store of `checkpoint.upload`, since their copies failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uncopied_checkpoints: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl StepMetrics {
    /// Returns name and value of every curve; the names follow Megatron's groups. The value of experts is the largest load of a layer
    /// over the mean.
    pub fn scalars(&self) -> Vec<(Cow<'static, str>, f64)> {
        let mut scalars: Vec<(Cow<'static, str>, f64)> = [
            ("train/loss", self.loss),
            ("train/grad_norm", self.grad_norm),
            ("train/learning_rate", self.learning_rate),
            ("train/skipped", f64::from(u8::from(self.skipped))),
            ("data/tokens", self.tokens as f64),
            ("data/images", self.images as f64),
            ("data/cached_images", self.cached_images as f64),
            ("data/bad_samples", self.bad_samples as f64),
            ("data/too_long", self.too_long as f64),
            ("checkpoint/uncopied", self.uncopied_checkpoints as f64),
            ("speed/tokens_per_s", self.tokens_per_s),
            ("speed/images_per_s", self.images_per_s),
            ("speed/step_ms", self.step_ms),
            ("busy/encoder", self.encoder_busy),
            ("busy/foundation", self.foundation_busy),
            ("balance/pack_fill", self.pack_fill),
            ("balance/encoder", self.encoder_imbalance),
            ("balance/foundation", self.foundation_imbalance),
            ("balance/encoder_measured", self.encoder_imbalance_measured),
            ("balance/foundation_measured", self.foundation_imbalance_measured),
        ]
        .map(|(name, value)| (name.into(), value))
        .into();
        let some = [
            ("speed/mfu", self.mfu),
            ("moe/aux_loss", self.aux_loss),
            ("moe/z_loss", self.z_loss),
            ("attention/indexer_loss", self.indexer_loss),
        ];
        let pools = || self.pools.iter();
        scalars.extend(pools().map(|(name, pool)| (format!("busy/{name}").into(), pool.busy)));
        for (name, expert) in &self.experts {
            scalars.push((format!("experts/{name}_samples").into(), expert.samples as f64));
            scalars.extend(expert.loss.map(|loss| (format!("experts/{name}_loss").into(), loss)));
            scalars.extend(expert.loss.map(|_| (format!("experts/{name}_grad_norm").into(), expert.grad_norm)));
        }
        let memory = [("encoder", self.encoder_memory), ("foundation", self.foundation_memory)];
        for (name, memory) in memory.into_iter().chain(pools().map(|(name, pool)| (name.as_str(), pool.memory))) {
            scalars.extend(memory.map(|memory| (format!("memory/{name}_bytes").into(), memory.total() as f64)));
        }
        scalars.extend(some.into_iter().filter_map(|(name, value)| Some((name.into(), value?))));
        if let Some(pairs) = &self.pairs {
            let of_pairs = [
                ("rewards/chosen", pairs.chosen_reward),
                ("rewards/rejected", pairs.rejected_reward),
                ("rewards/margins", pairs.margin()),
                ("rewards/accuracies", pairs.accuracy),
                ("logps/chosen", pairs.chosen_logp),
                ("logps/rejected", pairs.rejected_logp),
            ];
            scalars.extend(
                of_pairs.into_iter().filter(|(_, value)| !value.is_nan()).map(|(name, value)| (name.into(), value)),
            );
            scalars.extend((pairs.divergence != 0.0).then(|| ("kl".into(), pairs.divergence)));
        }
        let costs = [("encoder", self.encoder_cost), ("foundation", self.foundation_cost)];
        for (pool, cost) in costs.into_iter().chain(pools().map(|(name, pool)| (name.as_str(), pool.cost))) {
            let of = |(what, value)| (format!("cost/{pool}_{what}").into(), value);
            scalars.extend(cost.into_iter().flat_map(|cost| ["pair", "token", "one"].into_iter().zip(cost)).map(of));
        }
        let of_layer = |loads: &ExpertLoads| {
            (format!("moe/imbalance/{}", loads.layer.replace(' ', "_")).into(), loads.imbalance())
        };
        scalars.extend(self.expert_loads.iter().map(of_layer));
        scalars
    }
}

/// Returns the mean of those that are numbers.
pub(super) fn finite_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.filter(|value| value.is_finite()).fold((0.0, 0), |(sum, count), v| (sum + v, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_of_experts_are_a_curve_a_layer() {
        let loads = |layer: &str, tokens: &[u64]| ExpertLoads { layer: layer.into(), tokens: tokens.to_vec() };
        let expert_loads = vec![loads("layer 3", &[6, 2, 1, 3]), loads("layer 3 media", &[0, 0])];
        let metrics = StepMetrics { expert_loads, aux_loss: Some(1.25), ..Default::default() };
        let scalars = metrics.scalars();
        let value = |name: &str| scalars.iter().find(|(found, _)| found == name).map(|(_, value)| *value);
        assert_eq!((value("moe/imbalance/layer_3"), value("moe/imbalance/layer_3_media")), (Some(2.0), Some(0.0)));
        assert_eq!((value("moe/aux_loss"), value("moe/z_loss")), (Some(1.25), None));
    }
}
