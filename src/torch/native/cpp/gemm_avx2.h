// What gemm_threads.h shares out, by AVX2 with fused multiply-add. Words are float32: bfloat16 becomes it as it is packed. In float32 the
// sums are those of gemm_avx512.h, bit for bit.
#define LF_GEMM LF_AVX2
// Elements of a register, elements of bfloat16 in a word, and rows and columns of a tile: 12 sums in registers. A packed row of 6 words
// takes the room of 8.
static constexpr int64_t LANES = 8, BF16_IN_WORD = 1, TILE_ROWS = 6, TILE_COLUMNS = 16, PACKED_ROWS = 8;
static constexpr int64_t IN_PLACE_STRIDE = 128;
static int64_t words_of(const Lines& x) { return x.inner; }

// `num` elements, at most 8, from x on as float32; what is missing is zero.
LF_AVX2 static inline __attribute__((always_inline)) __m256 load_8(const char* x, bool is_bf16, int64_t num) {
  if (!is_bf16) return num >= 8 ? _mm256_loadu_ps(reinterpret_cast<const float*>(x)) : _mm256_maskload_ps(reinterpret_cast<const float*>(x), first_lanes(num));
  uint16_t some[8] = {};
  if (num >= 8) std::memcpy(some, x, 16);
  else if (num > 0) std::memcpy(some, x, 2 * num);
  const auto halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(some));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

// `width` lines, at most 8, from `first` on to 8 of the `stride` words of every row of [words, stride]; what is missing is zero.
LF_AVX2 static void pack_lanes(const Lines& x, int64_t first, int64_t width, uint32_t* to, int64_t stride) {
  const int64_t num = std::min(width, x.lines - first);
  float* out = reinterpret_cast<float*>(to);
  if (x.step == 1) {
    for (int64_t word = 0; word < x.inner; word += 8) {
      __m256 rows[8];
#pragma GCC unroll 8
      for (int64_t i = 0; i < 8; i++)
        rows[i] = i < num ? load_8(x.data + ((first + i) * x.line + word) * x.size(), x.bf16, x.inner - word) : _mm256_setzero_ps();
      transpose_8(rows);
#pragma GCC unroll 8
      for (int64_t i = 0; i < 8; i++)
        if (word + i < x.inner) _mm256_storeu_ps(out + (word + i) * stride, rows[i]);
    }
    return;
  }
  for (int64_t word = 0; word < x.inner; word++, out += stride) _mm256_storeu_ps(out, load_8(x.data + (word * x.step + first) * x.size(), x.bf16, num));
}

// 8 sums of a row, the first `some` of them.
LF_AVX2 static inline __attribute__((always_inline)) void put_lanes(const Place& place, float* to, int64_t column, int64_t some, __m256 sums) {
  to += column;
  if (some >= 8) {
    if (place.add) sums = _mm256_add_ps(_mm256_loadu_ps(to), sums);
    else if (place.bias) sums = _mm256_add_ps(sums, _mm256_loadu_ps(place.bias + column));
    return _mm256_storeu_ps(to, sums);
  }
  const __m256i mask = first_lanes(some);
  if (place.add) sums = _mm256_add_ps(_mm256_maskload_ps(to, mask), sums);
  else if (place.bias) sums = _mm256_add_ps(sums, _mm256_maskload_ps(place.bias + column, mask));
  _mm256_maskstore_ps(to, mask, sums);
}

