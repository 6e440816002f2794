// Element-wise chains of a transformer as one pass each, on the CPU in float32 arithmetic, with their own backward:
// eager libtorch makes six passes of an RMS norm and as many of a rotary embedding.
// Sums are made in blocks of a fixed number of rows, so the number of threads does not change a bit.
#include "common.h"
#include "loops.h"
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <optional>
#include <torch/csrc/autograd/custom_function.h>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

static constexpr int64_t BLOCK = 64; // rows

// Rows are (token, head); x may be strided over both. `weight` null: no norm. `cos` null: no rotation; its rows and
// those of `sin` belong to tokens and turn the first `turning` channels of every `part` of a row. A pair is channels i and
// i + turning / 2, or `neighbors` 2i and 2i + 1, which come out half-split.
struct Rows {
  int64_t tokens, heads, width, part, turning, token_stride, head_stride;
  bool neighbors;
  double eps;
  const float *weight, *cos, *sin;
  template <typename T> const T* at(const T* x, int64_t row) const {
    return x + row / heads * token_stride + row % heads * head_stride;
  }
};

// `scratch` has the width of a row.
LF_BODY void norm_rope_forward(const Rows& r, const T* x, float* rstd, T* y, float* scratch, int64_t begin, int64_t end) {
  const int64_t half = r.turning / 2;
  for (int64_t row = begin; row < end; row++) {
    const T* in = r.at(x, row);
    T* out = y + row * r.width;
#pragma omp simd
    for (int64_t i = 0; i < r.width; i++) scratch[i] = load(in[i]);
    if (r.weight) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < r.width; i++) sum += scratch[i] * scratch[i];
      const float scale = 1.0f / std::sqrt(sum / r.width + static_cast<float>(r.eps));
      rstd[row] = scale;
#pragma omp simd
      for (int64_t i = 0; i < r.width; i++) scratch[i] = scratch[i] * scale * r.weight[i];
    }
    if (!r.cos) {
#pragma omp simd
      for (int64_t i = 0; i < r.width; i++) store(out[i], scratch[i]);
      continue;
    }
    const float *c = r.cos + row / r.heads * r.turning, *s = r.sin + row / r.heads * r.turning;
    for (const float* from = scratch; from < scratch + r.width; from += r.part, out += r.part) {
#pragma omp simd
      for (int64_t i = r.turning; i < r.part; i++) store(out[i], from[i]);
      if (r.neighbors) {
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
          const float a = from[2 * i], b = from[2 * i + 1];
          store(out[i], a * c[i] - b * s[i]);
          store(out[i + half], b * c[i + half] + a * s[i + half]);
        }
      } else {
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
          const float a = from[i], b = from[i + half];
          store(out[i], a * c[i] - b * s[i]);
          store(out[i + half], b * c[i + half] + a * s[i + half]);
        }
      }
    }
  }
}
#define FORWARD(name, T)                                                                                               \
  LF_CLONES static void name(const Rows& r, const T* x, float* rstd, T* y, float* scratch, int64_t a, int64_t b) {     \
    norm_rope_forward(r, x, rstd, y, scratch, a, b);                                                                   \
  }
FORWARD(forward_of, float)
FORWARD(forward_of, bf16)

