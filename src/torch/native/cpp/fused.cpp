// Element-wise chains of a transformer as one pass each, float32 on the CPU, with their own backward: eager
// libtorch makes six passes of an RMS norm and as many of a rotary embedding.
// Sums are made in blocks of a fixed number of rows, so the number of threads does not change a bit.
#include "common.h"
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <torch/csrc/autograd/custom_function.h>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

#if defined(__x86_64__)
#define LF_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LF_CLONES
#endif

static constexpr int64_t BLOCK = 64; // rows

// Rows are (token, head); x may be strided over both. `weight` null: no norm. `cos` null: no rotation; its rows and
// those of `sin` belong to tokens and turn the first `turning` channels. A pair is channels i and i + turning / 2, or
// `neighbours` 2i and 2i + 1, which come out half-split; these only without a norm.
struct Rows {
  int64_t tokens, heads, width, turning, token_stride, head_stride;
  bool neighbours;
  double eps;
  const float *weight, *cos, *sin;
  const float* at(const float* x, int64_t row) const { return x + row / heads * token_stride + row % heads * head_stride; }
};

LF_CLONES static void norm_rope_forward(const Rows& r, const float* x, float* rstd, float* y, int64_t begin, int64_t end) {
  const int64_t half = r.turning / 2;
  for (int64_t row = begin; row < end; row++) {
    const float* in = r.at(x, row);
    float* out = y + row * r.width;
    if (r.weight) {
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < r.width; i++) sum += in[i] * in[i];
      const float scale = 1.0f / std::sqrt(sum / r.width + static_cast<float>(r.eps));
      rstd[row] = scale;
#pragma omp simd
      for (int64_t i = 0; i < r.width; i++) out[i] = in[i] * scale * r.weight[i];
      in = out;
    }
    if (!r.cos) continue;
    const float *c = r.cos + row / r.heads * r.turning, *s = r.sin + row / r.heads * r.turning;
    if (in != out) std::copy(in + r.turning, in + r.width, out + r.turning);
    if (r.neighbours) {
#pragma omp simd
      for (int64_t i = 0; i < half; i++) {
        const float a = in[2 * i], b = in[2 * i + 1];
        out[i] = a * c[i] - b * s[i];
        out[i + half] = b * c[i + half] + a * s[i + half];
      }
    } else {
#pragma omp simd
      for (int64_t i = 0; i < half; i++) {
        const float a = in[i], b = in[i + half];
        out[i] = a * c[i] - b * s[i];
        out[i + half] = b * c[i + half] + a * s[i + half];
      }
    }
  }
}

// Adds the weight's gradient of these rows to `dweight`. `scratch` has the width of a row.
LF_CLONES static void norm_rope_backward(const Rows& r, const float* x, const float* rstd, const float* dy, float* dx,
                                         float* dweight, float* scratch, int64_t begin, int64_t end) {
  const int64_t half = r.turning / 2;
  for (int64_t row = begin; row < end; row++) {
    const float* dn = dy + row * r.width;
    float* out = dx + row * r.width;
    if (r.cos) {
      const float *c = r.cos + row / r.heads * r.turning, *s = r.sin + row / r.heads * r.turning;
      float* turned = r.weight ? scratch : out;
      std::copy(dn + r.turning, dn + r.width, turned + r.turning);
      if (r.neighbours) {
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
          const float a = dn[i], b = dn[i + half];
          turned[2 * i] = a * c[i] + b * s[i + half];
          turned[2 * i + 1] = b * c[i + half] - a * s[i];
        }
      } else {
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
          const float a = dn[i], b = dn[i + half];
          turned[i] = a * c[i] + b * s[i + half];
          turned[i + half] = b * c[i + half] - a * s[i];
        }
      }
      dn = turned;
    }
    if (!r.weight) continue;
    const float* in = r.at(x, row);
    const float scale = rstd[row];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < r.width; i++) {
      const float product = dn[i] * in[i];
      dweight[i] += product * scale;
      dot += product * r.weight[i];
    }
    const float mean = dot * scale * scale * scale / r.width;
#pragma omp simd
    for (int64_t i = 0; i < r.width; i++) out[i] = dn[i] * r.weight[i] * scale - in[i] * mean;
  }
}

// Cephes' expf, as a loop that vectorises; relative error below 2e-7.
static inline float fast_exp(float x) {
  x = x > 88.0f ? 88.0f : x < -87.0f ? -87.0f : x;
  const float n = std::nearbyint(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, 4);
  return p * scale;
}

LF_CLONES static void swiglu_forward(const float* gate, const float* up, float* y, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = gate[i] * up[i] / (1.0f + fast_exp(-gate[i]));
}
LF_CLONES static void swiglu_backward(const float* gate, const float* up, const float* dy, float* dgate, float* dup, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float s = 1.0f / (1.0f + fast_exp(-gate[i])), silu = gate[i] * s;
    dup[i] = dy[i] * silu;
    dgate[i] = dy[i] * up[i] * (s + silu * (1.0f - s));
  }
}

