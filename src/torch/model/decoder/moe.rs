//! A mixture of experts on the tape. Every step is an operation of its own, so that a collective fits between any two:
//! norm, route, dispatch, experts, combine, and the shared experts beside them.
//!
//! Shapes: T tokens, D hidden size, E experts, K experts a token, N = T·K rows sorted by expert.

use std::rc::Rc;

use tch::Tensor;

use super::config::{DecoderConfig, LayerConfig};
use super::recording::{LayerLosses, Recording, Split, Wanted};
use crate::model::routing::RoutedExperts;
use crate::nn::RmsNorm;
use crate::nn::moe::{Experts, MoeConfig, Order, Router, SharedExperts, choices_by_softmax, z_loss};
use crate::params::{ParamId, ParamSpec, ParamStore, Scope};
use crate::tape::{Custom, Needs, ParamGrads, Policy, Slot, Tape};

/// The feed-forward branch of a layer.
pub(super) struct Moe {
    /// `None` where the input is not normed.
    norm: Option<Rc<RmsNorm>>,
    norm_ids: Vec<ParamId>,
    experts: ExpertSet,
    /// The experts of the tokens of pictures and videos, and the ids of these tokens.
    media: Option<(ExpertSet, Vec<i64>)>,
    shared: Option<(Rc<SharedExperts>, Vec<ParamId>)>,
}

struct ExpertSet {
    router: Rc<Router>,
    router_ids: Vec<ParamId>,
    experts: Rc<Experts>,
    experts_ids: Vec<ParamId>,
}

impl Moe {
    /// Returns the specs of the module alone; its norm is the layer's.
    pub fn specs(prefix: &str, width: i64, config: &MoeConfig, std: f64) -> Vec<ParamSpec> {
        let mut specs = Router::specs(prefix, width, config, false, std);
        specs.extend(Experts::specs(prefix, width, config, std));
        if let Some(media) = &config.media {
            // One tensor holds the biases of both sets.
            let shares_bias = media.experts.names.bias.name == config.names.bias.name;
            specs.extend(Router::specs(prefix, width, &media.experts, shares_bias, std));
            specs.extend(Experts::specs(prefix, width, &media.experts, std));
        }
        if let Some(shared) = &config.shared {
            specs.extend(SharedExperts::specs(prefix, width, config, shared, std));
        }
        specs
    }

    /// `prefix` is the layer's.
    pub fn new(
        decoder: &DecoderConfig,
        layer: &LayerConfig,
        params: &ParamStore,
        prefix: &str,
        config: &MoeConfig,
    ) -> Moe {
        let outer = Scope::new(params, prefix);
        let norm = layer.norms_inputs.then(|| Rc::new(layer.norm.build(&outer, decoder.names.post_norm)));
        let module = format!("{prefix}{}.", decoder.names.mlp);
        let set = |config: &MoeConfig| {
            let (router, experts) = (Scope::new(params, module.clone()), Scope::new(params, module.clone()));
            ExpertSet {
                router: Rc::new(Router::new(&router, config)),
                router_ids: router.into_ids(),
                experts: Rc::new(Experts::new(&experts, config, layer.act)),
                experts_ids: experts.into_ids(),
            }
        };
        let shared = config.shared.as_ref().map(|shared| {
            let scope = Scope::new(params, module.clone());
            let experts = SharedExperts::new(&scope, config, shared, layer.act);
            (Rc::new(experts), scope.into_ids())
        });
        Moe {
            norm,
            norm_ids: outer.into_ids(),
            experts: set(config),
            media: config.media.as_ref().map(|media| (set(&media.experts), media.token_ids.clone())),
            shared,
        }
    }

    /// Returns the routers of this layer, and whether they are of the tokens of pictures and videos alone.
    pub fn routers(&self) -> impl Iterator<Item = (bool, &Router)> {
        let media = self.media.as_ref().map(|(set, _)| (true, &*set.router));
        std::iter::once((false, &*self.experts.router)).chain(media)
    }

    /// Returns the tokens for which there are experts of their own.
    pub fn media_token_ids(&self) -> Option<&[i64]> {
        self.media.as_ref().map(|(_, ids)| ids.as_slice())
    }