// Adds the weight's gradient of these rows to `dweight`. `scratch` has the width of a row.
LF_BODY void norm_rope_backward(const Rows& r, const T* x, const float* rstd, const T* dy, T* dx, float* dweight,
                                float* scratch, int64_t begin, int64_t end) {
  const int64_t half = r.turning / 2;
  for (int64_t row = begin; row < end; row++) {
    const T* dn = dy + row * r.width;
    T* out = dx + row * r.width;
    if (r.cos) {
      const float *c = r.cos + row / r.heads * r.turning, *s = r.sin + row / r.heads * r.turning;
      for (float* to = scratch; to < scratch + r.width; to += r.part, dn += r.part) {
        if (r.neighbors) {
#pragma omp simd
          for (int64_t i = 0; i < half; i++) {
            const float a = load(dn[i]), b = load(dn[i + half]);
            to[2 * i] = a * c[i] + b * s[i + half];
            to[2 * i + 1] = b * c[i + half] - a * s[i];
          }
        } else {
#pragma omp simd
          for (int64_t i = 0; i < half; i++) {
            const float a = load(dn[i]), b = load(dn[i + half]);
            to[i] = a * c[i] + b * s[i + half];
            to[i + half] = b * c[i + half] - a * s[i];
          }
        }
#pragma omp simd
        for (int64_t i = r.turning; i < r.part; i++) to[i] = load(dn[i]);
      }
    } else {
#pragma omp simd
      for (int64_t i = 0; i < r.width; i++) scratch[i] = load(dn[i]);
    }
    if (!r.weight) {
#pragma omp simd
      for (int64_t i = 0; i < r.width; i++) store(out[i], scratch[i]);
      continue;
    }
    const T* in = r.at(x, row);
    const float scale = rstd[row];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < r.width; i++) {
      const float product = scratch[i] * load(in[i]);
      dweight[i] += product * scale;
      dot += product * r.weight[i];
    }
    const float mean = dot * scale * scale * scale / r.width;
#pragma omp simd
    for (int64_t i = 0; i < r.width; i++) store(out[i], scratch[i] * r.weight[i] * scale - load(in[i]) * mean);
  }
}
#define BACKWARD(name, T)                                                                                              \
  LF_CLONES static void name(const Rows& r, const T* x, const float* rstd, const T* dy, T* dx, float* dweight,         \
                             float* scratch, int64_t a, int64_t b) {                                                   \
    norm_rope_backward(r, x, rstd, dy, dx, dweight, scratch, a, b);                                                    \
  }
BACKWARD(backward_of, float)
BACKWARD(backward_of, bf16)

LF_BODY void swiglu_forward(const T* gate, const T* up, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float g = load(gate[i]);
    store(y[i], g * load(up[i]) / (1.0f + fast_exp(-g)));
  }
}
LF_BODY void swiglu_backward(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float g = load(gate[i]), d = load(dy[i]);
    const float s = 1.0f / (1.0f + fast_exp(-g)), silu = g * s;
    store(dup[i], d * silu);
    store(dgate[i], d * load(up[i]) * (s + silu * (1.0f - s)));
  }
}
// x times the logistic of twice the tanh's argument, which is half of one plus the tanh.
static constexpr float GELU_1 = 1.5957691216f, GELU_3 = GELU_1 * 0.044715f;
LF_BODY void gelu_forward(const T* x, T* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float a = load(x[i]);
    store(y[i], a / (1.0f + fast_exp(-a * (GELU_1 + GELU_3 * a * a))));
  }
}
LF_BODY void gelu_backward(const T* x, const T* dy, T* dx, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float a = load(x[i]), square = a * a;
    const float s = 1.0f / (1.0f + fast_exp(-a * (GELU_1 + GELU_3 * square)));
    store(dx[i], load(dy[i]) * (s + a * s * (1.0f - s) * (GELU_1 + 3.0f * GELU_3 * square)));
  }
}
#define GELU(T)                                                                                                        \
  LF_CLONES static void gelu_of(const T* x, T* y, int64_t n) { gelu_forward(x, y, n); }                                \
  LF_CLONES static void gelu_of(const T* x, const T* dy, T* dx, int64_t n) { gelu_backward(x, dy, dx, n); }
GELU(float)
GELU(bf16)
#define SWIGLU(T)                                                                                                      \
  LF_CLONES static void swiglu_of(const T* gate, const T* up, T* y, int64_t n) { swiglu_forward(gate, up, y, n); }     \
  LF_CLONES static void swiglu_of(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t n) {              \
    swiglu_backward(gate, up, dy, dgate, dup, n);                                                                      \
  }
SWIGLU(float)
SWIGLU(bf16)