static const float* data_or_null(const Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }
static Rows rows_of(const Tensor& x, const Tensor& weight, const Tensor& cos, const Tensor& sin, bool neighbours, double eps) {
  const int64_t turning = cos.defined() ? cos.size(1) : 0;
  return {x.size(0), x.size(1), x.size(2), turning, x.stride(0), x.stride(1), neighbours, eps, data_or_null(weight), data_or_null(cos), data_or_null(sin)};
}

struct NormRope : torch::autograd::Function<NormRope> {
  static Tensor forward(AutogradContext* ctx, Tensor x, std::optional<Tensor> norm_weight, std::optional<Tensor> cosines,
                        std::optional<Tensor> sines, bool neighbours, double eps) {
    const auto weight = norm_weight.value_or(Tensor()), cos = cosines.value_or(Tensor()), sin = sines.value_or(Tensor());
    if (x.stride(2) != 1) x = x.contiguous();
    const auto r = rows_of(x, weight, cos, sin, neighbours, eps);
    const int64_t n = r.tokens * r.heads;
    auto y = at::empty({r.tokens, r.heads, r.width}, x.options());
    auto rstd = at::empty({r.weight ? n : 0}, x.options());
    const float* in = x.const_data_ptr<float>();
    float *scale = rstd.mutable_data_ptr<float>(), *out = y.mutable_data_ptr<float>();
    at::parallel_for(0, n, 2048, [&](int64_t a, int64_t b) { norm_rope_forward(r, in, scale, out, a, b); });
    ctx->save_for_backward({r.weight ? x : Tensor(), weight, cos, sin, rstd});
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["neighbours"] = neighbours;
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto dy = grads[0].contiguous();
    const Tensor &x = saved[0].defined() ? saved[0] : dy, &rstd = saved[4];
    const auto r = rows_of(x, saved[1], saved[2], saved[3], ctx->saved_data["neighbours"].toBool(), ctx->saved_data["eps"].toDouble());
    const int64_t n = r.tokens * r.heads, blocks = (n + BLOCK - 1) / BLOCK;
    auto dx = at::empty({r.tokens, r.heads, r.width}, dy.options());
    auto partial = at::zeros({r.weight ? blocks : 0, r.width}, dy.options());
    const float *in = x.const_data_ptr<float>(), *scale = rstd.const_data_ptr<float>(), *d = dy.const_data_ptr<float>();
    float *out = dx.mutable_data_ptr<float>(), *sums = partial.mutable_data_ptr<float>();
    at::parallel_for(0, blocks, 32, [&](int64_t first, int64_t last) {
      std::vector<float> scratch(r.width);
      for (int64_t b = first; b < last; b++)
        norm_rope_backward(r, in, scale, d, out, sums + (r.weight ? b * r.width : 0), scratch.data(), b * BLOCK, std::min(n, (b + 1) * BLOCK));
    });
    return {dx, r.weight ? partial.sum(0) : Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

struct SwiGlu : torch::autograd::Function<SwiGlu> {
  static Tensor forward(AutogradContext* ctx, Tensor gate, Tensor up) {
    gate = gate.contiguous(), up = up.contiguous();
    auto y = at::empty(gate.sizes(), gate.options());
    const float *g = gate.const_data_ptr<float>(), *u = up.const_data_ptr<float>();
    float* out = y.mutable_data_ptr<float>();
    at::parallel_for(0, y.numel(), 65536, [&](int64_t a, int64_t b) { swiglu_forward(g + a, u + a, out + a, b - a); });
    ctx->save_for_backward({gate, up});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto dy = grads[0].contiguous();
    auto dgate = at::empty(dy.sizes(), dy.options()), dup = at::empty(dy.sizes(), dy.options());
    const float *g = saved[0].const_data_ptr<float>(), *u = saved[1].const_data_ptr<float>(), *d = dy.const_data_ptr<float>();
    float *dg = dgate.mutable_data_ptr<float>(), *du = dup.mutable_data_ptr<float>();
    at::parallel_for(0, dy.numel(), 65536, [&](int64_t a, int64_t b) { swiglu_backward(g + a, u + a, d + a, dg + a, du + a, b - a); });
    return {dgate, dup};
  }
};

// x [T, H, C] float32 on the CPU; weight [C] or null; cos and sin [T, R], contiguous, R <= C, or null. Null on failure.
LF_API void* lf_norm_rope(Tensor* x, Tensor* weight, Tensor* cos, Tensor* sin, bool neighbours, double eps) {
  return lf_guard<void*>(nullptr, [&] {
    auto or_none = [](Tensor* t) { return t ? std::optional<Tensor>(*t) : std::nullopt; };
    return new Tensor(NormRope::apply(*x, or_none(weight), or_none(cos), or_none(sin), neighbours, eps));
  });
}
// silu(gate) · up, of one shape, float32 on the CPU. Null on failure.
LF_API void* lf_swiglu(Tensor* gate, Tensor* up) {
  return lf_guard<void*>(nullptr, [&] { return new Tensor(SwiGlu::apply(*gate, *up)); });
}
