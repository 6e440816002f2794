// Matrices of 4 and 8 bits a number, on the CPU, as bitsandbytes defines them: NF4 in blocks of a row with a largest magnitude
// each (Dettmers et al. 2023, QLoRA), and int8 in rows (Dettmers et al. 2022, LLM.int8).
#include "common.h"
#include "loops.h"

using at::Tensor;

static constexpr int64_t BLOCK = 64;

// The quantiles of a normal distribution, from -1 to 1, with an exact zero.
static constexpr float NF4[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f,
    -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
    0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};

// The two numbers of a byte, of which the first is in the upper half.
struct Pairs {
  float of[256][2];
  Pairs() {
    for (int i = 0; i < 256; i++) of[i][0] = NF4[i >> 4], of[i][1] = NF4[i & 15];
  }
};
static const Pairs PAIRS;

// The largest magnitude; NaN where one of them is.
static inline __attribute__((always_inline)) float largest(const float* x, int64_t n) {
  float found = 0;
  bool bad = false;
  for (int64_t i = 0; i < n; i++) {
    const float size = std::fabs(x[i]);
    found = size > found ? size : found;
    bad |= size != size;
  }
  return bad ? NAN : found;
}

LF_CLONES static void row_to_nf4(const float* in, uint8_t* packed, float* maxima, int64_t width) {
  for (int64_t first = 0; first < width; first += BLOCK) {
    const int64_t n = std::min(BLOCK, width - first);
    const float most = largest(in + first, n), inverse = 1.0f / std::max(most, 1e-38f);
    maxima[first / BLOCK] = most;
    int32_t codes[BLOCK + 1];
    // A half byte that is no number's.
    codes[n] = 0;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
      const float x = in[first + i] * inverse;
      int32_t code = 0;
      for (int k = 0; k < 15; k++) code += x > (NF4[k] + NF4[k + 1]) / 2.0f;
      codes[i] = code;
    }
    for (int64_t i = 0; i < n; i += 2) packed[(first + i) / 2] = static_cast<uint8_t>(codes[i] << 4 | codes[i + 1]);
  }
}

LF_BODY void row_from_nf4(const uint8_t* packed, const float* maxima, T* out, int64_t width) {
  for (int64_t first = 0; first < width; first += BLOCK) {
    const int64_t n = std::min(BLOCK, width - first);
    const float scale = maxima[first / BLOCK];
    float values[BLOCK];
    for (int64_t i = 0; i < n; i += 2) std::memcpy(values + i, PAIRS.of[packed[(first + i) / 2]], 8);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) store(out[first + i], values[i] * scale);
  }
}

LF_CLONES static void row_from_nf4_float(const uint8_t* packed, const float* maxima, float* out, int64_t width) {
  row_from_nf4(packed, maxima, out, width);
}
LF_CLONES static void row_from_nf4_bf16(const uint8_t* packed, const float* maxima, bf16* out, int64_t width) {
  row_from_nf4(packed, maxima, out, width);
}

// A row without a number but zero has zeros.
LF_CLONES static void row_to_int8(const float* in, float most, int8_t* out, int64_t width) {
  const float factor = most > 0 ? 127.0f / most : 0.0f;
#pragma omp simd
  for (int64_t i = 0; i < width; i++) {
    float x = std::nearbyint(in[i] * factor);
    x = x > 127.0f ? 127.0f : x < -127.0f ? -127.0f : x;
    out[i] = static_cast<int8_t>(static_cast<int32_t>(x));
  }
}

LF_BODY void row_from_int8(const int8_t* in, float most, T* out, int64_t width) {
#pragma omp simd
  for (int64_t i = 0; i < width; i++) store(out[i], static_cast<float>(in[i]) * most * 0.007874015718698502f);
}

LF_CLONES static void row_from_int8_float(const int8_t* in, float most, float* out, int64_t width) {
  row_from_int8(in, most, out, width);
}
LF_CLONES static void row_from_int8_bf16(const int8_t* in, float most, bf16* out, int64_t width) {
  row_from_int8(in, most, out, width);
}

// So many rows that a thread has something to do.
static int64_t grain(int64_t width) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, width)); }

// `values` [rows, width], float32, to `packed` [rows, (width + 1) / 2] and `maxima` [rows, (width + 63) / 64]; all contiguous.
LF_API int lf_to_nf4(Tensor* values, Tensor* packed, Tensor* maxima) {
  return lf_guard(-1, [&] {
    const int64_t rows = values->size(0), width = values->size(1), bytes = packed->size(1), blocks = maxima->size(1);
    const float* in = values->const_data_ptr<float>();
    uint8_t* out = packed->mutable_data_ptr<uint8_t>();
    float* most = maxima->mutable_data_ptr<float>();
    lf_parallel_for(0, rows, grain(width), [&](int64_t a, int64_t b) {
      for (int64_t i = a; i < b; i++) row_to_nf4(in + i * width, out + i * bytes, most + i * blocks, width);
    });
    return 0;
  });
}

// The way back, to `out` [rows, width], float32 or bfloat16: products in float32, rounded once.
LF_API int lf_from_nf4(Tensor* packed, Tensor* maxima, Tensor* out) {
  return lf_guard(-1, [&] {
    const int64_t rows = out->size(0), width = out->size(1), bytes = packed->size(1), blocks = maxima->size(1);
    const uint8_t* in = packed->const_data_ptr<uint8_t>();
    const float* most = maxima->const_data_ptr<float>();
    void* to = out->mutable_data_ptr();
    const bool is_float = out->scalar_type() == at::kFloat;
    lf_parallel_for(0, rows, grain(width), [&](int64_t a, int64_t b) {
      for (int64_t i = a; i < b; i++) {
        if (is_float) row_from_nf4_float(in + i * bytes, most + i * blocks, static_cast<float*>(to) + i * width, width);
        else row_from_nf4_bf16(in + i * bytes, most + i * blocks, static_cast<bf16*>(to) + i * width, width);
      }
    });
    return 0;
  });
}

// `values` [rows, width], float32, of which `maxima` [rows] are the largest magnitudes, to `out`, int8 of the same shape.
LF_API int lf_to_int8(Tensor* values, Tensor* maxima, Tensor* out) {
  return lf_guard(-1, [&] {
    const int64_t rows = values->size(0), width = values->size(1);
    const float *in = values->const_data_ptr<float>(), *most = maxima->const_data_ptr<float>();
    int8_t* to = out->mutable_data_ptr<int8_t>();
    lf_parallel_for(0, rows, grain(width), [&](int64_t a, int64_t b) {
      for (int64_t i = a; i < b; i++) row_to_int8(in + i * width, most[i], to + i * width, width);
    });
    return 0;
  });
}

// The way back, to `out` [rows, width], float32 or bfloat16: products in float32, rounded once.
LF_API int lf_from_int8(Tensor* values, Tensor* maxima, Tensor* out) {
  return lf_guard(-1, [&] {
    const int64_t rows = out->size(0), width = out->size(1);
    const int8_t* in = values->const_data_ptr<int8_t>();
    const float* most = maxima->const_data_ptr<float>();
    void* to = out->mutable_data_ptr();
    const bool is_float = out->scalar_type() == at::kFloat;
    lf_parallel_for(0, rows, grain(width), [&](int64_t a, int64_t b) {
      for (int64_t i = a; i < b; i++) {
        if (is_float) row_from_int8_float(in + i * width, most[i], static_cast<float*>(to) + i * width, width);
        else row_from_int8_bf16(in + i * width, most[i], static_cast<bf16*>(to) + i * width, width);
      }
    });
    return 0;
  });
}
