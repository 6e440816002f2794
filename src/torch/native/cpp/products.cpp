// Linear maps and look-ups whose backward adds the parameter's gradient in place, where the backward that runs has a
// place for it: a gradient as large as the parameter is otherwise written, read and added once a micro-batch.
#include "products.h"
#include "common.h"
#include "loops.h"
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <climits>
#include <dlfcn.h>
#include <optional>
#include <torch/csrc/autograd/custom_function.h>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// 0: libtorch, 1: tiles for bfloat16, 2: tiles for float32 as well, -1: what is faster here.
static thread_local int tiled = -1;
bool is_tiled(bool bf16) { return tiled < 0 ? is_faster_tiled() : tiled >= (bf16 ? 1 : 2); }

// MKL's product of bfloat16 matrices summed in float32 (row-major: 101; transposed: 112, else 111). libtorch's builds
// for x86 carry it; on processors with AMX it adds at twice the speed of a product that is rounded and added.
using GemmBf16 = void (*)(int, int, int, int, int, int, float, const void*, int, const void*, int, float, float*, int);
static GemmBf16 gemm_bf16() {
  static const auto found = reinterpret_cast<GemmBf16>(dlsym(RTLD_DEFAULT, "cblas_gemm_bf16bf16f32"));
  return found;
}

// Elements from one row to the next of a matrix that MKL takes: rows are contiguous, and do not overlap. Else 0. A single row may have
// any stride.
static int64_t row_step(const Tensor& x) {
  const int64_t step = x.size(0) == 1 ? x.size(1) : x.stride(0);
  return x.stride(1) == 1 && step >= x.size(1) && step <= INT_MAX ? step : 0;
}

// sum [M, N], float32, gets a · b added, or aᵀ · b.
static void add_product(const Tensor& sum, const Tensor& a, bool transpose, const Tensor& b) {
  const auto left = transpose ? a.t() : a;
  const bool bf16 = a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16;
  if (sum.numel() == 0 || b.size(0) == 0) return;
  if (lf_is_dry && bf16) return;
  const int64_t of_sum = row_step(sum), of_a = row_step(a), of_b = row_step(b);
  if (sum.is_cpu() && sum.stride(1) == 1 && is_tiled(bf16)) {
    tiled_product(sum, left, b, Tensor(), true);
  } else if (sum.is_cpu() && bf16 && of_sum && of_a && of_b && gemm_bf16()) {
    gemm_bf16()(101, transpose ? 112 : 111, 111, sum.size(0), sum.size(1), b.size(0), 1.0f, a.const_data_ptr(), of_a, b.const_data_ptr(),
                of_b, 1.0f, sum.mutable_data_ptr<float>(), of_sum);
  } else if (a.scalar_type() == at::kFloat) {
    sum.addmm_(left, b);
  } else {
    sum.add_(left.mm(b));
  }
}

// a [M, K] · b [K, N] + bias [N], of one kind.
static Tensor product(const Tensor& a, const Tensor& b, const Tensor& bias) {
  auto y = at::empty({a.size(0), b.size(1)}, a.options().dtype(at::kFloat));
  tiled_product(y, a, b, bias.defined() ? bias.to(at::kFloat) : bias, false);
  return y.to(a.scalar_type());
}
// Without AVX-512 libtorch computes products of bfloat16 element by element; with it its products, oneDNN's, are as fast as tiles.
static bool tiles_bf16(const Tensor& x) { return x.is_cpu() && x.scalar_type() == at::kBFloat16 && is_tiled(true) && !has_avx512_bf16(); }
static bool tiles(const Tensor& x) { return tiles_bf16(x) || (x.is_cpu() && x.scalar_type() == at::kFloat && is_tiled(false)); }

// to [M, N] = a [M, K] · b [K, N], or to += a · b where `add`, all of one kind.
static void multiply(const Tensor& to, const Tensor& a, const Tensor& b, bool add) {
  auto result = to;
  if (!tiles_bf16(a)) {
    add ? result.addmm_(a, b) : at::mm_out(result, a, b);
    return;
  }
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0) && to.size(0) == a.size(0) && to.size(1) == b.size(1) &&
                  b.scalar_type() == at::kBFloat16 && to.scalar_type() == at::kBFloat16,
              "multiply: ", a.sizes(), " times ", b.sizes(), " into ", to.sizes());
  const auto sum = add ? to.to(at::kFloat) : at::empty(to.sizes(), to.options().dtype(at::kFloat));
  tiled_product(sum, a, b, Tensor(), add);
  result.copy_(sum);
}

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(AutogradContext* ctx, Tensor x, Tensor weight, std::optional<Tensor> bias) {
    ctx->save_for_backward({x, weight, bias.value_or(Tensor())});
    if (!tiles(x)) return at::linear(x, weight, bias);
    auto sizes = x.sizes().vec();
    sizes.back() = weight.size(0);
    return product(x.reshape({-1, weight.size(1)}), weight.t(), bias.value_or(Tensor())).view(sizes);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &bias = saved[2];
    const auto dy = grads[0].reshape({-1, weight.size(0)}).contiguous();
    Tensor dx, dweight, dbias;
    if (ctx->needs_input_grad(0)) dx = (tiles(dy) ? product(dy, weight, Tensor()) : dy.mm(weight)).view(x.sizes());
    if (ctx->needs_input_grad(1)) {
      const auto rows = x.reshape({-1, weight.size(1)}).contiguous();
      if (const Tensor* sum = lf_sink(weight)) add_product(*sum, dy, true, rows);
      else dweight = tiles(dy) ? product(dy.t(), rows, Tensor()) : dy.t().mm(rows);
    }
    if (bias.defined() && ctx->needs_input_grad(2)) {
      dbias = dy.sum(0, false, at::kFloat);
      if (const Tensor* sum = lf_sink(bias)) {
        sum->add_(dbias);
        dbias = Tensor();
      }
    }
    return {dx, dweight, dbias};
  }
};

