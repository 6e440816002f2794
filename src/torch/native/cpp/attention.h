// What lies around the products of attention.cpp: packing, softmax and its derivative on blocks of transposed scores. It is
// included once for each kind of element T of the tensors and E of the products, in a namespace of its own: clones cannot be templates.
// E is T, or float where T is bf16. Right factors of bfloat16 have their rows in pairs.
static constexpr bool IN_PAIRS = sizeof(E) == 2;

// One head of one document: keys and values, the strides of rows of queries, keys, values and outputs.
struct Head {
  const T *k, *v;
  int64_t sq, sk, sv, so;
  int64_t len, width, values;
  float scale;
  bool causal;
};

// Memory of one thread.
struct Scratch {
  LineVector<float> scores, more, sums;
  LineVector<E> rows, pairs, qt, dt, qn, dn;
  Scratch(int64_t width, int64_t values)
      : scores(KEYS * QUERIES), more(KEYS * QUERIES), sums(std::max(width, values) * QUERIES), rows(KEYS * QUERIES),
        pairs(KEYS * QUERIES), qt(QUERIES * width), dt(QUERIES * values), qn(QUERIES * width + BEHIND), dn(QUERIES * values + BEHIND) {}
};

LF_CLONES static void copy_rows(const T* x, int64_t stride, int64_t n, int64_t width, E* to) {
  for (int64_t i = 0; i < n; i++) {
#pragma omp simd
    for (int64_t c = 0; c < width; c++) convert(to[i * width + c], x[i * stride + c]);
  }
}
// x [n, width] to [width, padded].
LF_CLONES static void transpose_rows(const T* x, int64_t stride, int64_t n, int64_t padded, int64_t width, E* to) {
  if (sizeof(T) == 4) return transpose(reinterpret_cast<const float*>(x), stride, n, width, reinterpret_cast<float*>(to), padded);
  for (int64_t i = 0; i < n; i += 16)
    for (int64_t c = 0; c < width; c++)
      for (int64_t j = i; j < std::min(n, i + 16); j++) convert(to[c * padded + j], x[j * stride + c]);
}
// x [n, width] to its transpose with rows in pairs: [width / 2, columns, 2], zero from n on.
LF_CLONES static void pair_columns(const T* x, int64_t stride, int64_t n, int64_t columns, int64_t width, E* to) {
  if (!IN_PAIRS) {
    for (int64_t c = 0; c < width; c++) std::fill(to + c * columns + n, to + (c + 1) * columns, E{});
    return transpose_rows(x, stride, n, columns, width, to);
  }
  for (int64_t c = 0; c < width; c += 2) {
    uint32_t* out = reinterpret_cast<uint32_t*>(to + c * columns);
    for (int64_t i = 0; i < n; i++) std::memcpy(out + i, x + i * stride + c, 4);
    for (int64_t i = n; i < columns; i++) out[i] = 0;
  }
}
// x [n, width] with rows in pairs: [padded / 2, width, 2], zero from n on.
LF_CLONES static void pair_rows(const T* x, int64_t stride, int64_t n, int64_t padded, int64_t width, E* to) {
  if (!IN_PAIRS) {
    std::fill(to + n * width, to + padded * width, E{});
    return copy_rows(x, stride, n, width, to);
  }
  for (int64_t i = 0; i < padded; i += 2) {
    const T *a = x + i * stride, *b = a + stride;
    uint32_t* out = reinterpret_cast<uint32_t*>(to + i * width);
    if (i + 1 < n) {
#pragma omp simd
      for (int64_t c = 0; c < width; c++) out[c] = bits16(a[c]) | bits16(b[c]) << 16;
    } else {
      for (int64_t c = 0; c < width; c++) out[c] = i < n ? bits16(a[c]) : 0;
    }
  }
}

// Columns (queries) from this one on see key `key`; none does from `columns` on.
static inline int64_t first_seeing(const Head& h, int64_t first, int64_t key, int64_t columns) {
  if (key >= h.len) return columns;
  return h.causal ? std::min(columns, std::max<int64_t>(0, key - first)) : 0;
}

