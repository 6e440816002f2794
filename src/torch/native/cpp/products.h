// Which products of matrices this thread computes by the tiles of gemm.h.
#pragma once
#include <ATen/core/Tensor.h>

// Whether this processor has products of bfloat16: where it does, tiles and oneDNN use them; where not, tiles are of AVX2.
bool has_avx512_bf16();
// Whether this processor has what tiles need.
bool can_tile();
// Whether tiles are faster here than libtorch, for float32 and for products of bfloat16 that are added into it.
bool is_faster_tiled();
// Whether this thread uses tiles for products of bfloat16 or of float32: as lf_set_tiled says, else where they are faster.
bool is_tiled(bool bf16);
// y [M, N] = a [M, K] · b [K, N] + bias [N] (undefined: none), or y += a · b where `add`: on the CPU, a and b both float32
// or both bfloat16, bias and y float32, the rows of y contiguous.
void tiled_product(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, bool add);
// c [m, n] = a [m, k] · b [k, n], or c += a · b where `add`, by AVX2 on this thread; lda, ldb and ldc are from row to row. Up to 7 elements
// behind b are read.
void small_product(int64_t m, int64_t n, int64_t k, const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, bool add);
