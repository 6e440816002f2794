//! Tokens sorted by expert: the rows of the grouped products, and their way back. The gradients of both are gathers
//! as well, so nothing is added up in an order that could change.

use tch::{Device, Kind, Tensor};

/// The order of the rows.
pub struct Order {
    /// The place in `[T, K]` of each of the sorted rows, `[N]` int64; a token's rows keep its order.
    pub sources_N: Tensor,
    /// The inverse: for each place in `[T, K]` its row, `[N]` int64.
    pub rows_N: Tensor,
    /// Rows of each expert, `[E]` int64.
    pub counts_E: Tensor,
}

impl Order {
    /// Makes the order of the experts `[T, K]`, int64, that tokens have chosen.
    pub fn new(experts_TK: &Tensor, num_experts: i64) -> Order {
        let _no_grad = tch::no_grad_guard();
        let experts_N = experts_TK.flatten(0, -1);
        let sources_N = experts_N.argsort_stable(true, 0, false);
        let (rows_N, counts_E) = match experts_N.device() {
            Device::Cpu => {
                let places_N = Tensor::arange(sources_N.size()[0], (Kind::Int64, Device::Cpu));
                (sources_N.empty_like().scatter(0, &sources_N, &places_N), Order::count(experts_TK, num_experts))
            }
            _ => (inverse(&sources_N), count_sorted(&experts_N.index_select(0, &sources_N), num_experts)),
        };
        Order { sources_N, rows_N, counts_E }
    }

    /// Returns how often each expert was chosen, `[E]` int64.
    pub fn count(experts_TK: &Tensor, num_experts: i64) -> Tensor {
        let experts_N = experts_TK.flatten(0, -1);
        if experts_N.device() != Device::Cpu {
            return count_sorted(&experts_N.sort(0, false).0, num_experts);
        }
        let zeros = Tensor::zeros([num_experts], (Kind::Int64, Device::Cpu));
        zeros.scatter_add(0, &experts_N, &experts_N.ones_like())
    }

    /// Returns the tokens that the rows are of, `[N]`.
    fn tokens(sources_N: &Tensor, top_k: i64) -> Tensor {
        sources_N.divide_scalar_mode(top_k, "floor")
    }

    /// Returns the rows `[N, D]` of the tokens `[T, D]`.
    pub fn dispatch(x_TD: &Tensor, sources_N: &Tensor, top_k: i64) -> Tensor {
        x_TD.index_select(0, &Order::tokens(sources_N, top_k))
    }

    /// Returns the gradient of the tokens for that of the rows. `[N, D]` to `[T, D]`.
    pub fn dispatch_backward(of_rows_ND: &Tensor, rows_N: &Tensor, top_k: i64) -> Tensor {
        let of_places_TKD = of_rows_ND.index_select(0, rows_N).unflatten(0, [-1, top_k]);
        of_places_TKD.sum_dim_intlist([1i64].as_slice(), false, of_rows_ND.kind())
    }

    /// Returns the weighted sum of each token's rows: `[T, D]` of the rows `[N, D]`, in their kind.
    pub fn combine(y_ND: &Tensor, weights_TK: &Tensor, rows_N: &Tensor) -> Tensor {
        let y_TKD = y_ND.index_select(0, rows_N).view([weights_TK.size()[0], weights_TK.size()[1], y_ND.size()[1]]);
        weights_TK.to_kind(y_ND.kind()).unsqueeze(1).bmm(&y_TKD).squeeze_dim(1)
    }

    /// Returns the gradients of the rows and of the weights for that of the sum. They are `[N, D]` and `[T, K]`; `of_sum_TD` is `[T, D]`.
    pub fn combine_backward(
        of_sum_TD: &Tensor,
        y_ND: &Tensor,
        weights_TK: &Tensor,
        sources_N: &Tensor,
    ) -> (Tensor, Tensor) {
        let top_k = weights_TK.size()[1];
        let of_token_ND = of_sum_TD.index_select(0, &Order::tokens(sources_N, top_k));
        let weights_N1 = weights_TK.flatten(0, -1).index_select(0, sources_N).unsqueeze(-1).to_kind(y_ND.kind());
        let products_N = (&of_token_ND * y_ND).sum_dim_intlist([-1i64].as_slice(), false, Kind::Float);
        let of_weights_N = match products_N.device() {
            Device::Cpu => products_N.empty_like().scatter(0, sources_N, &products_N),
            _ => products_N.index_select(0, &inverse(sources_N)),
        };
        (of_token_ND * weights_N1, of_weights_N.view_as(weights_TK).to_kind(weights_TK.kind()))
    }
}

