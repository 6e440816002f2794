//! Describes which experts a token goes to, and with what weights; float32 whatever the model is.
//!
//! Follows transformers' `Qwen3MoeTopKRouter`, `DeepseekV2TopkRouter`, `DeepseekV3TopkRouter` (also GLM-5's and Kimi's),
//! `MiniMaxM2TopKRouter`, `Ernie4_5_MoeTopKRouter`, `GptOssTopKRouter`, `DeepseekV4TopKRouter` and `DeepseekV4HashRouter`.

use tch::{Kind, Tensor};

use super::config::{ExpertGroups, GroupScore, MoeConfig, Normalize, RouterConfig, RouterScores};
use super::names::MoeNames;
use crate::params::Adapter;
use crate::params::{Init, ParamSpec, Role, Scope, StoredTensor};

pub struct Router {
    config: RouterConfig,
    weight_ED: Tensor,
    adapter: Option<Adapter>,
    /// The bias of the logits.
    logit_bias_E: Option<Tensor>,
    /// The balancing bias.
    bias_E: Option<Tensor>,
    /// The experts of every token of the vocabulary, `[V, K]`, float32.
    table_VK: Option<Tensor>,
}

/// The table of experts by token.
const TABLE: &str = "gate.tid2eid";

/// Describes where the tokens of a row go.
pub struct TokenRouting {
    /// `[T, E]`, float32.
    pub logits_TE: Tensor,
    /// The weights of the chosen experts, `[T, K]`, float32.
    pub weights_TK: Tensor,
    /// The experts of each token, `[T, K]`, int64, in no order.
    pub experts_TK: Tensor,
}

impl Router {
    /// Returns the weight, and the balancing bias unless `shares_bias`: where another set of experts declares it.
    pub fn specs(prefix: &str, width: i64, config: &MoeConfig, shares_bias: bool, std: f64) -> Vec<ParamSpec> {
        let (names, experts) = (&config.names, config.router.num_experts);
        let name = format!("{prefix}{}", names.router);
        let weight = ParamSpec::new(&name, &[experts, width], Init::Normal(std));
        let mut weight = ParamSpec { is_router: true, ..weight };
        if names.router_transposed {
            weight.pieces = vec![StoredTensor { transposed: true, ..StoredTensor::whole(&name, &[width, experts]) }];
        }
        let mut specs = vec![weight];
        if config.router.logit_bias {
            specs.push(ParamSpec::new(format!("{prefix}{}", logit_bias(names)), &[experts], Init::Normal(std)));
        }
        if config.router.bias && !shares_bias {
            let shape: Vec<i64> = names.bias.rows.into_iter().chain([experts]).collect();
            let bias = ParamSpec::new(format!("{prefix}{}", names.bias.name), &shape, Init::Zeros);
            specs.push(bias.with_role(Role::Buffer));
        }
        if let Some(tokens) = config.router.by_token {
            let (name, shape) = (format!("{prefix}{TABLE}"), [tokens, config.router.top_k]);
            let table = ParamSpec::new(&name, &shape, Init::Distinct(experts, config.router.top_k));
            let stored = StoredTensor { is_integer: true, ..StoredTensor::whole(&name, &shape) };
            specs.push(table.stored_as(vec![stored]).with_role(Role::Buffer));
        }
        specs
    }

    /// Takes the router's weight `[E, D]` and, where it has them, the bias of its logits, the balancing bias `[E]` and the
    /// table of experts by token `[V, K]`.
    pub fn new(scope: &Scope<'_>, config: &MoeConfig) -> Router {
        let names = &config.names;
        let bias = |row: i64| {
            let bias = scope.take(names.bias.name);
            if names.bias.rows.is_some() { bias.get(row) } else { bias }
        };
        Router {
            weight_ED: scope.take(names.router),
            adapter: names.router.strip_suffix(".weight").and_then(|module| scope.take_adapter(module)),
            logit_bias_E: config.router.logit_bias.then(|| scope.take(&logit_bias(names))),
            bias_E: config.router.bias.then(|| bias(names.bias.row)),
            table_VK: config.router.by_token.map(|_| scope.take(TABLE)),
            config: config.router.clone(),
        }
    }

    /// Returns the config that the router was built from.
    pub fn config(&self) -> &RouterConfig {
        &self.config
    }

    /// Returns the balancing bias, a view of the parameter. `[E]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias_E.as_ref()
    }

    /// `ids_T`, int64, are the tokens, which a router with a table needs. Panics where it has none of them.
    /// `x_TD` `[T, D]`, `ids_T` `[T]`.
    pub fn forward(&self, x_TD: &Tensor, ids_T: Option<&Tensor>) -> TokenRouting {
        let RouterConfig { top_k, scores, normalize, scaling_factor, .. } = self.config;
        let weight_ED = match &self.adapter {
            Some(adapter) => adapter.merged(&self.weight_ED),
            None => self.weight_ED.shallow_clone(),
        };
        let bias_E = self.logit_bias_E.as_ref().map(|bias_E| bias_E.to_kind(Kind::Float));
        let logits_TE = x_TD.to_kind(Kind::Float).linear(&weight_ED.to_kind(Kind::Float), bias_E.as_ref());
        let scores_TE = match scores {
            RouterScores::Softmax => logits_TE.softmax(-1, Kind::Float),
            RouterScores::SoftmaxOfChosen => logits_TE.shallow_clone(),
            RouterScores::Sigmoid => logits_TE.sigmoid(),
            RouterScores::SqrtSoftplus => logits_TE.softplus().sqrt(),
        };
        let experts_TK = if let Some(table_VK) = &self.table_VK {
            let ids_T = ids_T.expect("a router with a table is given the tokens");
            table_VK.index_select(0, ids_T).to_kind(Kind::Int64)
        } else {
            let _no_grad = tch::no_grad_guard();
            let mut choice_TE = scores_TE.detach();
            if let Some(bias_E) = &self.bias_E {
                choice_TE = choice_TE + bias_E;
            }
            if let Some(groups) = self.config.groups {
                choice_TE = keep_best(&choice_TE, groups);
            }
            choice_TE.topk(top_k, -1, true, false).1
        };
        let mut weights_TK = scores_TE.gather(-1, &experts_TK, false);
        if scores == RouterScores::SoftmaxOfChosen {
            weights_TK = weights_TK.softmax(-1, Kind::Float);
        }
        let sum = || weights_TK.sum_dim_intlist([-1i64].as_slice(), true, Kind::Float);
        let weights_TK = match normalize {
            Normalize::No => weights_TK,
            Normalize::Sum(eps) => &weights_TK / (sum() + eps),
            Normalize::ClampedSum(min) => &weights_TK / sum().clamp_min(min),
        };
        let weights_TK = if scaling_factor == 1.0 { weights_TK } else { weights_TK * scaling_factor };
        TokenRouting { logits_TE, weights_TK, experts_TK }
    }
}