LF_BODY void add_rows(float* sum, const T* rows, const int64_t* ids, int64_t num_rows, int64_t width, int64_t padding,
                      int64_t begin, int64_t end) {
  for (int64_t row = 0; row < num_rows; row++) {
    if (ids[row] == padding) continue;
    float* to = sum + ids[row] * width;
    const T* from = rows + row * width;
#pragma omp simd
    for (int64_t i = begin; i < end; i++) to[i] += load(from[i]);
  }
}
#define ADD_ROWS(T)                                                                                                    \
  LF_CLONES static void add_rows_of(float* sum, const T* rows, const int64_t* ids, int64_t n, int64_t width,           \
                                    int64_t padding, int64_t begin, int64_t end) {                                     \
    add_rows(sum, rows, ids, n, width, padding, begin, end);                                                           \
  }
ADD_ROWS(float)
ADD_ROWS(bf16)

struct Embedding : torch::autograd::Function<Embedding> {
  static Tensor forward(AutogradContext* ctx, Tensor table, Tensor ids, int64_t padding) {
    ctx->save_for_backward({table, ids});
    ctx->saved_data["padding"] = padding;
    return at::embedding(table, ids, padding);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &table = saved[0], ids = saved[1].contiguous(), dy = grads[0].contiguous();
    const int64_t padding = ctx->saved_data["padding"].toInt(), width = table.size(1), num_rows = ids.numel();
    const Tensor* sum = lf_sink(table);
    if (!sum) return {at::embedding_dense_backward(dy, ids, table.size(0), padding, false), Tensor(), Tensor()};
    float* to = sum->mutable_data_ptr<float>();
    const int64_t* id = ids.const_data_ptr<int64_t>();
    // Every thread adds some columns of all rows, in the rows' order: the same bits for any number of threads.
    lf_parallel_for(0, width, std::max<int64_t>(64, 65536 / std::max<int64_t>(1, num_rows)), [&](int64_t a, int64_t b) {
      if (dy.scalar_type() == at::kBFloat16) add_rows_of(to, static_cast<const bf16*>(dy.const_data_ptr()), id, num_rows, width, padding, a, b);
      else add_rows_of(to, dy.const_data_ptr<float>(), id, num_rows, width, padding, a, b);
    });
    return {Tensor(), Tensor(), Tensor()};
  }
};

// x [..., I] · weight [O, I] transposed, and bias [O] or null; on the CPU, of one kind. Null on failure.
LF_API void* lf_linear(Tensor* x, Tensor* weight, Tensor* bias) {
  LF_RECORD("linear");
  return lf_guard<void*>(nullptr, [&] {
    return new Tensor(Linear::apply(*x, *weight, bias ? std::optional<Tensor>(*bias) : std::nullopt));
  });
}
// Whether this processor has what tiles need.
LF_API bool lf_can_tile() { return can_tile(); }
// Whether tiles are faster here than what libtorch has.
LF_API bool lf_is_faster_tiled() { return is_faster_tiled(); }
// Which of this thread's products are computed in tiles from now on, only where lf_can_tile: see `tiled`.
LF_API void lf_set_tiled(int which) { tiled = which; }
// Rows `ids` (int64) of table [V, D], float32 or bfloat16 on the CPU; row `padding` gets no gradient. Null on failure.
LF_API void* lf_embedding(Tensor* table, Tensor* ids, int64_t padding) {
  LF_RECORD("embedding");
  return lf_guard<void*>(nullptr, [&] { return new Tensor(Embedding::apply(*table, *ids, padding)); });
}
// sum [M, N], float32, gets a · b added, or aᵀ · b. Negative on failure.
LF_API int lf_add_product(Tensor* sum, Tensor* a, bool transpose, Tensor* b) {
  LF_RECORD("add_product");
  return lf_guard(-1, [&] {
    at::NoGradGuard guard;
    add_product(*sum, *a, transpose, *b);
    return 0;
  });
}
// to [M, N] gets a · b, or has it added; all of one kind. Negative on failure.
LF_API int lf_multiply(Tensor* to, Tensor* a, Tensor* b, bool add) {
  LF_RECORD("multiply");
  return lf_guard(-1, [&] {
    at::NoGradGuard guard;
    multiply(*to, *a, *b, add);
    return 0;
  });
}