/// Returns the inverse of an order `[N]`, int64. Where the operators of a GPU add in a fixed order, a scatter takes about twenty kernels
/// there, and a sort a few.
fn inverse(order_N: &Tensor) -> Tensor {
    order_N.argsort_stable(true, 0, false)
}

/// Returns how often each of so many experts is among `sorted_N`, `[E]` int64.
fn count_sorted(sorted_N: &Tensor, num_experts: i64) -> Tensor {
    let starts = Tensor::arange(num_experts + 1, (Kind::Int64, sorted_N.device())).bucketize(sorted_N, false, false);
    starts.narrow(0, 1, num_experts) - starts.narrow(0, 0, num_experts)
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::{Order, count_sorted, inverse};
    use crate::native::grad;

    /// The order and counts that GPUs compute equal those of CPUs.
    #[test]
    fn experts_are_counted_and_orders_inverted_by_sorting() {
        tch::manual_seed(6);
        for tokens in [0i64, 1, 40] {
            let experts = Tensor::randint(5, [tokens, 2], (Kind::Int64, Device::Cpu)) * 2;
            let order = Order::new(&experts, 11);
            let sorted = experts.flatten(0, -1).sort(0, false).0;
            assert_eq!(sorted, experts.flatten(0, -1).index_select(0, &order.sources_N));
            assert_eq!(count_sorted(&sorted, 11), order.counts_E);
            assert_eq!(inverse(&order.sources_N), order.rows_N);
            let products = Tensor::randn([tokens * 2], (Kind::Float, Device::Cpu));
            let scattered = products.empty_like().scatter(0, &order.sources_N, &products);
            assert_eq!(products.index_select(0, &inverse(&order.sources_N)), scattered);
        }
    }

    #[test]
    fn sums_and_gradients_equal_those_of_plain_indexing() {
        tch::manual_seed(5);
        let cpu = (Kind::Float, Device::Cpu);
        let x = Tensor::randn([3, 4], cpu).set_requires_grad(true);
        let weights = Tensor::rand([3, 2], cpu).set_requires_grad(true);
        let experts = Tensor::from_slice(&[4i64, 0, 1, 4, 0, 4]).view([3, 2]);
        let order = Order::new(&experts, 5);
        assert_eq!(Vec::<i64>::try_from(&order.counts_E).unwrap(), [2, 1, 0, 0, 3]);
        assert_eq!(Vec::<i64>::try_from(&order.sources_N).unwrap(), [1, 4, 2, 0, 3, 5]);

        // Expert e multiplies by e + 1.
        let factors = (&experts + 1).to_kind(Kind::Float);
        let plain = x.unsqueeze(1) * (&factors * &weights).unsqueeze(-1);
        let plain = plain.sum_dim_intlist([1i64].as_slice(), false, Kind::Float);
        let seed = Tensor::randn([3, 4], cpu);
        let expected = grad(&[&plain], &[&seed], &[&x, &weights]).unwrap();

        let _no_grad = tch::no_grad_guard();
        let of_rows = factors.flatten(0, -1).index_select(0, &order.sources_N).unsqueeze(-1);
        let y = Order::dispatch(&x, &order.sources_N, 2) * &of_rows;
        assert!(Order::combine(&y, &weights, &order.rows_N).allclose(&plain, 1e-6, 1e-6, false));
        let (of_y, of_weights) = Order::combine_backward(&seed, &y, &weights, &order.sources_N);
        let of_x = Order::dispatch_backward(&(of_y * of_rows), &order.rows_N, 2);
        assert!(of_x.allclose(expected[0].as_ref().unwrap(), 1e-5, 1e-6, false));
        assert!(of_weights.allclose(expected[1].as_ref().unwrap(), 1e-5, 1e-6, false));
    }
}