    /// Records the branch without its residual.
    pub fn record(&self, tape: &mut Tape, layer: &str, x: Slot, recording: &mut Recording) -> Slot {
        // In sequence parallelism the norm is of the rank's own tokens.
        let splits = recording.splits_tokens();
        let x = if splits { x } else { recording.enter_region(tape, x) };
        let h = match self.norm.clone() {
            Some(norm) => {
                let forward = move |reads: &[Tensor]| vec![norm.forward(&reads[0])];
                tape.run(format!("{layer} norm"), &self.norm_ids, recording.policy, &[x], 1, forward)[0]
            }
            None => x,
        };
        let h = if splits { recording.enter_region(tape, h) } else { h };
        let y = self.record_experts(tape, layer, h, recording);
        recording.leave_region(tape, y)
    }

    /// Records the operations within the region, and returns their output.
    fn record_experts(&self, tape: &mut Tape, layer: &str, h: Slot, recording: &mut Recording) -> Slot {
        let policy = recording.policy;
        let shared = self.shared.as_ref().map(|(shared, ids)| {
            let shared = shared.clone();
            let forward = move |reads: &[Tensor]| vec![shared.forward(&reads[0])];
            tape.run(format!("{layer} shared experts"), ids, policy, &[h], 1, forward)[0]
        });
        let (Some((media, _)), Some(split)) = (&self.media, recording.split.clone()) else {
            let routed = self.experts.record(tape, layer, false, h, recording);
            return shared.map_or(routed, |shared| tape.add(routed, shared));
        };
        let mut y = shared.unwrap_or_else(|| {
            tape.run(format!("{layer} zeros"), &[], policy, &[h], 1, |reads| vec![reads[0].zeros_like()])[0]
        });
        for (set, is_media, rows) in [(&self.experts, false, &split.others), (media, true, &split.media)] {
            let tokens = tape.take_rows(h, rows.clone());
            let routed = set.record(tape, layer, is_media, tokens, recording);
            y = tape.add_rows(y, rows.clone(), routed);
        }
        y
    }

    /// Returns the branch without a tape, its norm included and the residual not: `[T, D]` to `[T, D]`. `ids_T`, int64, are its tokens.
    pub fn forward(&self, x_TD: &Tensor, ids_T: &Tensor, split: Option<&Split>) -> Tensor {
        let h_TD = match &self.norm {
            Some(norm) => norm.forward(x_TD),
            None => x_TD.shallow_clone(),
        };
        let y_TD = match (&self.media, split) {
            (Some((media, _)), Some(split)) => {
                let mut y_TD = h_TD.zeros_like();
                for (set, rows) in [(&self.experts, &split.others), (media, &split.media)] {
                    let (h_TD, ids_T) = (h_TD.index_select(0, rows), ids_T.index_select(0, rows));
                    y_TD = y_TD.index_add(0, rows, &set.forward(&h_TD, &ids_T));
                }
                y_TD
            }
            _ => self.experts.forward(&h_TD, ids_T),
        };
        match &self.shared {
            Some((shared, _)) => y_TD + shared.forward(&h_TD),
            None => y_TD,
        }
    }
}

impl ExpertSet {
    fn forward(&self, h_TD: &Tensor, ids_T: &Tensor) -> Tensor {
        let config = self.router.config();
        let routing = self.router.forward(h_TD, Some(ids_T));
        let order = Order::new(&routing.experts_TK, config.num_experts);
        let rows_ND = Order::dispatch(h_TD, &order.sources_N, config.top_k);
        let (y_ND, _) = self.experts.forward(&rows_ND, &order.counts_E);
        Order::combine(&y_ND, &routing.weights_TK, &order.rows_N)
    }