// a, HEIGHT lines of `words` words of which `place.height` count, times b, 8 · WIDTH lines. Where ROWS, a's lines are `a_line` words
// apart. Both kinds are float32 by now.
template <bool BF16, bool ROWS, int HEIGHT, int WIDTH>
LF_AVX2 static void tile(int64_t words, Panel a, int64_t a_line, Panel b, const Place& place) {
  __m256 s[HEIGHT][WIDTH];
#pragma GCC unroll 6
  for (int i = 0; i < HEIGHT; i++)
#pragma GCC unroll 2
    for (int j = 0; j < WIDTH; j++) s[i][j] = _mm256_setzero_ps();
  const float *left[HEIGHT], *right = reinterpret_cast<const float*>(b.words);
  // Lines behind the last one repeat it.
#pragma GCC unroll 6
  for (int64_t i = 0; i < HEIGHT; i++) left[i] = reinterpret_cast<const float*>(a.words) + (ROWS ? std::min<int64_t>(i, place.height - 1) * a_line : i);
  const int64_t step = ROWS ? 1 : a.step;
  for (int64_t word = 0, at = 0; word < words; word++, at += step, right += b.step) {
    __m256 y[WIDTH];
#pragma GCC unroll 2
    for (int j = 0; j < WIDTH; j++) y[j] = _mm256_loadu_ps(right + 8 * j);
#pragma GCC unroll 6
    for (int i = 0; i < HEIGHT; i++) {
      const __m256 x = _mm256_broadcast_ss(ROWS ? left[i] + at : left[0] + at + i);
#pragma GCC unroll 2
      for (int j = 0; j < WIDTH; j++) s[i][j] = _mm256_fmadd_ps(x, y[j], s[i][j]);
    }
  }
  float* to = place.to;
#pragma GCC unroll 6
  for (int i = 0; i < HEIGHT; i++, to += place.stride) {
    if (i >= place.height) break;
#pragma GCC unroll 2
    for (int j = 0; j < WIDTH; j++) put_lanes(place, to, 8 * j, place.columns - 8 * j, s[i][j]);
  }
}

// At most 6 rows of a times at most 8 · WIDTH columns of b.
template <bool BF16, bool ROWS, int WIDTH> LF_AVX2 static void tile_of_width(int64_t words, Panel a, int64_t a_line, Panel b, const Place& place) {
  if (place.height == 1) tile<BF16, ROWS, 1, WIDTH>(words, a, a_line, b, place);
  else if (place.height <= 3) tile<BF16, ROWS, 3, WIDTH>(words, a, a_line, b, place);
  else tile<BF16, ROWS, TILE_ROWS, WIDTH>(words, a, a_line, b, place);
}

// sums[j] += x · y[j], for `num` columns.
LF_AVX2 static inline __attribute__((always_inline)) void add_scaled(float x, const float* y, int64_t num, float* sums) {
  const __m256 by = _mm256_set1_ps(x);
  for (int64_t j = 0; j < num; j += 8) {
    const __m256 some = num - j >= 8 ? _mm256_loadu_ps(y + j) : _mm256_maskload_ps(y + j, first_lanes(num - j));
    _mm256_storeu_ps(sums + j, _mm256_fmadd_ps(by, some, _mm256_loadu_ps(sums + j)));
  }
}
LF_AVX2 static void put_row(const Place& place, const float* sums) {
  for (int64_t j = 0; j < place.columns; j += 8) put_lanes(place, place.to, j, place.columns - j, _mm256_loadu_ps(sums + j));
}

// c [m, n] = a [m, k] · b [k, n], or added, on this thread. Up to 7 words behind a row of b are read.
static void multiply_small(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  const auto words = [](const float* x) { return reinterpret_cast<const uint32_t*>(x); };
  for (int64_t j = 0; j < n; j += TILE_COLUMNS)
    for (int64_t i = 0; i < m; i += TILE_ROWS) {
      const Place place{c + i * ldc + j, ldc, std::min(TILE_ROWS, m - i), std::min(TILE_COLUMNS, n - j), nullptr, add};
      if (n - j <= LANES) tile_of_width<false, true, 1>(k, {words(a + i * lda), 0}, lda, {words(b + j), ldb}, place);
      else tile_of_width<false, true, 2>(k, {words(a + i * lda), 0}, lda, {words(b + j), ldb}, place);
    }
}
