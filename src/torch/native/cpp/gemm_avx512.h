// What gemm_threads.h shares out, by AVX-512 with products of bfloat16.
#define LF_GEMM __attribute__((target("avx512f,avx512bw,avx512bf16")))
// Elements of a register, elements of bfloat16 in a word, and rows and columns of a tile: 28 sums in registers. A packed row of 14 words
// takes the room of 16.
static constexpr int64_t LANES = 16, BF16_IN_WORD = 2, TILE_ROWS = 14, TILE_COLUMNS = 32, PACKED_ROWS = 16;
static constexpr int64_t IN_PLACE_STRIDE = 512;
static int64_t words_of(const Lines& x) { return x.bf16 ? (x.inner + 1) / 2 : x.inner; }

// `width` lines, at most 16, from `first` on to 16 of the `stride` words of every row of [words, stride]; what is missing
// is zero.
LF_GEMM static void pack_lanes(const Lines& x, int64_t first, int64_t width, uint32_t* to, int64_t stride) {
  const int64_t num = std::min(width, x.lines - first);
  if (x.step == 1) {
    const int64_t halves = x.bf16 ? x.inner : 2 * x.inner;
    for (int64_t word = 0; word < words_of(x); word += 16) {
      const uint32_t some = first_bits(halves - 2 * word);
      __m512i rows[16];
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; i++)
        rows[i] = i < num ? _mm512_maskz_loadu_epi16(some, x.data + (first + i) * x.line * x.size() + 4 * word) : _mm512_setzero_si512();
      transpose_16(rows);
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; i++)
        if (word + i < words_of(x)) _mm512_storeu_si512(to + (word + i) * stride, rows[i]);
    }
    return;
  }
  const __mmask16 some = first_bits(num);
  for (int64_t word = 0; word < words_of(x); word++, to += stride) {
    if (!x.bf16) {
      _mm512_storeu_si512(to, _mm512_maskz_loadu_epi32(some, x.data + (word * x.step + first) * 4));
      continue;
    }
    const char* even = x.data + (2 * word * x.step + first) * 2;
    const auto low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(_mm512_maskz_loadu_epi16(some, even)));
    const __mmask16 has_odd = 2 * word + 1 < x.inner ? some : 0;
    const auto high = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(_mm512_maskz_loadu_epi16(has_odd, even + 2 * x.step)));
    _mm512_storeu_si512(to, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
}

// 16 sums of a row, the first `some` of them.
LF_GEMM static inline __attribute__((always_inline)) void put_lanes(const Place& place, float* to, int64_t column, __mmask16 some, __m512 sums) {
  if (place.add) sums = _mm512_add_ps(_mm512_maskz_loadu_ps(some, to + column), sums);
  else if (place.bias) sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(some, place.bias + column));
  _mm512_mask_storeu_ps(to + column, some, sums);
}

// a, HEIGHT lines of `words` words of which `place.height` count, times b, 16 · WIDTH lines. Where ROWS, a's lines are `a_line` words
// apart.
template <bool BF16, bool ROWS, int HEIGHT, int WIDTH>
LF_GEMM static void tile(int64_t words, Panel a, int64_t a_line, Panel b, const Place& place) {
  __m512 s[HEIGHT][WIDTH];
#pragma GCC unroll 14
  for (int i = 0; i < HEIGHT; i++)
#pragma GCC unroll 2
    for (int j = 0; j < WIDTH; j++) s[i][j] = _mm512_setzero_ps();
  const uint32_t* rows[HEIGHT];
  // Lines behind the last one repeat it.
#pragma GCC unroll 14
  for (int64_t i = 0; i < HEIGHT; i++) rows[i] = a.words + (ROWS ? std::min<int64_t>(i, place.height - 1) * a_line : i);
  for (int64_t word = 0; word < words; word++, a.words += a.step, b.words += b.step) {
    __m512i right[WIDTH];
#pragma GCC unroll 2
    for (int j = 0; j < WIDTH; j++) right[j] = _mm512_loadu_si512(b.words + 16 * j);
#pragma GCC unroll 14
    for (int i = 0; i < HEIGHT; i++) {
      const __m512i left = _mm512_set1_epi32(static_cast<int>(ROWS ? rows[i][word] : a.words[i]));
#pragma GCC unroll 2
      for (int j = 0; j < WIDTH; j++) {
        if (BF16) s[i][j] = _mm512_dpbf16_ps(s[i][j], reinterpret_cast<__m512bh>(left), reinterpret_cast<__m512bh>(right[j]));
        else s[i][j] = _mm512_fmadd_ps(_mm512_castsi512_ps(left), _mm512_castsi512_ps(right[j]), s[i][j]);
      }
    }
  }
  float* to = place.to;
#pragma GCC unroll 14
  for (int i = 0; i < HEIGHT; i++, to += place.stride) {
    if (i >= place.height) break;
#pragma GCC unroll 2
    for (int j = 0; j < WIDTH; j++) put_lanes(place, to, 16 * j, static_cast<__mmask16>(first_bits(place.columns - 16 * j)), s[i][j]);
  }
}

// At most 14 rows of a times at most 16 · WIDTH columns of b.
template <bool BF16, bool ROWS, int WIDTH> LF_GEMM static void tile_of_width(int64_t words, Panel a, int64_t a_line, Panel b, const Place& place) {
  if (place.height == 1) tile<BF16, ROWS, 1, WIDTH>(words, a, a_line, b, place);
  else if (place.height <= 4) tile<BF16, ROWS, 4, WIDTH>(words, a, a_line, b, place);
  else if (place.height <= 8) tile<BF16, ROWS, 8, WIDTH>(words, a, a_line, b, place);
  else tile<BF16, ROWS, TILE_ROWS, WIDTH>(words, a, a_line, b, place);
}

// sums[j] += x · y[j], for `num` columns.
LF_GEMM static inline __attribute__((always_inline)) void add_scaled(float x, const float* y, int64_t num, float* sums) {
  const __m512 by = _mm512_set1_ps(x);
  for (int64_t j = 0; j < num; j += 16) {
    const __m512 some = _mm512_maskz_loadu_ps(first_bits(num - j), y + j);
    _mm512_storeu_ps(sums + j, _mm512_fmadd_ps(by, some, _mm512_loadu_ps(sums + j)));
  }
}
LF_GEMM static void put_row(const Place& place, const float* sums) {
  for (int64_t j = 0; j < place.columns; j += 16)
    put_lanes(place, place.to, j, static_cast<__mmask16>(first_bits(place.columns - j)), _mm512_loadu_ps(sums + j));
}