// Scores become 2^(scale · score - maximum) with rows in pairs; sums and what was summed so far follow the maxima.
LF_CLONES static void soften(float* scores, E* pairs, float* maxima, float* totals, float* sums, int64_t columns,
                             int64_t first, int64_t key, int64_t num, const Head& h) {
  float tops[QUERIES], shrink[QUERIES];
  const float scale = h.scale * LOG2_E;
  std::copy_n(maxima, columns, tops);
  for (int64_t j = 0; j < num; j++) {
    float* row = scores + j * QUERIES;
    const int64_t from = first_seeing(h, first, key + j, columns);
    for (int64_t i = 0; i < from; i++) row[i] = -1e30f;
#pragma omp simd
    for (int64_t i = 0; i < columns; i++) {
      const float x = row[i] * scale;
      tops[i] = x > tops[i] ? x : tops[i];
    }
  }
#pragma omp simd
  for (int64_t i = 0; i < columns; i++) {
    shrink[i] = power_of_2(maxima[i] - tops[i], E{});
    totals[i] *= shrink[i];
    maxima[i] = tops[i];
  }
  for (int64_t j = 0; !IN_PAIRS && j < num; j++) {
    E* out = pairs + j * QUERIES;
#pragma omp simd
    for (int64_t i = 0; i < columns; i++) {
      const float p = power_of_2(scores[j * QUERIES + i] * scale - tops[i], E{});
      totals[i] += p;
      store(out[i], p);
    }
  }
  for (int64_t j = 0; IN_PAIRS && j < num; j += 2) {
    const float *a = scores + j * QUERIES, *b = a + QUERIES;
    uint32_t* out = reinterpret_cast<uint32_t*>(pairs + j * QUERIES);
#pragma omp simd
    for (int64_t i = 0; i < columns; i++) {
      const float p = power_of_2(a[i] * scale - tops[i], E{}), q = power_of_2(b[i] * scale - tops[i], E{});
      totals[i] += p + q;
      out[i] = round16(p) | round16(q) << 16;
    }
  }
  for (int64_t v = 0; v < h.values; v++) {
    float* sum = sums + v * QUERIES;
#pragma omp simd
    for (int64_t i = 0; i < columns; i++) sum[i] *= shrink[i];
  }
}

// sums [width, n] to out [n, width].
LF_CLONES static void transpose_out(const float* sums, T* out, int64_t stride, int64_t n, int64_t width) {
  if (sizeof(T) == 4) return transpose(sums, QUERIES, width, n, reinterpret_cast<float*>(out), stride);
  for (int64_t i = 0; i < n; i++)
    for (int64_t c = 0; c < width; c++) store(out[i * stride + c], sums[c * QUERIES + i]);
}
// out [n, values] = sums [values, n] / totals; sums change.
LF_CLONES static void finish(float* sums, const float* totals, T* out, int64_t n, const Head& h) {
  float by[QUERIES];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) by[i] = 1.0f / totals[i];
  for (int64_t v = 0; v < h.values; v++) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) sums[v * QUERIES + i] *= by[i];
  }
  transpose_out(sums, out, h.so, n, h.values);
}

// Each query's product of output and gradient.
LF_CLONES static void share(const T* out, const T* dout, int64_t stride, float* shares, int64_t n, int64_t values) {
  for (int64_t i = 0; i < n; i++) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t v = 0; v < values; v++) sum += load(out[i * stride + v]) * load(dout[i * stride + v]);
    shares[i] = sum;
  }
}
// Scores become probabilities, also as `rows`; `logs` are of the queries' sums, to base 2.
LF_CLONES static void probable(float* scores, const float* logs, E* rows, int64_t columns, int64_t first, int64_t key,
                               int64_t num, const Head& h) {
  const float scale = h.scale * LOG2_E;
  for (int64_t j = 0; j < num; j++) {
    float* row = scores + j * QUERIES;
    E* out = rows + j * QUERIES;
    const int64_t from = first_seeing(h, first, key + j, columns);
#pragma omp simd
    for (int64_t i = 0; i < columns; i++) {
      row[i] = power_of_2(row[i] * scale - logs[i], E{});
      store(out[i], row[i]);
    }
    for (int64_t i = 0; i < from; i++) row[i] = 0, out[i] = E{};
  }
}
// Gradients of scores from probabilities and their gradients: as they are and, of bfloat16, with rows in pairs.
LF_CLONES static void differentiate(const float* p, const float* dp, const float* shares, E* rows, E* pairs,
                                    int64_t columns, int64_t num, float scale) {
  for (int64_t j = 0; !IN_PAIRS && j < num; j++) {
    const int64_t at = j * QUERIES;
#pragma omp simd
    for (int64_t i = 0; i < columns; i++) store(rows[at + i], p[at + i] * (dp[at + i] - shares[i]) * scale);
  }
  for (int64_t j = 0; IN_PAIRS && j < num; j += 2) {
    const int64_t at = j * QUERIES;
    const float *pa = p + at, *pb = pa + QUERIES, *da = dp + at, *db = da + QUERIES;
    E *a = rows + at, *b = a + QUERIES;
    uint32_t* out = reinterpret_cast<uint32_t*>(pairs + at);
#pragma omp simd
    for (int64_t i = 0; i < columns; i++) {
      const uint32_t x = round16(pa[i] * (da[i] - shares[i]) * scale), y = round16(pb[i] * (db[i] - shares[i]) * scale);
      set16(a[i], x), set16(b[i], y), out[i] = x | y << 16;
    }
  }
}
LF_CLONES static void round_rows(const float* from, int64_t n, int64_t width, T* to, int64_t stride) {
  for (int64_t i = 0; i < n; i++) {
#pragma omp simd
    for (int64_t c = 0; c < width; c++) store(to[i * stride + c], from[i * width + c]);
  }
}
