// Products by the tiles of gemm.h, shared out to the threads.
#include "products.h"
#if defined(__x86_64__)
#include "common.h"
#include "gemm.h"
#include <atomic>
#include <memory>

// Most words that are packed at a time of each factor (8 MiB) and of each of its lines, and most words of the rows that a
// thread takes together (512 KiB): with a panel of columns they lie in a core's second cache.
static constexpr int64_t MOST_WORDS = 2 << 20, LINE_WORDS = 2048, ROW_WORDS = 1 << 17;

static int64_t panels_of(int64_t lines, int64_t width) { return (lines + width - 1) / width; }

static Lines lines_of(const at::Tensor& x, bool columns) {
  const int64_t line = columns ? x.stride(1) : x.stride(0), step = columns ? x.stride(0) : x.stride(1);
  return {static_cast<const char*>(x.const_data_ptr()), x.size(columns), x.size(!columns), line, step, x.scalar_type() == at::kBFloat16};
}

// Float32 is read in place, without packing, up to this stride in words and this many words in all: with a larger stride lines
// compete for the same sets of the cache, and more words touch too many pages.
static constexpr int64_t IN_PLACE_STRIDE = 512, IN_PLACE_WORDS = 1 << 19;

static bool is_compact(const Lines& x, int64_t stride, int64_t num) {
  return !x.bf16 && stride <= IN_PLACE_STRIDE && stride * num <= IN_PLACE_WORDS;
}

// A factor's panels of `width` lines: the first `in_place` are read in place, the others are packed with `row_words` words a row.
struct Panels {
  const Lines& lines;
  int64_t width, row_words, in_place = 0;
  bool as_rows = false; // all panels are in place, and their lines are rows
  std::unique_ptr<uint32_t[]> packed;

  Panels(const Lines& x, int64_t width, int64_t row_words, bool can_be_rows) : lines(x), width(width), row_words(row_words) {
    const int64_t panels = panels_of(x.lines, width), size = x.words() * row_words;
    as_rows = can_be_rows && x.step == 1 && is_compact(x, x.line, 1);
    in_place = as_rows ? panels : x.line == 1 && is_compact(x, x.step, x.inner) ? x.lines / width : 0;
    packed.reset(new uint32_t[(panels - in_place) * size]);
    lf_parallel_for(in_place, panels, std::max<int64_t>(1, (1 << 15) / size), [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; panel++)
        for (int64_t at = 0; at < row_words; at += 16)
          pack_16(x, panel * width + at, std::min<int64_t>(16, width), packed.get() + (panel - in_place) * size + at, row_words);
    });
  }
  Panel at(int64_t panel) const {
    const auto words = reinterpret_cast<const uint32_t*>(lines.data);
    if (panel < in_place) return {words + panel * width * lines.line, as_rows ? 0 : lines.step};
    return {packed.get() + (panel - in_place) * lines.words() * row_words, row_words};
  }
};

// A tile to its place: over what is there, or added to it.
LF_CLONES static void finish(const float* sums, float* to, int64_t stride, const float* bias, bool add, int64_t rows, int64_t columns) {
  for (int64_t row = 0; row < rows; row++, sums += TILE_COLUMNS, to += stride) {
    if (add) {
#pragma omp simd
      for (int64_t i = 0; i < columns; i++) to[i] += sums[i];
    } else if (bias) {
#pragma omp simd
      for (int64_t i = 0; i < columns; i++) to[i] = sums[i] + bias[i];
    } else {
      std::copy_n(sums, columns, to);
    }
  }
}

// Tasks of a product for each thread, which takes another as soon as it is done with one; and the words of a tile's lines
// that are worth waking a thread for.
static constexpr int64_t TASKS = 6, THREAD_WORDS = 1 << 10;

