//! The experts of a layer as grouped matrix products over rows that are sorted by expert, with a backward of their own:
//! autograd would make a gradient of all experts' size for each expert.

use tch::Tensor;

use super::adapter::StackedAdapter;
use super::config::MoeConfig;
use super::groups::Groups;
use super::names::ExpertNames;
use crate::native::grad;
use crate::nn::Activation;
use crate::params::{Init, ParamSpec, Scope};

/// `down_e(act(gate_e(x)) · up_e(x))` for the rows of each expert `e`.
pub struct Experts {
    /// `[E, 2F, D]`: gates before ups, or each gate before its up.
    gate_up: Tensor,
    /// `[E, D, F]`
    down: Tensor,
    /// `[E, 2F]` and `[E, D]`: `None` where there is none, or another rank adds it. They are taken behind the two.
    biases: [Option<Tensor>; 2],
    /// The adapters of the two.
    adapters: [Option<StackedAdapter>; 2],
    act: Activation,
    order: GateOrder,
}

/// Says where gates and ups lie among the outputs of one map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GateOrder {
    GatesFirst,
    /// Gates are even, ups are odd.
    Interleaved,
}

impl GateOrder {
    /// Returns gates and ups of `x`, half as long each along dimension `dim`: views.
    fn split(self, x: &Tensor, dim: i64) -> [Tensor; 2] {
        match self {
            GateOrder::GatesFirst => {
                let inner = x.size()[dim as usize] / 2;
                [x.narrow(dim, 0, inner), x.narrow(dim, inner, inner)]
            }
            GateOrder::Interleaved => [0, 1].map(|first| x.slice(dim, first, None, 2)),
        }
    }

    /// Returns the two `[N, F]` as one `[N, 2F]`.
    fn join(self, parts: [&Tensor; 2]) -> Tensor {
        match self {
            GateOrder::GatesFirst => Tensor::cat(&parts, -1),
            GateOrder::Interleaved => Tensor::stack(&parts, -1).flatten(-2, -1),
        }
    }
}

/// Gradients of an expert layer's rows `[N, D]` and of its parameters.
pub struct ExpertsGrads {
    pub rows: Option<Tensor>,
    /// The gradients of the parameters, with their places among those that were taken. Frozen ones have none.
    pub params: Vec<(usize, Tensor)>,
}

impl Experts {
    /// Declares the maps of all experts, stacked: gate and up `[E, 2·I, D]` and down `[E, D, I]`, and in which pieces a
    /// checkpoint stores them. `std`: of the weights' first values.
    pub fn specs(prefix: &str, width: i64, config: &MoeConfig, std: f64) -> Vec<ParamSpec> {
        let (experts, inner) = (config.router.num_experts, config.intermediate_size);
        let names = &config.names.experts;
        let shapes = [[experts, 2 * inner, width], [experts, width, inner]];
        let pieces = names.pieces(prefix, [experts, width, inner]);
        let params = names.params().into_iter().zip(shapes).zip(pieces);
        let spec = |((name, shape), pieces): ((String, [i64; 3]), _)| {
            let spec = ParamSpec::new(format!("{prefix}{name}"), &shape, Init::Normal(std)).stored_as(pieces);
            ParamSpec { is_linear: true, ..spec }
        };
        let mut specs: Vec<ParamSpec> = params.map(spec).collect();
        if *names != ExpertNames::Interleaved {
            specs[0].sections = Some((1, vec![inner, inner]));
        }
        if config.bias {
            let biases = names.params().into_iter().zip([2 * inner, width]).map(|(name, outputs)| {
                let bias = ParamSpec::new(format!("{prefix}{name}_bias"), &[experts, outputs], Init::Zeros);
                ParamSpec { is_stacked_bias: true, ..bias }
            });
            specs.extend(biases);
        }
        specs
    }

    /// Takes the maps that [`Experts::specs`] declares, with their biases and adapters.
    pub fn new(scope: &Scope<'_>, config: &MoeConfig, act: Activation) -> Experts {
        let names = config.names.experts.params();
        let [gate_up, down] = [0, 1].map(|index| scope.take(&names[index]));
        let biases = [0, 1].map(|index| scope.take_bias(&format!("{}_bias", names[index])));
        let adapters = names.map(|name| StackedAdapter::new(scope, &name, gate_up.size()[0]));
        let order = match config.names.experts {
            ExpertNames::Interleaved => GateOrder::Interleaved,
            _ => GateOrder::GatesFirst,
        };
        Experts { gate_up, down, biases, adapters, act, order }
    }

