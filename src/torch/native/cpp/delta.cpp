// The part of the gated delta rule that is sequential: states handed from chunk to chunk, with their own backward, on
// any device. Autograd through such a loop would copy or fill whole tensors for every chunk.
#include "common.h"
#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows of N (chunks) come step by step: first the first chunk of every document, then the second of those that have
// one, and so on; `steps` counts them. Documents are the same in every step, those that end leave at the back.
struct Step {
  int64_t start, num_docs;
};
static std::vector<Step> steps_of(const std::vector<int64_t>& counts) {
  std::vector<Step> steps;
  int64_t start = 0;
  for (int64_t count : counts) {
    steps.push_back({start, count});
    start += count;
  }
  return steps;
}
// Rows [start, start + n) of x [N, V, a, b] as a batch of matrices.
static Tensor rows(const Tensor& x, int64_t start, int64_t n) { return x.narrow(0, start, n).flatten(0, 1); }

struct DeltaScan : torch::autograd::Function<DeltaScan> {
  // v_new = u - w S;  S' = decay S + keysᵀ v_new. Returns v_new, and the state before every chunk.
  static variable_list forward(AutogradContext* ctx, Tensor u, Tensor w, Tensor keys, Tensor decay, Tensor last,
                               std::vector<int64_t> counts) {
    u = u.contiguous(), w = w.contiguous(), keys = keys.contiguous();
    const auto steps = steps_of(counts);
    auto v_new = at::empty(u.sizes(), u.options());
    auto states = at::empty({u.size(0), u.size(1), keys.size(3), u.size(3)}, u.options());
    rows(states, 0, steps[0].num_docs).copy_(last.flatten(0, 1));
    for (size_t s = 0; s < steps.size(); s++) {
      const auto [start, n] = steps[s];
      auto v = rows(v_new, start, n);
      v.copy_(rows(u, start, n));
      v.baddbmm_(rows(w, start, n), rows(states, start, n), 1, -1);
      const auto next = s + 1 < steps.size() ? steps[s + 1] : Step{0, 0};
      // To the next step's rows, or where a document ends to `last`.
      auto advance = [&](Tensor to, int64_t from, int64_t m) {
        if (m == 0) return;
        const auto at = start + from;
        auto batch = to.flatten(0, 1);
        at::mul_out(batch, rows(states, at, m), decay.narrow(0, at, m).reshape({-1, 1, 1}));
        batch.baddbmm_(rows(keys, at, m).transpose(1, 2), rows(v_new, at, m));
      };
      advance(states.narrow(0, next.start, next.num_docs), 0, next.num_docs);
      advance(last.narrow(0, next.num_docs, n - next.num_docs), next.num_docs, n - next.num_docs);
    }
    ctx->save_for_backward({w, keys, decay, v_new, states});
    ctx->saved_data["counts"] = counts;
    return {v_new, states};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &w = saved[0], &keys = saved[1], &decay = saved[2], &v_new = saved[3], &states = saved[4];
    const auto dv_new = grads[0].contiguous(), dstates = grads[1].contiguous();
    const auto steps = steps_of(ctx->saved_data["counts"].toIntVector());
    auto du = at::empty(v_new.sizes(), v_new.options());
    auto dnext = at::zeros(states.sizes(), states.options()); // of the state after every chunk
    for (size_t s = steps.size(); s-- > 0;) {
      const auto [start, n] = steps[s];
      auto d = rows(du, start, n);
      d.copy_(rows(dv_new, start, n));
      d.baddbmm_(rows(keys, start, n), rows(dnext, start, n));
      if (s == 0) break;
      auto before = rows(dnext, steps[s - 1].start, n);
      at::mul_out(before, rows(dnext, start, n), decay.narrow(0, start, n).reshape({-1, 1, 1}));
      before.add_(rows(dstates, start, n));
      before.baddbmm_(rows(w, start, n).transpose(1, 2), d, 1, -1);
    }
    auto product = [](const Tensor& a, const Tensor& b) {
      return at::bmm(a.flatten(0, 1), b.flatten(0, 1).transpose(1, 2)).view({a.size(0), a.size(1), a.size(2), b.size(2)});
    };
    auto dw = product(du, states).neg_(), dkeys = product(v_new, dnext);
    return {du, dw, dkeys, dnext.mul_(states).sum({2, 3}), Tensor(), Tensor()};
  }
};

// u [N, V, I, E], w and keys [N, V, I, C], decay [N, V]; last [B, V, C, E], contiguous: the states at the start, made
// those at the end, without a gradient. Writes v_new [N, V, I, E] and states [N, V, C, E]. Negative on failure.
LF_API int lf_delta_scan(Tensor* u, Tensor* w, Tensor* keys, Tensor* decay, Tensor* last, const int64_t* counts,
                         int num_steps, Tensor** outputs) {
  LF_RECORD("delta_scan");
  return lf_guard(-1, [&] {
    auto made = DeltaScan::apply(*u, *w, *keys, *decay, *last, std::vector<int64_t>(counts, counts + num_steps));
    outputs[0] = new Tensor(made[0]);
    outputs[1] = new Tensor(made[1]);
    return 0;
  });
}
