// Matrices of float32 become their transposes: by blocks of 16 x 16 in the registers of AVX-512, element by element elsewhere.
#pragma once
#include "loops.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define LF_AVX512 __attribute__((target("avx512f,avx512bw")))

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

// x [rows, columns] to [columns, rows], with `stride` and `to_stride` from row to row. For processors with AVX-512 alone.
LF_AVX512 static inline void transpose(const float* x, int64_t stride, int64_t rows, int64_t columns, float* to, int64_t to_stride) {
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
#else
static inline void transpose(const float* x, int64_t stride, int64_t rows, int64_t columns, float* to, int64_t to_stride) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) to[j * to_stride + i] = x[i * stride + j];
}
#endif