    fn record(&self, tape: &mut Tape, layer: &str, media: bool, h: Slot, recording: &mut Recording) -> Slot {
        let Recording { policy, keep_routing, ids, .. } = *recording;
        // Of a table of experts nothing is to be balanced.
        let by_token = self.router.config().by_token.is_some();
        let (wanted, ids) = match by_token {
            true => (Wanted::default(), ids),
            false => (recording.wanted, None),
        };
        let (num_experts, top_k) = (self.router.config().num_experts, self.router.config().top_k);
        let router = self.router.clone();
        let route = move |reads: &[Tensor]| {
            let routing = router.forward(&reads[0], reads.get(1));
            let order = Order::new(&routing.experts_TK, num_experts);
            let mut outputs = vec![routing.weights_TK, order.sources_N, order.rows_N, order.counts_E];
            if wanted.aux {
                let (choices_E, probabilities_E) = choices_by_softmax(&routing.logits_TE, top_k);
                outputs.extend([choices_E, probabilities_E]);
            }
            if wanted.z {
                outputs.push(z_loss(&routing.logits_TE));
            }
            if keep_routing {
                outputs.extend([routing.logits_TE, routing.experts_TK]);
            }
            outputs
        };
        let kind = if media { "media " } else { "" };
        let name = |step: &str| format!("{layer} {kind}{step}");
        let num_outputs = 4 + 2 * usize::from(wanted.aux) + usize::from(wanted.z) + 2 * usize::from(keep_routing);
        let reads: Vec<Slot> = std::iter::once(h).chain(ids).collect();
        let outputs = tape.run(name("route"), &self.router_ids, policy, &reads, num_outputs, route);
        let [weights, sources, rows, counts] = outputs[..4] else { unreachable!("four at least") };
        let mut others = outputs[4..].iter().copied();
        let mut next = || others.next().expect("as many as were counted");
        let choices = wanted.aux.then(|| [next(), next()]);
        recording.losses.push(LayerLosses { choices, z: wanted.z.then(&mut next) });
        let outputs = keep_routing.then(|| [next(), weights, next()]);
        recording.routed.push(RoutedExperts { layer: layer.to_owned(), media, counts, outputs });
        tape.keep(counts);
        outputs.into_iter().flatten().for_each(|slot| tape.keep(slot));

        let dispatched = tape.custom(name("dispatch"), &[], &[h, sources, rows], 1, Box::new(Dispatch { top_k }))[0];
        let keep = policy == Policy::Keep;
        let run = |tape: &mut Tape, rows: Slot, counts: Slot| {
            let experts = Box::new(RunExperts { experts: self.experts.clone(), keep });
            tape.custom(name("experts"), &self.experts_ids, &[rows, counts], 1, experts)[0]
        };
        let done = match recording.parallel.ep {
            1 => run(tape, dispatched, counts),
            _ => {
                let all = tape.all_counts(counts);
                let [rows, own] = tape.to_experts(dispatched, all);
                let done = run(tape, rows, own);
                tape.from_experts(done, all)
            }
        };
        tape.custom(name("combine"), &[], &[done, weights, sources, rows], 1, Box::new(Combine))[0]
    }
}

/// Tokens `[T, D]`, sources and rows `[N]` → rows `[N, D]`.
struct Dispatch {
    top_k: i64,
}

impl Custom for Dispatch {
    fn forward(&self, reads: &[Tensor], needs: Option<&Needs>) -> (Vec<Tensor>, Vec<Tensor>) {
        let saved = needs.map_or(Vec::new(), |_| vec![reads[2].shallow_clone()]);
        (vec![Order::dispatch(&reads[0], &reads[1], self.top_k)], saved)
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        grads: &[Option<Tensor>],
        _: &Needs,
        _: Option<&ParamGrads<'_>>,
    ) -> Vec<Option<Tensor>> {
        let found = grads[0].as_ref().map(|grad| Order::dispatch_backward(grad, &saved[0], self.top_k));
        vec![found, None, None]
    }
}

/// Rows `[N, D]` and counts `[E]` → rows `[N, D]`.
struct RunExperts {
    experts: Rc<Experts>,
    /// True if what is between the two products is kept for the backward instead of recomputed.
    keep: bool,
}

impl Custom for RunExperts {
    fn forward(&self, reads: &[Tensor], needs: Option<&Needs>) -> (Vec<Tensor>, Vec<Tensor>) {
        let (y_ND, hidden) = self.experts.forward(&reads[0], &reads[1]);
        let mut saved = Vec::new();
        if needs.is_some() {
            saved.extend(reads.iter().map(Tensor::shallow_clone));
            saved.extend(hidden.into_iter().filter(|_| self.keep));
        }
        (vec![y_ND], saved)
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        grads: &[Option<Tensor>],
        needs: &Needs,
        params: Option<&ParamGrads<'_>>,
    ) -> Vec<Option<Tensor>> {
        let Some(of_output) = &grads[0] else { return vec![None, None] };
        let mut saved = saved.into_iter();
        let mut next = || saved.next().expect("rows and counts");
        let (rows_ND, counts_E) = (next(), next());
        let hidden = match self.keep {
            true => [next(), next()],
            false => self.experts.hidden(&rows_ND, &counts_E),
        };
        let found = self.experts.backward(of_output, &rows_ND, &counts_E, hidden, [needs.reads[0], needs.params]);
        for (index, of_param) in found.params {
            let sum = params.expect("gradients of parameters were wanted").sum(index);
            let _ = sum.shallow_clone().g_add_(&of_param);
        }
        vec![found.rows, None]
    }
}

