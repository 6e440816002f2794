// Products by the tiles of gemm.h, of whichever instructions the processor has.
#include "products.h"
#if defined(__x86_64__)
#include "common.h"
#include "gemm.h"
#include <atomic>
#include <memory>
#include <thread>
#include <unistd.h>

// Words of a core's second cache; more than any has where the system does not tell.
static int64_t second_cache_words() {
#ifdef _SC_LEVEL2_CACHE_SIZE
  static const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#else
  constexpr int64_t bytes = 0;
#endif
  return bytes > 0 ? bytes / 4 : int64_t{1} << 40;
}

struct DeleteAtLine {
  void operator()(uint32_t* at) const { delete_at_line(at); }
};
using Words = std::unique_ptr<uint32_t[], DeleteAtLine>;
// So many words, which hold anything.
static Words new_words(int64_t num) { return Words(static_cast<uint32_t*>(new_at_line(num * sizeof(uint32_t)))); }

static int64_t panels_of(int64_t lines, int64_t width) { return (lines + width - 1) / width; }

static Lines lines_of(const at::Tensor& x, bool columns) {
  const int64_t line = columns ? x.stride(1) : x.stride(0), step = columns ? x.stride(0) : x.stride(1);
  return {static_cast<const char*>(x.const_data_ptr()), x.size(columns), x.size(!columns), line, step, x.scalar_type() == at::kBFloat16};
}

namespace avx512 {
#include "gemm_avx512.h"
#include "gemm_threads.h"
}
namespace avx2 {
#include "gemm_avx2.h"
#include "gemm_threads.h"
}

bool has_avx512_bf16() {
  static const bool has =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512bf16");
  return has;
}

bool can_tile() { return has_avx512_bf16() || has_avx2(); }

bool is_faster_tiled() {
  // On other processors with AVX-512 MKL uses it; on AMD's it takes its kernels for AVX2. Without AVX-512 libtorch has no fast products
  // of bfloat16, and its attention of float32 is slower.
  static const bool faster = has_avx512_bf16() ? __builtin_cpu_is("amd") : has_avx2() && !__builtin_cpu_supports("avx512f");
  return faster;
}

void tiled_product(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, bool add) {
  if (lf_is_dry) return;
  const auto with_lines = [](const at::Tensor& x) { return x.stride(0) == 1 || x.stride(1) == 1 ? x : x.contiguous(); };
  const auto left = with_lines(a), right = with_lines(b), shift = bias.defined() ? bias.contiguous() : bias;
  const Lines x = lines_of(left, false), z = lines_of(right, true);
  if (x.inner == 0 && !add) shift.defined() ? y.copy_(shift) : y.zero_();
  if (x.inner == 0 || y.numel() == 0) return;
  (has_avx512_bf16() ? avx512::multiply_blocks : avx2::multiply_blocks)(x, z, y, shift, add);
}

void small_product(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  avx2::multiply_small(m, n, k, a, lda, b, ldb, c, ldc, add);
}
#else
bool can_tile() { return false; }
bool is_faster_tiled() { return false; }
bool has_avx512_bf16() { return false; }
void tiled_product(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool) {
  TORCH_CHECK(false, "tiled products are for x86-64");
}
void small_product(int64_t, int64_t, int64_t, const float*, int64_t, const float*, int64_t, float*, int64_t, bool) {
  TORCH_CHECK(false, "tiled products are for x86-64");
}
#endif