    /// Returns `[N, D]` for the rows `[N, D]` of which the first `counts_E[0]` are the first expert's, and so on; and what `backward`
    /// needs besides the rows: gate and up `[N, F]`.
    pub fn forward(&self, rows_ND: &Tensor, counts_E: &Tensor) -> (Tensor, [Tensor; 2]) {
        let groups = Groups::new(counts_E);
        let hidden = self.hidden_of(&groups, rows_ND, counts_E);
        let activated_NF = self.act.gated(&hidden[0], &hidden[1]);
        let mut y_ND = groups.products(&activated_NF, &self.down.detach(), true);
        if let Some(adapter) = &self.adapters[1] {
            y_ND = y_ND.g_add_(&adapter.factors().forward(&groups, &activated_NF));
        }
        if let Some(bias) = &self.biases[1] {
            y_ND = y_ND.g_add_(&of_rows(&bias.detach(), counts_E, y_ND.size()[0]));
        }
        (y_ND, hidden)
    }

    /// Returns the second part of what `forward` gives. Gate and up, `[N, F]` each.
    pub fn hidden(&self, rows_ND: &Tensor, counts_E: &Tensor) -> [Tensor; 2] {
        self.hidden_of(&Groups::new(counts_E), rows_ND, counts_E)
    }

    fn hidden_of(&self, groups: &Groups, rows_ND: &Tensor, counts_E: &Tensor) -> [Tensor; 2] {
        let hidden = self.gate_and_up().map(|weight| groups.products(rows_ND, &weight, true));
        let add = |added: [Tensor; 2]| {
            hidden.iter().zip(&added).for_each(|(part, added)| drop(part.shallow_clone().g_add_(added)));
        };
        if let Some(adapter) = &self.adapters[0] {
            add(self.order.split(&adapter.factors().forward(groups, rows_ND), 1));
        }
        if let Some(bias) = &self.biases[0] {
            let biases = self.order.split(&bias.detach(), 1);
            add(biases.map(|bias| of_rows(&bias, counts_E, rows_ND.size()[0])));
        }
        hidden
    }

    /// Returns the gradients that `rows` and `params` ask for, for the gradient of what `forward` gave.
    /// `of_output` and `rows_ND` are `[N, D]`, `counts_E` `[E]`, `hidden` gate and up, `[N, F]`.
    pub fn backward(
        &self,
        of_output: &Tensor,
        rows_ND: &Tensor,
        counts_E: &Tensor,
        hidden: [Tensor; 2],
        [rows, params]: [bool; 2],
    ) -> ExpertsGrads {
        let groups = Groups::new(counts_E);
        let mut of_activated = groups.products(of_output, &self.down.detach(), false);
        if let Some(adapter) = &self.adapters[1] {
            of_activated = adapter.factors().add_backward(&groups, of_output, of_activated);
        }
        let (activated, [of_gate, of_up]) = activate_backward(self.act, hidden, &of_activated);
        drop(of_activated);
        let trains = |weight: &Tensor| params && weight.requires_grad();
        let mut found = Vec::new();
        if trains(&self.gate_up) {
            let of_gate_up = self.gate_up.detach().empty_like();
            let [gate, up] = self.order.split(&of_gate_up, 1);
            groups.outer_products(&of_gate, rows_ND, &gate);
            groups.outer_products(&of_up, rows_ND, &up);
            found.push((0, of_gate_up));
        }
        if trains(&self.down) {
            let of_down = self.down.detach().empty_like();
            groups.outer_products(of_output, &activated, &of_down);
            found.push((1, of_down));
        }
        // Parameters were taken in this order: the two weights, their biases, the adapter of gates and ups, that of downs.
        let mut place = 2;
        for (bias, of_outputs) in self.biases.iter().zip([[Some(&of_gate), Some(&of_up)], [Some(of_output), None]]) {
            let Some(bias) = bias else { continue };
            if trains(bias) {
                let sums = of_outputs.map(|of| of.map(|of| groups.sums(of, bias.size()[0])));
                let of_bias = match sums {
                    [Some(gate), Some(up)] => self.order.join([&gate, &up]),
                    [one, _] => one.expect("a map has outputs"),
                };
                found.push((place, of_bias));
            }
            place += 1;
        }
        let mut of_rows = rows.then(|| {
            let [gate, up] = self.gate_and_up();
            let of_rows = groups.products(&of_gate, &gate, false);
            groups.add_products(of_rows, &of_up, &up)
        });
        let mut adapted = |of_adapter: [Tensor; 2]| {
            found.extend((place..).zip(of_adapter).filter(|_| params));
            place += 2;
        };
        if let Some(adapter) = &self.adapters[0] {
            let of_hidden = self.order.join([&of_gate, &of_up]);
            let of_adapter;
            (of_rows, of_adapter) = adapter.backward(&groups, &of_hidden, rows_ND, of_rows);
            adapted(of_adapter);
        }
        if let Some(adapter) = &self.adapters[1] {
            adapted(adapter.backward(&groups, of_output, &activated, None).1);
        }
        ExpertsGrads { rows: of_rows, params: found }
    }

