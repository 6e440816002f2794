//! The experts of a layer as grouped matrix products over rows that are sorted by expert, with a backward of their own:
//! autograd would make a gradient of all experts' size for each expert.

use tch::{Device, Kind, Tensor};

use super::config::MoeConfig;
use crate::native::{can_fuse, grad, swiglu};
use crate::nn::{Init, ParamSpec, Scope};

/// `down_e(silu(gate_e(x)) · up_e(x))` for the rows of each expert `e`, without biases.
pub struct Experts {
    /// `[E, 2F, D]`: gates before ups.
    gate_up: Tensor,
    /// `[E, D, F]`
    down: Tensor,
}

/// Gradients of an expert layer's rows `[N, D]` and of its parameters.
pub struct ExpertsGrads {
    pub rows: Option<Tensor>,
    /// Of the gate and up weights, and of the down weights.
    pub params: Option<[Tensor; 2]>,
}

impl Experts {
    pub fn specs(prefix: &str, width: i64, config: &MoeConfig, std: f64) -> Vec<ParamSpec> {
        let (experts, inner) = (config.router.num_experts, config.intermediate_size);
        let names = &config.names.experts;
        let shapes = [[experts, 2 * inner, width], [experts, width, inner]];
        let pieces = names.pieces(prefix, [experts, width, inner]);
        let params = names.params().into_iter().zip(shapes).zip(pieces);
        let spec = |((name, shape), pieces): ((String, [i64; 3]), _)| {
            ParamSpec::new(format!("{prefix}{name}"), &shape, Init::Normal(std)).stored_as(pieces)
        };
        params.map(spec).collect()
    }

    pub fn new(scope: &Scope<'_>, config: &MoeConfig) -> Experts {
        let [gate_up, down] = config.names.experts.params();
        Experts { gate_up: scope.take(&gate_up), down: scope.take(&down) }
    }

    /// `[N, D]` for the rows `[N, D]` of which the first `counts_E[0]` are the first expert's, and so on; and what
    /// `backward` needs besides the rows: gate and up `[N, F]`.
    pub fn forward(&self, rows_ND: &Tensor, counts_E: &Tensor) -> (Tensor, [Tensor; 2]) {
        let hidden = self.hidden(rows_ND, counts_E);
        let y_ND = Groups::new(counts_E).products(&activate(&hidden), &self.down.detach(), true);
        (y_ND, hidden)
    }

    /// The second part of what `forward` gives.
    pub fn hidden(&self, rows_ND: &Tensor, counts_E: &Tensor) -> [Tensor; 2] {
        let (groups, (gate, up)) = (Groups::new(counts_E), self.gate_and_up());
        [groups.products(rows_ND, &gate, true), groups.products(rows_ND, &up, true)]
    }