template <typename T> static const T* data(const Tensor& t) { return static_cast<const T*>(t.const_data_ptr()); }
template <typename T> static T* changing(const Tensor& t) { return static_cast<T*>(t.mutable_data_ptr()); }
// Calls `body` with a value of the tensor's kind of memory.
template <typename F> static void by_kind(const Tensor& x, F body) { x.scalar_type() == at::kBFloat16 ? body(bf16()) : body(float()); }

static const float* data_or_null(const Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }
static Rows rows_of(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin, int64_t parts, bool neighbors, double eps) {
  const int64_t turning = cos.defined() ? cos.size(1) : 0;
  return {x.size(0), x.size(1), x.size(2), x.size(2) / parts, turning, x.stride(0), x.stride(1), neighbors, eps, data_or_null(weight), data_or_null(cos), data_or_null(sin)};
}

struct NormRope : torch::autograd::Function<NormRope> {
  static Tensor forward(AutogradContext* ctx, Tensor x, std::optional<Tensor> norm_weight, std::optional<Tensor> cosines,
                        std::optional<Tensor> sines, int64_t parts, bool neighbors, double eps) {
    const auto leaf = norm_weight.value_or(Tensor()), cos = cosines.value_or(Tensor()), sin = sines.value_or(Tensor());
    const auto weight = leaf.defined() ? leaf.to(at::kFloat) : leaf;
    if (x.stride(2) != 1) x = x.contiguous();
    const auto r = rows_of(x, weight, cos, sin, parts, neighbors, eps);
    const int64_t n = r.tokens * r.heads;
    auto y = at::empty({r.tokens, r.heads, r.width}, x.options());
    auto rstd = at::empty({r.weight ? n : 0}, x.options().dtype(at::kFloat));
    float* scale = rstd.mutable_data_ptr<float>();
    by_kind(x, [&](auto kind) {
      using T = decltype(kind);
      const T* in = data<T>(x);
      T* out = changing<T>(y);
      lf_parallel_for(0, n, std::max<int64_t>(1, 131072 / std::max<int64_t>(1, r.width)), [&](int64_t a, int64_t b) {
        std::vector<float> scratch(r.width);
        forward_of(r, in, scale, out, scratch.data(), a, b);
      });
    });
    ctx->save_for_backward({r.weight ? x : Tensor(), leaf, cos, sin, rstd});
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["parts"] = parts;
    ctx->saved_data["neighbors"] = neighbors;
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto dy = grads[0].contiguous();
    const Tensor &x = saved[0].defined() ? saved[0] : dy, &leaf = saved[1], &rstd = saved[4];
    const auto weight = leaf.defined() ? leaf.to(at::kFloat) : leaf;
    const auto r = rows_of(x, weight, saved[2], saved[3], ctx->saved_data["parts"].toInt(), ctx->saved_data["neighbors"].toBool(), ctx->saved_data["eps"].toDouble());
    const int64_t n = r.tokens * r.heads, blocks = (n + BLOCK - 1) / BLOCK;
    auto dx = at::empty({r.tokens, r.heads, r.width}, dy.options());
    auto partial = at::zeros({r.weight ? blocks : 0, r.width}, dy.options().dtype(at::kFloat));
    const float* scale = rstd.const_data_ptr<float>();
    float* sums = partial.mutable_data_ptr<float>();
    by_kind(x, [&](auto kind) {
      using T = decltype(kind);
      const T *in = data<T>(x), *d = data<T>(dy);
      T* out = changing<T>(dx);
      const int64_t grain = std::max<int64_t>(1, 131072 / BLOCK / std::max<int64_t>(1, r.width));
      lf_parallel_for(0, blocks, grain, [&](int64_t first, int64_t last) {
        std::vector<float> scratch(r.width);
        for (int64_t b = first; b < last; b++)
          backward_of(r, in, scale, d, out, sums + (r.weight ? b * r.width : 0), scratch.data(), b * BLOCK, std::min(n, (b + 1) * BLOCK));
      });
    });
    Tensor dweight;
    if (r.weight && ctx->needs_input_grad(1)) {
      dweight = partial.sum(0);
      if (const Tensor* sum = lf_sink(leaf)) {
        sum->add_(dweight);
        dweight = Tensor();
      }
    }
    return {dx, dweight, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

struct SwiGlu : torch::autograd::Function<SwiGlu> {
  static Tensor forward(AutogradContext* ctx, Tensor gate, Tensor up) {
    gate = gate.contiguous(), up = up.contiguous();
    auto y = at::empty(gate.sizes(), gate.options());
    by_kind(gate, [&](auto kind) {
      using T = decltype(kind);
      const T *g = data<T>(gate), *u = data<T>(up);
      T* out = changing<T>(y);
      lf_parallel_for(0, y.numel(), 65536, [&](int64_t a, int64_t b) { swiglu_of(g + a, u + a, out + a, b - a); });
    });
    ctx->save_for_backward({gate, up});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto dy = grads[0].contiguous();
    auto dgate = at::empty(dy.sizes(), dy.options()), dup = at::empty(dy.sizes(), dy.options());
    by_kind(dy, [&](auto kind) {
      using T = decltype(kind);
      const T *g = data<T>(saved[0]), *u = data<T>(saved[1]), *d = data<T>(dy);
      T *dg = changing<T>(dgate), *du = changing<T>(dup);
      lf_parallel_for(0, dy.numel(), 65536, [&](int64_t a, int64_t b) { swiglu_of(g + a, u + a, d + a, dg + a, du + a, b - a); });
    });
    return {dgate, dup};
  }
};

struct GeluTanh : torch::autograd::Function<GeluTanh> {
  static Tensor forward(AutogradContext* ctx, Tensor x) {
    x = x.contiguous();
    auto y = at::empty(x.sizes(), x.options());
    by_kind(x, [&](auto kind) {
      using T = decltype(kind);
      const T* in = data<T>(x);
      T* out = changing<T>(y);
      lf_parallel_for(0, y.numel(), 65536, [&](int64_t a, int64_t b) { gelu_of(in + a, out + a, b - a); });
    });
    ctx->save_for_backward({x});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto dy = grads[0].contiguous();
    auto dx = at::empty(dy.sizes(), dy.options());
    by_kind(dy, [&](auto kind) {
      using T = decltype(kind);
      const T *in = data<T>(saved[0]), *d = data<T>(dy);
      T* out = changing<T>(dx);
      lf_parallel_for(0, dy.numel(), 65536, [&](int64_t a, int64_t b) { gelu_of(in + a, d + a, out + a, b - a); });
    });
    return {dx};
  }
};

// x [T, H, C], float32 or bfloat16 on the CPU; weight [C] of the same kind or null; cos and sin [T, R], float32 and
// contiguous, R <= C / parts, or null: each of `parts` of a row is turned. Null on failure.
LF_API void* lf_norm_rope(Tensor* x, Tensor* weight, Tensor* cos, Tensor* sin, int64_t parts, bool neighbors, double eps) {
  LF_RECORD("norm_rope");
  return lf_guard<void*>(nullptr, [&] {
    auto or_none = [](Tensor* t) { return t ? std::optional<Tensor>(*t) : std::nullopt; };
    return new Tensor(NormRope::apply(*x, or_none(weight), or_none(cos), or_none(sin), parts, neighbors, eps));
  });
}
// silu(gate) · up, of one shape and kind, float32 or bfloat16 on the CPU. Null on failure.
LF_API void* lf_swiglu(Tensor* gate, Tensor* up) {
  LF_RECORD("swiglu");
  return lf_guard<void*>(nullptr, [&] { return new Tensor(SwiGlu::apply(*gate, *up)); });
}
// The tanh-GELU of x, float32 or bfloat16 on the CPU. Null on failure.
LF_API void* lf_gelu_tanh(Tensor* x) {
  LF_RECORD("gelu_tanh");
  return lf_guard<void*>(nullptr, [&] { return new Tensor(GeluTanh::apply(*x)); });
}
