// Which products of matrices this thread computes by the tiles of gemm.h.
#pragma once
#include <ATen/core/Tensor.h>

// Whether this processor has what tiles need: AVX-512 with products of bfloat16.
bool can_tile();
// Whether tiles are faster here than libtorch, for float32 and for products of bfloat16 that are added into it.
bool is_faster_tiled();
// Whether this thread uses tiles for products of bfloat16 or of float32: as lf_set_tiled says, else where they are faster.
bool is_tiled(bool bf16);
// y [M, N] = a [M, K] · b [K, N] + bias [N] (undefined: none), or y += a · b where `add`: on the CPU, a and b both float32
// or both bfloat16, bias and y float32, the rows of y contiguous.
void tiled_product(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, bool add);
