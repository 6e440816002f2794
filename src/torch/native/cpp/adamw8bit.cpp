// AdamW whose moments are bytes of the dynamic map, in blocks of 256 with a largest magnitude each (Dettmers et al. 2022,
// arXiv:2110.02861), on the CPU: as AdamW8bit of bitsandbytes, one pass.
#include "adamw.h"
#include "common.h"
#include "loops.h"
#include <limits>

using at::Tensor;

static constexpr int64_t BLOCK = 256;

// The code of a number between -1 and 1: how many bounds, in the middle of two numbers of the map, it is above. The upper half of
// the number's bits says where to begin.
struct Encoder {
  const float* map;
  float bounds[256];
  uint8_t first[1 << 16];
  explicit Encoder(const float* numbers) : map(numbers) {
    for (int i = 0; i < 255; i++) bounds[i] = (numbers[i] + numbers[i + 1]) / 2.0f;
    bounds[255] = std::numeric_limits<float>::infinity();
    for (uint32_t upper = 0; upper < 1 << 16; upper++) {
      // The least number with this half.
      const uint32_t bits = upper << 16 | (upper & 0x8000 ? 0xffff : 0);
      float least;
      std::memcpy(&least, &bits, 4);
      int code = 0;
      while (code < 255 && bounds[code] < least) code++;
      first[upper] = static_cast<uint8_t>(code);
    }
  }
  uint8_t of(float x) const {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    int code = first[bits >> 16];
    while (x > bounds[code]) code++;
    return static_cast<uint8_t>(code);
  }
};

LF_CLONES static void update(const AdamWFactors& s, float* p, float* g, float* m, float* v, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float grad = g[i] * s.grad_scale;
    m[i] = m[i] * s.beta1 + grad * s.new1;
    v[i] = v[i] * s.beta2 + grad * grad * s.new2;
    p[i] = p[i] * s.decay - s.step_size * (m[i] / (std::sqrt(v[i]) / s.root_bias2 + s.eps));
    if (s.zero) g[i] = 0.0f;
  }
}

LF_CLONES static void round_to(const float* p, bf16* low, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; i++) store(low[i], p[i]);
}

// The largest magnitude; and numbers become parts of it.
LF_CLONES static float scale_down(float* x, int64_t n) {
  float most = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; i++) most = std::max(most, std::fabs(x[i]));
  const float inverse = 1.0f / std::max(most, 1e-38f);
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    const float part = x[i] * inverse;
    x[i] = part > 1.0f ? 1.0f : part < -1.0f ? -1.0f : part;
  }
  return most;
}

static void decode(const Encoder& of, const uint8_t* codes, float most, float* x, int64_t n) {
  for (int64_t i = 0; i < n; i++) x[i] = of.map[codes[i]] * most;
}

static float encode(const Encoder& of, float* x, uint8_t* codes, int64_t n) {
  const float most = scale_down(x, n);
  for (int64_t i = 0; i < n; i++) codes[i] = of.of(x[i]);
  return most;
}

// Parameters `p`, float32, and `rounded`, bfloat16 copies of them or null, with the gradient, the codes of both moments, bytes, and
// the largest magnitudes of their blocks: contiguous, on the CPU. `maps`: the 256 numbers of either moment's codes, the same in
// every call. Negative on failure.
LF_API int lf_adamw_8bit(Tensor* p, Tensor* rounded, Tensor* grad, Tensor* const* codes, Tensor* const* maxima, const float* const* maps,
                         const AdamWStep* numbers) {
  LF_RECORD("adamw_8bit");
  return lf_guard(-1, [&] {
    static const Encoder encoders[2] = {Encoder(maps[0]), Encoder(maps[1])};
    const AdamWFactors s(*numbers);
    const int64_t n = p->numel(), blocks = (n + BLOCK - 1) / BLOCK;
    float *at_p = p->mutable_data_ptr<float>(), *g = grad->mutable_data_ptr<float>();
    uint8_t *code_m = codes[0]->mutable_data_ptr<uint8_t>(), *code_v = codes[1]->mutable_data_ptr<uint8_t>();
    float *max_m = maxima[0]->mutable_data_ptr<float>(), *max_v = maxima[1]->mutable_data_ptr<float>();
    bf16* low = rounded ? static_cast<bf16*>(rounded->mutable_data_ptr()) : nullptr;
    lf_parallel_for(0, blocks, 64, [&](int64_t a, int64_t b) {
      float m[BLOCK], v[BLOCK];
      for (int64_t block = a; block < b; block++) {
        const int64_t first = block * BLOCK, count = std::min(BLOCK, n - first);
        decode(encoders[0], code_m + first, max_m[block], m, count);
        decode(encoders[1], code_v + first, max_v[block], v, count);
        update(s, at_p + first, g + first, m, v, count);
        if (low) round_to(at_p + first, low + first, count);
        max_m[block] = encode(encoders[0], m, code_m + first, count);
        max_v[block] = encode(encoders[1], v, code_v + first, count);
      }
    });
    return 0;
  });
}
