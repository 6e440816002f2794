// Chains of libtorch's operators, for GPUs, whose backward is a few operators as well: libtorch would record one for each
// operator, and add up rows that are taken by sorting their numbers.
#include "common.h"
#include <optional>
#include <torch/csrc/autograd/custom_function.h>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ReorderedRows : torch::autograd::Function<ReorderedRows> {
  static Tensor forward(AutogradContext* ctx, Tensor x, Tensor index, Tensor back, std::optional<Tensor> counts) {
    ctx->save_for_backward({back, counts.value_or(Tensor())});
    return x.index_select(0, index);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    auto dx = grads[0].index_select(0, saved[0]);
    if (saved[1].defined()) dx.mul_(saved[1]);
    return {dx, Tensor(), Tensor(), Tensor()};
  }
};

// Rows `index` [N] (int64) of x [M, W]. Row m of the gradient of x is row back[m] of what comes, times counts[m] where there are
// `counts` [M, 1], which may be null. Null on failure.
LF_API void* lf_reorder_rows(Tensor* x, Tensor* index, Tensor* back, Tensor* counts) {
  LF_RECORD("reorder_rows");
  return lf_guard<void*>(nullptr, [&] {
    return new Tensor(ReorderedRows::apply(*x, *index, *back, counts ? std::optional<Tensor>(*counts) : std::nullopt));
  });
}

// x [T, H, R] with channels i and i + R/2 turned by tables [T, R], whose halves are alike; `back`: the other way.
static Tensor turned(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  const int64_t half = x.size(-1) / 2;
  const auto part = [&](const Tensor& of, int64_t which) { return of.narrow(-1, which * half, half); };
  const auto s = sin.unsqueeze(1);
  const auto y = x.mul(cos.unsqueeze(1));
  part(y, 0).addcmul_(part(x, 1), part(s, 0), back ? 1 : -1);
  part(y, 1).addcmul_(part(x, 0), part(s, 1), back ? -1 : 1);
  return y.to(x.scalar_type());
}

struct TurnedHalves : torch::autograd::Function<TurnedHalves> {
  static Tensor forward(AutogradContext* ctx, Tensor x, Tensor cos, Tensor sin) {
    ctx->save_for_backward({cos, sin});
    return turned(x, cos, sin, false);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {turned(grads[0], saved[0], saved[1], true), Tensor(), Tensor()};
  }
};

// See `turned`; the tables get no gradient. Null on failure.
LF_API void* lf_turn_halves(Tensor* x, Tensor* cos, Tensor* sin) {
  LF_RECORD("turn_halves");
  return lf_guard<void*>(nullptr, [&] { return new Tensor(TurnedHalves::apply(*x, *cos, *sin)); });
}
