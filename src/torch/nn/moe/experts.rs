//! The experts of a layer as grouped matrix products over rows that are sorted by expert, with a backward of their own:
//! autograd would make a gradient of all experts' size for each expert.

use tch::Tensor;

use super::adapter::StackedAdapter;
use super::config::MoeConfig;
use super::groups::Groups;
use crate::native::grad;
use crate::nn::Activation;
use crate::params::{Init, ParamSpec, Scope};

/// `down_e(act(gate_e(x)) · up_e(x))` for the rows of each expert `e`, without biases.
pub struct Experts {
    /// `[E, 2F, D]`: gates before ups.
    gate_up: Tensor,
    /// `[E, D, F]`
    down: Tensor,
    /// The adapters of the two.
    adapters: [Option<StackedAdapter>; 2],
    act: Activation,
}

/// Gradients of an expert layer's rows `[N, D]` and of its parameters.
pub struct ExpertsGrads {
    pub rows: Option<Tensor>,
    /// With their places among the parameters that were taken. None of frozen ones.
    pub params: Vec<(usize, Tensor)>,
}

impl Experts {
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
        specs[0].sections = Some((1, vec![inner, inner]));
        specs
    }

    pub fn new(scope: &Scope<'_>, config: &MoeConfig, act: Activation) -> Experts {
        let names = config.names.experts.params();
        let [gate_up, down] = [0, 1].map(|index| scope.take(&names[index]));
        let adapters = names.map(|name| StackedAdapter::new(scope, &name, gate_up.size()[0]));
        Experts { gate_up, down, adapters, act }
    }

    /// `[N, D]` for the rows `[N, D]` of which the first `counts_E[0]` are the first expert's, and so on; and what
    /// `backward` needs besides the rows: gate and up `[N, F]`.
    pub fn forward(&self, rows_ND: &Tensor, counts_E: &Tensor) -> (Tensor, [Tensor; 2]) {
        let groups = Groups::new(counts_E);
        let hidden = self.hidden_of(&groups, rows_ND);
        let activated_NF = self.act.gated(&hidden[0], &hidden[1]);
        let mut y_ND = groups.products(&activated_NF, &self.down.detach(), true);
        if let Some(adapter) = &self.adapters[1] {
            y_ND = y_ND.g_add_(&adapter.factors().forward(&groups, &activated_NF));
        }
        (y_ND, hidden)
    }

    /// The second part of what `forward` gives.
    pub fn hidden(&self, rows_ND: &Tensor, counts_E: &Tensor) -> [Tensor; 2] {
        self.hidden_of(&Groups::new(counts_E), rows_ND)
    }

    fn hidden_of(&self, groups: &Groups, rows_ND: &Tensor) -> [Tensor; 2] {
        let (gate, up) = self.gate_and_up();
        let hidden = [groups.products(rows_ND, &gate, true), groups.products(rows_ND, &up, true)];
        if let Some(adapter) = &self.adapters[0] {
            let added = adapter.factors().forward(groups, rows_ND).chunk(2, -1);
            hidden.iter().zip(&added).for_each(|(part, added)| drop(part.shallow_clone().g_add_(added)));
        }
        hidden
    }

    /// Returns the gradients that `rows` and `params` ask for, for the gradient of what `forward` gave.
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
            let (gate, up) = halves(&of_gate_up);
            groups.outer_products(&of_gate, rows_ND, &gate);
            groups.outer_products(&of_up, rows_ND, &up);
            found.push((0, of_gate_up));
        }
        if trains(&self.down) {
            let of_down = self.down.detach().empty_like();
            groups.outer_products(of_output, &activated, &of_down);
            found.push((1, of_down));
        }
        let mut of_rows = rows.then(|| {
            let (gate, up) = self.gate_and_up();
            let of_rows = groups.products(&of_gate, &gate, false);
            groups.add_products(of_rows, &of_up, &up)
        });
        // Their parameters were taken after the two weights, those of the gates and ups first.
        let mut place = 2;
        let mut adapted = |of_adapter: [Tensor; 2]| {
            found.extend((place..).zip(of_adapter).filter(|_| params));
            place += 2;
        };
        if let Some(adapter) = &self.adapters[0] {
            let of_hidden = Tensor::cat(&[of_gate, of_up], -1);
            let of_adapter;
            (of_rows, of_adapter) = adapter.backward(&groups, &of_hidden, rows_ND, of_rows);
            adapted(of_adapter);
        }
        if let Some(adapter) = &self.adapters[1] {
            adapted(adapter.backward(&groups, of_output, &activated, None).1);
        }
        ExpertsGrads { rows: of_rows, params: found }
    }

    fn gate_and_up(&self) -> (Tensor, Tensor) {
        halves(&self.gate_up.detach())
    }
}

/// Gates and ups, each `[E, F, D]`.
fn halves(gate_up: &Tensor) -> (Tensor, Tensor) {
    let inner = gate_up.size()[1] / 2;
    (gate_up.narrow(1, 0, inner), gate_up.narrow(1, inner, inner))
}

/// Returns what was activated, and the gradients of gate and up.
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

    use super::Experts;
    use crate::native::grad;
    use crate::nn::Activation;

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true)
    }

    #[test]
    fn products_and_gradients_equal_one_feed_forward_after_the_other() {
        tch::manual_seed(2);
        let (experts, width, inner) = (4, 6, 5);
        let layer = Experts {
            gate_up: random(&[experts, 2 * inner, width]),
            down: random(&[experts, width, inner]),
            adapters: [None, None],
            act: Activation::Silu,
        };
        let rows = random(&[9, width]);
        // The second expert has no rows.
        let counts = [3i64, 0, 5, 1];
        let mut start = 0;
        let mut parts = Vec::new();
        for (expert, len) in (0..).zip(counts) {
            let hidden = rows.narrow(0, start, len).linear(&layer.gate_up.get(expert), None::<Tensor>).chunk(2, -1);
            parts.push((hidden[0].silu() * &hidden[1]).linear(&layer.down.get(expert), None::<Tensor>));
            start += len;
        }
        let plain = Tensor::cat(&parts, 0);
        let seed = random(&[9, width]).detach();
        let expected = grad(&[&plain], &[&seed], &[&rows, &layer.gate_up, &layer.down]).unwrap();

        let _no_grad = tch::no_grad_guard();
        let counts = Tensor::from_slice(&counts);
        let (y, hidden) = layer.forward(&rows.detach(), &counts);
        assert!(y.allclose(&plain, 1e-4, 1e-4, false));
        let found = layer.backward(&seed, &rows.detach(), &counts, hidden, [true, true]);
        let (places, of_params): (Vec<usize>, Vec<Tensor>) = found.params.into_iter().unzip();
        assert_eq!(places, [0, 1]);
        for (found, expected) in std::iter::once(&found.rows.unwrap()).chain(&of_params).zip(&expected) {
            assert!(found.allclose(expected.as_ref().unwrap(), 1e-4, 1e-4, false));
        }
        let (y, hidden) = layer.forward(&rows.detach().narrow(0, 0, 0), &Tensor::from_slice(&[0i64; 4]));
        assert_eq!((y.size(), hidden[0].size()), (vec![0, width], vec![0, inner]));
    }
}
