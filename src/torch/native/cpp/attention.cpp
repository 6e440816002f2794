// Attention over packed documents on CPUs: blocks of transposed scores by oneDNN's small products, or by tiles of AVX2, softmax over a running
// maximum (Milakov and Gimelshein 2018), scores computed again in the backward (Dao et al. 2022). Each document attends to
// itself; a task is one document and one head of keys, so the number of threads does not change a bit. Scores lie
// transposed, keys by queries: what belongs to a query runs along the vector registers.
#include "common.h"
#include "loops.h"
#include "products.h"
#include "transpose.h"
#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <atomic>
#include <torch/csrc/autograd/custom_function.h>
#include <vector>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// c [m, n] (+)= a [m, k] · b, whose rows lie in pairs if bfloat16.
static void product(int64_t m, int64_t n, int64_t k, const bf16* a, int64_t lda, const bf16* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, reinterpret_cast<const at::BFloat16*>(a), reinterpret_cast<const at::BFloat16*>(b), c);
}
static void product(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, bool add) {
  if (has_avx512_bf16()) return at::native::cpublas::brgemm(m, n, k, lda, ldb, ldc, add, a, b, c);
  small_product(m, n, k, a, lda, b, ldb, c, ldc, add);
}

// Queries and keys of a block of scores, in multiples of what products take best: a thread's blocks lie in its core's second cache.
static constexpr int64_t QUERIES = 128, KEYS = 256;
// Elements that small_product may read behind a right factor.
static constexpr int64_t BEHIND = 8;
static constexpr float LOG2_E = 1.44269504f;
static inline int64_t round_up(int64_t n) {
  const int64_t to = has_avx512_bf16() ? 32 : 8;
  return (n + to - 1) / to * to;
}

// Bits of the nearest bfloat16; not for NaN.
static inline __attribute__((always_inline)) uint32_t round16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
static inline __attribute__((always_inline)) uint32_t bits16(bf16 x) { return x.bits; }
static inline __attribute__((always_inline)) void set16(bf16& to, uint32_t bits) { to.bits = static_cast<uint16_t>(bits); }
// float32 has no pairs.
static inline uint32_t bits16(float) { return 0; }
static inline void set16(float&, uint32_t) {}

// 2^x for x up to 126: to 3e-6 for what is stored in eight bits, to the last bits for float32.
static inline __attribute__((always_inline)) float top_terms(float, bf16) { return 1.33335581e-3f; }
static inline __attribute__((always_inline)) float top_terms(float f, float) { return (1.52527338e-5f * f + 1.54035304e-4f) * f + 1.33335581e-3f; }
template <typename E> static inline __attribute__((always_inline)) float power_of_2(float x, E kind) {
  x = x < -126.0f ? -126.0f : x;
  const float n = std::nearbyint(x), f = x - n;
  float p = top_terms(f, kind);
  p = p * f + 9.61812911e-3f;
  p = p * f + 5.55041087e-2f;
  p = p * f + 2.40226507e-1f;
  p = p * f + 6.93147181e-1f;
  p = p * f + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &p, 4);
  bits += static_cast<int32_t>(n) << 23;
  std::memcpy(&p, &bits, 4);
  return p;
}

// A document and a head of keys.
struct Task {
  int64_t start, len, head;
};
// Every document with every head of keys, the longest first.
static std::vector<Task> tasks_of(const std::vector<int64_t>& ends, int64_t heads) {
  std::vector<Task> tasks;
  for (size_t d = 0; d + 1 < ends.size(); d++)
    for (int64_t head = 0; head < heads && ends[d + 1] > ends[d]; head++) tasks.push_back({ends[d], ends[d + 1] - ends[d], head});
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.len > b.len; });
  return tasks;
}

static inline __attribute__((always_inline)) void convert(float& to, float x) { to = x; }
static inline __attribute__((always_inline)) void convert(bf16& to, bf16 x) { to = x; }
static inline __attribute__((always_inline)) void convert(float& to, bf16 x) { to = load(x); }

namespace of_bf16 {
using T = bf16;
using E = bf16;
#include "attention.h"
#include "attention_blocks.h"
}
// On processors without products of bfloat16.
namespace of_bf16_by_float {
using T = bf16;
using E = float;
#include "attention.h"
#include "attention_blocks.h"
}
namespace of_float {
using T = float;
using E = float;
#include "attention.h"
#include "attention_blocks.h"
}

// Whether this CPU has what makes lf_attention faster than libtorch's: of bfloat16 products by AMX; else where tiles are used.
LF_API bool lf_can_attend(bool is_bf16) {
  static const bool has_amx = at::native::cpublas::could_pack(at::kBFloat16);
  return (is_bf16 && has_amx) || is_tiled(is_bf16);
}
// q [T, H, C], k [T, K, C] and v [T, K, V], of one kind on the CPU, C and V of bfloat16 even, H a multiple of K; `ends` [num_ends] from 0
// to T. [T, H, V]. Null on failure.
LF_API void* lf_attention(Tensor* q, Tensor* k, Tensor* v, const int64_t* ends, int64_t num_ends, bool causal, double scale) {
  LF_RECORD("attention");
  return lf_guard<void*>(nullptr, [&] {
    std::vector<int64_t> documents(ends, ends + num_ends);
    if (q->scalar_type() == at::kFloat) return new Tensor(of_float::Attention::apply(*q, *k, *v, std::move(documents), causal, scale));
    if (!has_avx512_bf16()) return new Tensor(of_bf16_by_float::Attention::apply(*q, *k, *v, std::move(documents), causal, scale));
    return new Tensor(of_bf16::Attention::apply(*q, *k, *v, std::move(documents), causal, scale));
  });
}
