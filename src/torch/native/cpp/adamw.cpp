// AdamW and the norm of a gradient over flat buffers, on the CPU, one pass each.
// The norm is summed in blocks of a fixed size, so the number of threads does not change a bit.
#include "adamw.h"
#include "common.h"
#include "loops.h"
#include <ATen/Parallel.h>
#include <vector>

using at::Tensor;

// `rounded` takes the new parameters as well, where it is not null.
LF_CLONES static void step(const AdamWFactors& s, float* p, uint16_t* rounded, float* g, float* m, float* v, int64_t begin, int64_t end) {
  bf16* low = reinterpret_cast<bf16*>(rounded);
#pragma omp simd
  for (int64_t i = begin; i < end; i++) {
    const float grad = g[i] * s.grad_scale;
    const float mean = m[i] + (grad - m[i]) * s.new1;
    const float square = v[i] * s.beta2 + grad * grad * s.new2;
    m[i] = mean;
    v[i] = square;
    p[i] = p[i] * s.decay - s.step_size * mean / (std::sqrt(square) / s.root_bias2 + s.eps);
    if (s.zero) g[i] = 0.0f;
  }
  if (!low) return;
#pragma omp simd
  for (int64_t i = begin; i < end; i++) store(low[i], p[i]);
}

LF_CLONES static double sum_of_squares(const float* x, int64_t n) {
  double total = 0;
  for (int64_t first = 0; first < n; first += 1024) {
    const int64_t end = std::min(n, first + 1024);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = first; i < end; i++) sum += x[i] * x[i];
    total += sum;
  }
  return total;
}

// Parameters `p`, float32, and `rounded`, bfloat16 copies of them or null, with the gradient and both moments: of one
// length, contiguous, on the CPU. Negative on failure.
LF_API int lf_adamw(Tensor* p, Tensor* rounded, Tensor* grad, Tensor* exp_avg, Tensor* exp_avg_sq, const AdamWStep* numbers) {
  LF_RECORD("adamw");
  return lf_guard(-1, [&] {
    const AdamWFactors s(*numbers);
    float *at_p = p->mutable_data_ptr<float>(), *g = grad->mutable_data_ptr<float>();
    float *m = exp_avg->mutable_data_ptr<float>(), *v = exp_avg_sq->mutable_data_ptr<float>();
    uint16_t* low = rounded ? static_cast<uint16_t*>(rounded->mutable_data_ptr()) : nullptr;
    lf_parallel_for(0, p->numel(), 65536, [&](int64_t a, int64_t b) {
      // Blocks that stay in the first cache until they are rounded.
      for (int64_t first = a; first < b; first += 2048) step(s, at_p, low, g, m, v, first, std::min(b, first + 2048));
    });
    return 0;
  });
}

// The sum of the squares of x, float32 and contiguous, on the CPU. Negative on failure.
LF_API double lf_sum_of_squares(Tensor* x) {
  return lf_guard(-1.0, [&] {
    constexpr int64_t block = 1 << 16;
    const int64_t n = x->numel(), blocks = (n + block - 1) / block;
    const float* in = x->const_data_ptr<float>();
    std::vector<double> sums(blocks);
    lf_parallel_for(0, blocks, 4, [&](int64_t a, int64_t b) {
      for (int64_t i = a; i < b; i++) sums[i] = sum_of_squares(in + i * block, std::min(block, n - i * block));
    });
    double total = 0;
    for (const double sum : sums) total += sum;
    return total;
  });
}