    /// Returns gates and ups, each `[E, F, D]`.
    fn gate_and_up(&self) -> [Tensor; 2] {
        self.order.split(&self.gate_up.detach(), 1)
    }
}

/// Returns the bias of each row's expert, `[N, O]`, of biases `[E, O]`.
fn of_rows(bias_EO: &Tensor, counts_E: &Tensor, num_rows: i64) -> Tensor {
    bias_EO.index_select(0, &Tensor::repeat_interleave(counts_E, num_rows))
}

/// Returns the activated rows, and the gradients of gate and up.
fn activate_backward(act: Activation, hidden: [Tensor; 2], of_activated: &Tensor) -> (Tensor, [Tensor; 2]) {
    tch::with_grad(|| {
        let hidden = hidden.map(|part| part.detach().set_requires_grad(true));
        let activated = act.gated(&hidden[0], &hidden[1]);
        let found = grad(&[&activated], &[of_activated], &[&hidden[0], &hidden[1]]).expect("a product has a gradient");
        let mut found = found.into_iter().map(|grad| grad.expect("both take part"));
        (activated.detach(), [(); 2].map(|()| found.next().expect("one for each")))
    })
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{Experts, GateOrder};
    use crate::native::grad;
    use crate::nn::Activation;

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true)
    }

    fn check(order: GateOrder, act: Activation, biased: bool) {
        let (experts, width, inner) = (4, 6, 5);
        let bias = |outputs| biased.then(|| random(&[experts, outputs]));
        let layer = Experts {
            gate_up: random(&[experts, 2 * inner, width]),
            down: random(&[experts, width, inner]),
            biases: [bias(2 * inner), bias(width)],
            adapters: [None, None],
            act,
            order,
        };
        let rows = random(&[9, width]);
        // The second expert has no rows.
        let counts = [3i64, 0, 5, 1];
        let mut start = 0;
        let mut parts = Vec::new();
        for (expert, len) in (0..).zip(counts) {
            let bias = |index: usize| layer.biases[index].as_ref().map(|bias| bias.get(expert));
            let hidden = rows.narrow(0, start, len).linear(&layer.gate_up.get(expert), bias(0).as_ref());
            let [gate, up] = match order {
                GateOrder::GatesFirst => <[Tensor; 2]>::try_from(hidden.chunk(2, -1)).unwrap(),
                GateOrder::Interleaved => [0, 1].map(|at| hidden.unflatten(-1, [-1, 2]).select(-1, at)),
            };
            let activated = match act {
                Activation::Silu => gate.silu() * &up,
                // transformers' `GptOssExperts`.
                _ => {
                    let gate = gate.clamp_max(7.0);
                    (up.clamp(-7.0, 7.0) + 1.0) * (&gate * (&gate * 1.702).sigmoid())
                }
            };
            parts.push(activated.linear(&layer.down.get(expert), bias(1).as_ref()));
            start += len;
        }
        let plain = Tensor::cat(&parts, 0);
        let seed = random(&[9, width]).detach();
        let biases = layer.biases.iter().flatten();
        let leaves: Vec<&Tensor> = [&rows, &layer.gate_up, &layer.down].into_iter().chain(biases).collect();
        let expected = grad(&[&plain], &[&seed], &leaves).unwrap();

        let _no_grad = tch::no_grad_guard();
        let counts = Tensor::from_slice(&counts);
        let (y, hidden) = layer.forward(&rows.detach(), &counts);
        assert!(y.allclose(&plain, 1e-4, 1e-4, false));
        let found = layer.backward(&seed, &rows.detach(), &counts, hidden, [true, true]);
        let (places, of_params): (Vec<usize>, Vec<Tensor>) = found.params.into_iter().unzip();
        assert_eq!(places, (0..leaves.len() - 1).collect::<Vec<_>>());
        for (found, expected) in std::iter::once(&found.rows.unwrap()).chain(&of_params).zip(&expected) {
            assert!(found.allclose(expected.as_ref().unwrap(), 1e-4, 1e-4, false));
        }
        let (y, hidden) = layer.forward(&rows.detach().narrow(0, 0, 0), &Tensor::from_slice(&[0i64; 4]));
        assert_eq!((y.size(), hidden[0].size()), (vec![0, width], vec![0, inner]));
    }

    #[test]
    fn products_and_gradients_equal_one_feed_forward_after_the_other() {
        tch::manual_seed(2);
        check(GateOrder::GatesFirst, Activation::Silu, false);
        check(GateOrder::GatesFirst, Activation::Silu, true);
        check(GateOrder::Interleaved, Activation::ClampedSwiGlu, true);
    }
}
