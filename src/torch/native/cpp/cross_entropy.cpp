// The cross-entropy of scores that come in chunks of the vocabulary, on the CPU in float32 arithmetic.
// Every row is one thread's, so the number of threads does not change a bit.
#include "common.h"
#include "loops.h"
#include <ATen/Parallel.h>

using at::Tensor;

// Scores [L, C] of the vocabulary's entries from `first` on. Of every row: the greatest score so far, the sum of
// exponentials of scores less that, and the label's score where it is among them.
LF_BODY void scan(const T* scores, const int64_t* labels, int64_t first, int64_t width, float* greatest, float* sum,
                  float* label_score, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row++) {
    const T* in = scores + row * width;
    float top = greatest[row];
    const float former = top;
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < width; i++) top = std::max(top, load(in[i]));
    float total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < width; i++) total += fast_exp(load(in[i]) - top);
    sum[row] = sum[row] * std::exp(former - top) + total;
    greatest[row] = top;
    const int64_t at = labels[row] - first;
    if (at >= 0 && at < width) label_score[row] = load(in[at]);
  }
}
// Scores become their gradients: probabilities, less one at the label, times `scale`.
LF_BODY void to_gradient(T* scores, const int64_t* labels, int64_t first, int64_t width, const float* norm, float scale,
                         int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; row++) {
    T* in = scores + row * width;
    const int64_t at = labels[row] - first;
    const float less = norm[row];
    const bool here = at >= 0 && at < width;
    const float label = here ? (fast_exp(load(in[at]) - less) - 1.0f) * scale : 0.0f;
    // Denormal numbers are slow: e to the -60 stands for all below it.
#pragma omp simd
    for (int64_t i = 0; i < width; i++) store(in[i], fast_exp(std::max(load(in[i]) - less, -60.0f)) * scale);
    if (here) store(in[at], label);
  }
}
#define KERNELS(T)                                                                                                     \
  LF_CLONES static void scan_of(const T* s, const int64_t* labels, int64_t first, int64_t width, float* greatest,      \
                                float* sum, float* label_score, int64_t a, int64_t b) {                                \
    scan(s, labels, first, width, greatest, sum, label_score, a, b);                                                   \
  }                                                                                                                    \
  LF_CLONES static void to_gradient_of(T* s, const int64_t* labels, int64_t first, int64_t width, const float* norm,   \
                                       float scale, int64_t a, int64_t b) {                                            \
    to_gradient(s, labels, first, width, norm, scale, a, b);                                                           \
  }
KERNELS(float)
KERNELS(bf16)

// scores [L, C] contiguous, float32 or bfloat16; labels [L] int64; the others [L] float32, changed. Negative on failure.
LF_API int lf_scan_scores(Tensor* scores, Tensor* labels, int64_t first, Tensor* greatest, Tensor* sum, Tensor* label_score) {
  LF_RECORD("scan_scores");
  return lf_guard(-1, [&] {
    const int64_t width = scores->size(1);
    const int64_t* label = labels->const_data_ptr<int64_t>();
    float *top = greatest->mutable_data_ptr<float>(), *total = sum->mutable_data_ptr<float>();
    float* of_label = label_score->mutable_data_ptr<float>();
    lf_parallel_for(0, scores->size(0), 16, [&](int64_t a, int64_t b) {
      if (scores->scalar_type() == at::kBFloat16)
        scan_of(static_cast<const bf16*>(scores->const_data_ptr()), label, first, width, top, total, of_label, a, b);
      else scan_of(scores->const_data_ptr<float>(), label, first, width, top, total, of_label, a, b);
    });
    return 0;
  });
}
// As above; `norm` [L] float32 is the logarithm of each row's sum of exponentials.
LF_API int lf_scores_to_gradient(Tensor* scores, Tensor* labels, int64_t first, Tensor* norm, double scale) {
  LF_RECORD("scores_to_gradient");
  return lf_guard(-1, [&] {
    const int64_t width = scores->size(1);
    const int64_t* label = labels->const_data_ptr<int64_t>();
    const float* less = norm->const_data_ptr<float>();
    const float factor = static_cast<float>(scale);
    lf_parallel_for(0, scores->size(0), 16, [&](int64_t a, int64_t b) {
      if (scores->scalar_type() == at::kBFloat16)
        to_gradient_of(static_cast<bf16*>(scores->mutable_data_ptr()), label, first, width, less, factor, a, b);
      else to_gradient_of(scores->mutable_data_ptr<float>(), label, first, width, less, factor, a, b);
    });
    return 0;
  });
}