    /// As asked by `rows` and `params`, for the gradient of what `forward` gave.
    pub fn backward(
        &self,
        of_output: &Tensor,
        rows_ND: &Tensor,
        counts_E: &Tensor,
        hidden: [Tensor; 2],
        [rows, params]: [bool; 2],
    ) -> ExpertsGrads {
        let groups = Groups::new(counts_E);
        let of_activated = groups.products(of_output, &self.down.detach(), false);
        let (activated, [of_gate, of_up]) = activate_backward(hidden, &of_activated);
        drop(of_activated);
        let params = params.then(|| {
            let of_gate_up = self.gate_up.detach().empty_like();
            let (gate, up) = halves(&of_gate_up);
            groups.outer_products(&of_gate, rows_ND, &gate);
            groups.outer_products(&of_up, rows_ND, &up);
            let of_down = self.down.detach().empty_like();
            groups.outer_products(of_output, &activated, &of_down);
            [of_gate_up, of_down]
        });
        drop(activated);
        let rows = rows.then(|| {
            let (gate, up) = self.gate_and_up();
            let of_rows = groups.products(&of_gate, &gate, false);
            groups.add_products(of_rows, &of_up, &up)
        });
        ExpertsGrads { rows, params }
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

fn activate([gate, up]: &[Tensor; 2]) -> Tensor {
    if can_fuse(gate) { swiglu(gate, up) } else { gate.silu() * up }
}

/// What was activated, and the gradients of gate and up.
fn activate_backward(hidden: [Tensor; 2], of_activated: &Tensor) -> (Tensor, [Tensor; 2]) {
    tch::with_grad(|| {
        let hidden = hidden.map(|part| part.detach().set_requires_grad(true));
        let activated = activate(&hidden);
        let found = grad(&[&activated], &[of_activated], &[&hidden[0], &hidden[1]]).expect("a product has a gradient");
        let mut found = found.into_iter().map(|grad| grad.expect("both take part"));
        (activated.detach(), [(); 2].map(|()| found.next().expect("one for each")))
    })
}

/// Consecutive rows of each expert. On a GPU the counts stay there; on the CPU plain products of slices are faster
/// than libtorch's grouped one, by 10 % and more.
enum Groups {
    /// Start and length of each expert's rows.
    Host(Vec<(i64, i64)>),
    /// Ends of each expert's rows, int32.
    Device(Tensor),
}

impl Groups {
    fn new(counts_E: &Tensor) -> Groups {
        if counts_E.device() != Device::Cpu {
            return Groups::Device(counts_E.cumsum(0, Kind::Int64).to_kind(Kind::Int));
        }
        let counts = Vec::<i64>::try_from(counts_E).expect("counts are integers");
        let starts = counts.iter().scan(0, |end, count| {
            *end += count;
            Some(*end - count)
        });
        Groups::Host(starts.zip(counts.iter().copied()).collect())
    }

    /// `[N, A]` rows times their experts' `[E, B, A]` transposed: `[N, B]`; or `[N, B]` rows times `[E, B, A]`.
    fn products(&self, rows: &Tensor, weights: &Tensor, transposed: bool) -> Tensor {
        let weights = if transposed { weights.transpose(1, 2) } else { weights.shallow_clone() };
        match self {
            Groups::Host(groups) => {
                let out = Tensor::empty([rows.size()[0], weights.size()[2]], (rows.kind(), rows.device()));
                for (weight, rows, out) in filled(groups, &weights, rows, &out) {
                    let _ = rows.mm_out(&out, &weight);
                }
                out
            }
            Groups::Device(ends) => rows.internal_grouped_mm(&weights, Some(ends), None, None),
        }
    }

    /// `sum` plus the products of `[N, B]` rows with their experts' `[E, B, A]`.
    fn add_products(&self, sum: Tensor, rows: &Tensor, weights: &Tensor) -> Tensor {
        match self {
            Groups::Host(groups) => {
                for (weight, rows, sum) in filled(groups, weights, rows, &sum) {
                    let _ = sum.addmm_out(&sum, &rows, &weight);
                }
                sum
            }
            Groups::Device(_) => sum + self.products(rows, weights, false),
        }
    }

    /// Each expert's `[N, B]` transposed times its `[N, A]`, into `out` `[E, B, A]`; zeros where it has no rows.
    fn outer_products(&self, left: &Tensor, right: &Tensor, out: &Tensor) {
        match self {
            Groups::Host(groups) => {
                for (expert, &(start, len)) in (0..).zip(groups) {
                    let mut out = out.get(expert);
                    if len == 0 {
                        let _ = out.zero_();
                    } else {
                        let _ = left.narrow(0, start, len).tr().mm_out(&out, &right.narrow(0, start, len));
                    }
                }
            }
            Groups::Device(ends) => {
                let found = left.tr().internal_grouped_mm(right, Some(ends), None, None);
                out.shallow_clone().copy_(&found);
            }
        }
    }
}

/// Weight, rows and output of every expert that has rows.
fn filled<'a>(
    groups: &'a [(i64, i64)],
    weights: &'a Tensor,
    rows: &'a Tensor,
    out: &'a Tensor,
) -> impl Iterator<Item = (Tensor, Tensor, Tensor)> + 'a {
    let some = (0..).zip(groups).filter(|(_, (_, len))| *len > 0);
    some.map(move |(expert, &(start, len))| {
        (weights.get(expert), rows.narrow(0, start, len), out.narrow(0, start, len))
    })
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{Experts, Groups};
    use crate::native::grad;

    fn random(shape: &[i64]) -> Tensor {
        Tensor::randn(shape, (Kind::Float, Device::Cpu)).set_requires_grad(true)
    }

    #[test]
    fn products_and_gradients_equal_one_feed_forward_after_the_other() {
        tch::manual_seed(2);
        let (experts, width, inner) = (4, 6, 5);
        let layer = Experts { gate_up: random(&[experts, 2 * inner, width]), down: random(&[experts, width, inner]) };
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
        let [of_gate_up, of_down] = found.params.unwrap();
        for (found, expected) in [found.rows.unwrap(), of_gate_up, of_down].iter().zip(&expected) {
            assert!(found.allclose(expected.as_ref().unwrap(), 1e-4, 1e-4, false));
        }
        let (y, hidden) = layer.forward(&rows.detach().narrow(0, 0, 0), &Tensor::from_slice(&[0i64; 4]));
        assert_eq!((y.size(), hidden[0].size()), (vec![0, width], vec![0, inner]));
    }

    #[test]
    fn the_grouped_product_of_libtorch_is_the_same() {
        let (rows, weights) = (random(&[7, 16]).detach(), random(&[3, 8, 16]).detach());
        let counts = Tensor::from_slice(&[2i64, 0, 5]);
        let device = Groups::Device(counts.cumsum(0, Kind::Int64).to_kind(Kind::Int));
        let (host, left) = (Groups::new(&counts), random(&[7, 8]).detach());
        assert!(host.products(&rows, &weights, true).allclose(
            &device.products(&rows, &weights, true),
            1e-5,
            1e-6,
            false
        ));
        let sum = |groups: &Groups| groups.add_products(rows.copy(), &left, &weights);
        assert!(sum(&host).allclose(&sum(&device), 1e-5, 1e-6, false));
        let outer = |groups: &Groups| {
            let out = weights.empty_like();
            groups.outer_products(&left, &rows, &out);
            out
        };
        assert!(outer(&host).allclose(&outer(&device), 1e-5, 1e-6, false));
    }
}
