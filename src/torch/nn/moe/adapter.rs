//! Low-rank adapters of stacked maps, one for each expert, in PEFT's layout.
//!
//! Shapes: N rows sorted by expert, E experts, r rank, I and O the maps' inputs and outputs.

use tch::Tensor;

use super::groups::Groups;
use crate::params::Adapter;
use crate::params::Scope;

/// The adapters of one stacked parameter `[E, O, I]`. Their inputs are not dropped in training: PEFT cannot either.
pub(super) struct StackedAdapter {
    adapter: Adapter,
    num_experts: i64,
}

/// The factors that the rows of each expert are multiplied by: `scale · B_e A_e`.
pub(super) struct Factors {
    a_ERI: Tensor,
    b_EOR: Tensor,
    scale: f64,
}

impl StackedAdapter {
    /// Takes the adapter beside the parameter `name`; `None` where the store has none.
    pub fn new(scope: &Scope<'_>, name: &str, num_experts: i64) -> Option<StackedAdapter> {
        scope.take_adapter(name).map(|adapter| StackedAdapter { adapter, num_experts })
    }

    /// Returns the factors of each expert, `[E, r, I]` and `[E, O, r]`, outside of the graph, and their scale.
    pub fn factors(&self) -> Factors {
        let (a, b) = (self.adapter.a.detach(), self.adapter.b.detach());
        let [a_ERI, b_EOR] = unstack(&a, &b, self.num_experts);
        Factors { a_ERI, b_EOR: b_EOR.contiguous(), scale: self.adapter.spec.scale }
    }

    /// Returns the gradients of the factors as those of the two parameters.
    fn stack(&self, of_a_ERI: Tensor, of_b_EOR: Tensor) -> [Tensor; 2] {
        let of_b = of_b_EOR.permute([1, 2, 0]).reshape(self.adapter.b.size());
        [of_a_ERI.reshape(self.adapter.a.size()), of_b]
    }

    /// Returns the gradients of `Factors::forward`: that of the rows, added to `of_rows` where there is one, and those of the parameters.
    /// `of_output` `[N, O]`, `rows` `[N, I]`.
    pub fn backward(
        &self,
        groups: &Groups,
        of_output: &Tensor,
        rows: &Tensor,
        of_rows: Option<Tensor>,
    ) -> (Option<Tensor>, [Tensor; 2]) {
        let factors = self.factors();
        let low = groups.products(rows, &factors.a_ERI, true);
        let of_low = factors.of_low(groups, of_output);
        let (of_a, of_b) = (factors.a_ERI.empty_like(), factors.b_EOR.empty_like());
        groups.outer_products(&of_low, rows, &of_a);
        groups.outer_products(of_output, &low, &of_b);
        let of_rows = of_rows.map(|of_rows| groups.add_products(of_rows, &of_low, &factors.a_ERI));
        (of_rows, self.stack(of_a, of_b * factors.scale))
    }
}

impl Factors {
    /// Maps `[N, I]` to `[N, O]`.
    pub fn forward(&self, groups: &Groups, rows: &Tensor) -> Tensor {
        groups.products(&groups.products(rows, &self.a_ERI, true), &self.b_EOR, true) * self.scale
    }

    /// Adds the rows' gradient to `of_rows`. `of_output` `[N, O]`, `of_rows` `[N, I]`.
    pub fn add_backward(&self, groups: &Groups, of_output: &Tensor, of_rows: Tensor) -> Tensor {
        groups.add_products(of_rows, &self.of_low(groups, of_output), &self.a_ERI)
    }

    fn of_low(&self, groups: &Groups, of_output: &Tensor) -> Tensor {
        groups.products(of_output, &self.b_EOR, false) * self.scale
    }
}

/// Returns `[E·r, I]` and `[O, r·E]` as views `[E, r, I]` and `[E, O, r]`.
fn unstack(a: &Tensor, b: &Tensor, num_experts: i64) -> [Tensor; 2] {
    let a_ERI = a.view([num_experts, -1, a.size()[1]]);
    [a_ERI, b.view([b.size()[0], -1, num_experts]).permute([2, 0, 1])]
}

/// Returns the product of the adapters of a stack, which is added to it, `[E, O, I]`, or to one of its maps, `[O, I]`: `lora_A`
/// `[E·r, I]`, `lora_B` `[O, r·E]`.
pub fn stacked_product(a: &Tensor, b: &Tensor, num_experts: i64, expert: Option<i64>) -> Tensor {
    let [a_ERI, b_EOR] = unstack(a, b, num_experts);
    match expert {
        Some(expert) => b_EOR.get(expert).matmul(&a_ERI.get(expert)),
        None => b_EOR.matmul(&a_ERI),
    }
}