// `to`, rows `stride` apart, gets a · b with `bias`, or added where `add`.
static void multiply(const Lines& a, const Lines& b, float* to, int64_t stride, const float* bias, bool add) {
  const Panels left(a, TILE_ROWS, PACKED_ROWS, true), right(b, TILE_COLUMNS, TILE_COLUMNS, false);
  const int64_t words = a.words(), rows = panels_of(a.lines, TILE_ROWS), columns = panels_of(b.lines, TILE_COLUMNS);
  const int64_t threads = std::clamp<int64_t>(rows * columns * words / THREAD_WORDS, 1, at::get_num_threads());
  // Rows are shared out first, four tiles together at least, which read each panel of columns one after the other.
  const int64_t wanted = threads > 1 ? TASKS * threads : 1, fits = std::max<int64_t>(1, ROW_WORDS / (words * PACKED_ROWS));
  const int64_t blocks = std::max(panels_of(rows, fits), std::min(wanted, rows / 4));
  const int64_t shares = std::min(columns, panels_of(wanted, blocks)), tasks = blocks * shares;
  std::atomic<int64_t> next{0};
  lf_parallel_for(0, std::min(threads, tasks), 1, [&](int64_t, int64_t) {
    float sums[TILE_ROWS * TILE_COLUMNS];
    for (int64_t task = next++; task < tasks; task = next++) {
      const int64_t block = task / shares, share = task % shares, first = rows * block / blocks, end = rows * (block + 1) / blocks;
      for (int64_t column = columns * share / shares; column < columns * (share + 1) / shares; column++)
        for (int64_t row = first; row < end; row++) {
          const int64_t i = row * TILE_ROWS, j = column * TILE_COLUMNS, height = std::min(TILE_ROWS, a.lines - i);
          // What is added to comes from memory meanwhile.
          for (int64_t line = 0; add && line < height; line++)
            for (int64_t at = 0; at < TILE_COLUMNS; at += 16) __builtin_prefetch(to + (i + line) * stride + j + at, 1);
          const Panel x = left.at(row), y = right.at(column);
          if (a.bf16) tile<true, false>(words, x, 0, height, y, sums);
          else if (left.as_rows) tile<false, true>(words, x, a.line, height, y, sums);
          else tile<false, false>(words, x, 0, height, y, sums);
          finish(sums, to + i * stride + j, stride, bias ? bias + j : nullptr, add, height, std::min(TILE_COLUMNS, b.lines - j));
        }
    }
  });
}

bool can_tile() {
  static const bool can =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512bf16");
  return can;
}

bool is_faster_tiled() {
  // On other processors with AVX-512 MKL uses it; on AMD's it takes its kernels for AVX2.
  static const bool faster = can_tile() && __builtin_cpu_is("amd");
  return faster;
}

void tiled_product(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, bool add) {
  if (lf_is_dry) return;
  const auto with_lines = [](const at::Tensor& x) { return x.stride(0) == 1 || x.stride(1) == 1 ? x : x.contiguous(); };
  const auto left = with_lines(a), right = with_lines(b), shift = bias.defined() ? bias.contiguous() : bias;
  const Lines x = lines_of(left, false), z = lines_of(right, true);
  if (x.inner == 0 && !add) shift.defined() ? y.copy_(shift) : y.zero_();
  if (x.inner == 0 || y.numel() == 0) return;
  float* to = y.mutable_data_ptr<float>();
  const float* by = shift.defined() ? shift.const_data_ptr<float>() : nullptr;
  const int64_t stride = y.stride(0), inner = (x.bf16 ? 2 : 1) * LINE_WORDS, words = std::min(x.words(), LINE_WORDS);
  const int64_t rows = MOST_WORDS / (words * PACKED_ROWS) * TILE_ROWS, columns = MOST_WORDS / (words * TILE_COLUMNS) * TILE_COLUMNS;
  for (int64_t i = 0; i < x.lines; i += rows)
    for (int64_t j = 0; j < z.lines; j += columns)
      for (int64_t k = 0; k < x.inner; k += inner)
        multiply(x.part(i, rows, k, inner), z.part(j, columns, k, inner), to + i * stride + j, stride, by && k == 0 ? by + j : nullptr, add || k > 0);
}
#else
bool can_tile() { return false; }
bool is_faster_tiled() { return false; }
void tiled_product(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool) {
  TORCH_CHECK(false, "tiled products are for x86-64");
}
#endif
