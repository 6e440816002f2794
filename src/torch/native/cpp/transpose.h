// Matrices of float32 become their transposes: by blocks of 16 x 16 in the registers of AVX-512, of 8 x 8 in those of AVX2, element by
// element elsewhere.
#pragma once
#include "loops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define LF_AVX512 __attribute__((target("avx512f,avx512bw")))
#define LF_AVX2 __attribute__((target("avx2,fma")))

// Rows of 16 words become columns.
LF_AVX512 static inline __attribute__((always_inline)) void transpose_16(__m512i* r) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

static inline uint32_t first_bits(int64_t n) { return n >= 32 ? ~0u : n <= 0 ? 0u : (1u << n) - 1; }

LF_AVX512 static inline void transpose_512(const float* x, int64_t stride, int64_t rows, int64_t columns, float* to, int64_t to_stride) {
  for (int64_t i = 0; i < rows; i += 16)
    for (int64_t j = 0; j < columns; j += 16) {
      const auto loaded = static_cast<__mmask16>(first_bits(columns - j)), stored = static_cast<__mmask16>(first_bits(rows - i));
      __m512i block[16];
#pragma GCC unroll 16
      for (int64_t at = 0; at < 16; at++)
        block[at] = i + at < rows ? _mm512_maskz_loadu_epi32(loaded, x + (i + at) * stride + j) : _mm512_setzero_si512();
      transpose_16(block);
#pragma GCC unroll 16
      for (int64_t at = 0; at < 16; at++)
        if (j + at < columns) _mm512_mask_storeu_epi32(to + (j + at) * to_stride + i, stored, block[at]);
    }
}

// Rows of 8 words become columns.
LF_AVX2 static inline __attribute__((always_inline)) void transpose_8(__m256* r) {
  __m256 t[8], u[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// The mask of the first `n` of 8 words.
LF_AVX2 static inline __attribute__((always_inline)) __m256i first_lanes(int64_t n) {
  static const int32_t on[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(on + 8 - std::clamp<int64_t>(n, 0, 8)));
}

LF_AVX2 static inline void transpose_256(const float* x, int64_t stride, int64_t rows, int64_t columns, float* to, int64_t to_stride) {
  for (int64_t i = 0; i < rows; i += 8)
    for (int64_t j = 0; j < columns; j += 8) {
      const __m256i loaded = first_lanes(columns - j), stored = first_lanes(rows - i);
      __m256 block[8];
#pragma GCC unroll 8
      for (int64_t at = 0; at < 8; at++)
        block[at] = i + at < rows ? _mm256_maskload_ps(x + (i + at) * stride + j, loaded) : _mm256_setzero_ps();
      transpose_8(block);
#pragma GCC unroll 8
      for (int64_t at = 0; at < 8; at++)
        if (j + at < columns) _mm256_maskstore_ps(to + (j + at) * to_stride + i, stored, block[at]);
    }
}

static inline bool has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  return has;
}
static inline bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}
#else
static inline bool has_avx512() { return false; }
static inline bool has_avx2() { return false; }
#endif

// x [rows, columns] to [columns, rows], with `stride` and `to_stride` from row to row.
static inline void transpose(const float* x, int64_t stride, int64_t rows, int64_t columns, float* to, int64_t to_stride) {
#if defined(__x86_64__)
  if (has_avx512()) return transpose_512(x, stride, rows, columns, to, to_stride);
  if (has_avx2()) return transpose_256(x, stride, rows, columns, to, to_stride);
#endif
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) to[j * to_stride + i] = x[i * stride + j];
}