/// Returns the name of the logits' bias, which is beside the weight.
fn logit_bias(names: &MoeNames) -> String {
    format!("{}.bias", names.router.trim_end_matches(".weight"))
}

/// Returns `choice_TE` with minus infinity in the groups that are not among the best.
fn keep_best(choice_TE: &Tensor, groups: ExpertGroups) -> Tensor {
    let grouped = choice_TE.unflatten(-1, [groups.num, -1]);
    let of_groups = match groups.score {
        GroupScore::Best => grouped.amax([-1i64].as_slice(), false),
        GroupScore::BestTwo => {
            grouped.topk(2, -1, true, false).0.sum_dim_intlist([-1i64].as_slice(), false, Kind::Float)
        }
    };
    let kept = of_groups.topk(groups.kept, -1, true, false).1;
    let dropped = of_groups.ones_like().scatter_value(-1, &kept, 0.0).to_kind(Kind::Bool);
    grouped.masked_fill(&dropped.unsqueeze(-1), f64::NEG_INFINITY).flatten(-2, -1)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::Router;
    use crate::nn::moe::{ExpertGroups, GroupScore, Normalize, RouterConfig, RouterScores};

    /// Routes one token among four experts with these logits; returns the chosen experts, ascending, with their weights.
    fn route(config: RouterConfig, logits: [f64; 4], bias: Option<[f32; 4]>) -> Vec<(i64, f64)> {
        let weight_ED = Tensor::from_slice(&logits).to_kind(Kind::Float).view([4, 1]);
        let bias_E = bias.map(|bias| Tensor::from_slice(&bias));
        let router = Router { config, weight_ED, adapter: None, logit_bias_E: None, bias_E, table_VK: None };
        let routing = router.forward(&Tensor::ones([1, 1], (Kind::Float, Device::Cpu)), None);
        let experts = Vec::<i64>::try_from(routing.experts_TK.get(0)).unwrap();
        let weights = Vec::<f64>::try_from(routing.weights_TK.get(0).to_kind(Kind::Double)).unwrap();
        let mut chosen: Vec<(i64, f64)> = experts.into_iter().zip(weights).collect();
        chosen.sort_by_key(|chosen| chosen.0);
        chosen
    }

    fn is(found: &[(i64, f64)], expected: &[(i64, f64)]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-6, "{found:?} is not {expected:?}");
        }
    }

    fn ln(probabilities: [f64; 4]) -> [f64; 4] {
        probabilities.map(f64::ln)
    }

    #[test]
    fn softmax_before_and_after_the_choice() {
        let softmax = RouterConfig::softmax(4, 2);
        let logits = ln([0.1, 0.4, 0.2, 0.3]);
        is(&route(softmax.clone(), logits, None), &[(1, 0.4 / 0.7), (3, 0.3 / 0.7)]);
        let plain = RouterConfig { normalize: Normalize::No, scaling_factor: 2.0, ..softmax.clone() };
        is(&route(plain.clone(), logits, None), &[(1, 0.8), (3, 0.6)]);
        let after = RouterConfig { scores: RouterScores::SoftmaxOfChosen, scaling_factor: 1.0, ..plain };
        is(&route(after, logits, None), &[(1, 0.4 / 0.7), (3, 0.3 / 0.7)]);
        let clamped = RouterConfig { normalize: Normalize::ClampedSum(1.0), ..softmax };
        is(&route(clamped, logits, None), &[(1, 0.4), (3, 0.3)]);
    }

    #[test]
    fn a_bias_changes_the_choice_and_not_the_weights() {
        let logits = [0.0, 1.0, 2.0, 3.0];
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let router = RouterConfig { normalize: Normalize::No, ..RouterConfig::sigmoid(4, 2) };
        is(&route(router.clone(), logits, None), &[(2, sigmoid(2.0)), (3, sigmoid(3.0))]);
        is(&route(router, logits, Some([5.0, 0.0, 0.0, 0.0])), &[(0, 0.5), (3, sigmoid(3.0))]);
    }

    #[test]
    fn a_group_counts_by_its_best_or_its_two_best() {
        let logits = ln([0.4, 0.01, 0.3, 0.29]);
        let with = |score| {
            let groups = Some(ExpertGroups { num: 2, kept: 1, score });
            RouterConfig { normalize: Normalize::No, groups, ..RouterConfig::softmax(4, 2) }
        };
        is(&route(with(GroupScore::Best), logits, None), &[(0, 0.4), (1, 0.01)]);
        is(&route(with(GroupScore::BestTwo), logits, None), &[(2, 0.3), (3, 0.29)]);
    }
}
