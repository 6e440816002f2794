// Products of matrices by AVX-512 or AVX2, of float32 or of bfloat16 summed in float32. Every element is one sum in the order of
// the inner dimension, so its bits depend neither on the number of threads nor on how many rows there are beside it.
//
// A matrix is packed in words of four bytes. AVX-512 has products of pairs of bfloat16: a word is a float32 or a pair of neighboring
// inner indices, and both kinds take the same way and differ in one instruction. For AVX2 every element becomes a float32.
#pragma once
#include "transpose.h"

// A matrix as its lines, rows of a left and columns of a right factor: `inner` elements each, `line` and `step` elements
// apart. One of the two is 1.
struct Lines {
  const char* data;
  int64_t lines, inner, line, step;
  bool bf16;
  int64_t size() const { return bf16 ? 2 : 4; }
  // `num_lines` lines from `first` on, and of them `num` elements from `begin` on, an even number if bfloat16.
  Lines part(int64_t first, int64_t num_lines, int64_t begin, int64_t num) const {
    return {data + (first * line + begin * step) * size(), std::min(num_lines, lines - first), std::min(num, inner - begin), line, step, bf16};
  }
};

// A panel of lines, where it lies: word i of line j is words[i * step + j], or, of rows as they are, rows[j][i].
struct Panel {
  const uint32_t* words;
  int64_t step;
};

// Where a tile goes: `height` rows of `columns` numbers, `stride` apart, over what is there, with `bias` of the columns (null: none), or
// added to it.
struct Place {
  float* to;
  int64_t stride, height, columns;
  const float* bias;
  bool add;
};