/// Rows `[N, D]`, weights `[T, K]`, sources and rows `[N]` → tokens `[T, D]`.
struct Combine;

impl Custom for Combine {
    fn forward(&self, reads: &[Tensor], needs: Option<&Needs>) -> (Vec<Tensor>, Vec<Tensor>) {
        let saved = needs.map_or(Vec::new(), |_| reads[..3].iter().map(Tensor::shallow_clone).collect());
        (vec![Order::combine(&reads[0], &reads[1], &reads[3])], saved)
    }

    fn backward(
        &self,
        saved: Vec<Tensor>,
        grads: &[Option<Tensor>],
        _: &Needs,
        _: Option<&ParamGrads<'_>>,
    ) -> Vec<Option<Tensor>> {
        let Some(of_sum) = &grads[0] else { return vec![None, None, None, None] };
        let (of_rows, of_weights) = Order::combine_backward(of_sum, &saved[0], &saved[1], &saved[2]);
        vec![Some(of_rows), Some(of_weights), None, None]
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use serde_json::json;
    use tch::{Device, Kind, Tensor};

    use crate::model::{Balance, Decoder, ModelConfig, Targets, TextBatch, TextOptions};
    use crate::nn::Mask;
    use crate::params::ParamStore;
    use crate::tape::{Execution, Policy};

    /// Returns the losses and the gradient of a small MiniMax-M2 with all its losses.
    fn step(policy: Policy) -> (f64, f64, Tensor) {
        let config = json!({
            "model_type": "minimax_m2", "vocab_size": 32, "hidden_size": 16, "intermediate_size": 8,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
            "num_local_experts": 4, "num_experts_per_tok": 2
        });
        let mut config = ModelConfig::from_hf(&config).unwrap().decoder().unwrap().clone();
        config.balance = Balance { aux_loss_coef: 0.1, z_loss_coef: 0.01, bias_update_rate: 0.0 };
        let params = Rc::new(ParamStore::new(Decoder::specs(&config), Kind::Float, Device::Cpu));
        params.init_random(5);
        let model = Decoder::new(&config, &params);
        let ids: Vec<i64> = (0..9).map(|at| at * 7 % 32).collect();
        let batch = TextBatch {
            input_ids: Tensor::from_slice(&ids),
            position_ids: Tensor::arange(9, (Kind::Int64, Device::Cpu)),
            cu_seqlens: vec![0, 9],
            mask: Mask::Causal,
            feature_rows: vec![],
            row: None,
            past: None,
            shared: None,
        };
        let targets = Targets {
            labels: ids.iter().map(|id| (id + 1) % 32).collect(),
            weights: None,
            scale: 1.0 / 9.0,
            evaluates: false,
            answers: None,
            noise: None,
        };
        let options = TextOptions { feature_tensors: Vec::new(), train_features: false, policy, keep_routing: false };
        let made = model.tape(&batch, Some(&targets), &options);
        let mut run = Execution::new(Rc::new(made.tape), params.clone(), vec![]);
        run.forward().unwrap();
        let loss = made.loss.unwrap();
        run.seed(loss, Tensor::from(1.0));
        let mut grads = params.new_grad();
        run.backward(Some(&mut grads)).unwrap();
        let losses = made.routing.unwrap().losses;
        let of_routers: f64 =
            losses.weighted(&config.balance).map(|(slot, w)| w * run.value(slot).double_value(&[])).sum();
        (run.value(loss).double_value(&[]), of_routers, grads.flat().shallow_clone())
    }

    #[test]
    fn recomputing_gives_the_same_bits() {
        let (kept, recomputed) = (step(Policy::Keep), step(Policy::Recompute));
        assert_eq!(kept, recomputed);
        // Even loads would give 0.1 · 2 and 0.01 · 2 · ln²4.
        assert!(kept.1 > 0.2 && kept.1 < kept.0);
    }
}
