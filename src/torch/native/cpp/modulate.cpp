// Modulation of rows by segments, on the CPU in float32 arithmetic, one pass each way: tokens of one segment share a row of a
// table. Tables' gradients are summed in blocks of a fixed number of tokens, so the number of threads does not change a bit.
// And rows of two streams that become those of one, and the way back.
#include "common.h"
#include "loops.h"
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <vector>

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

static constexpr int64_t BLOCK = 64; // tokens

// Tokens of one segment and the row of the table that they share.
struct Block {
  int64_t begin, end, row;
};
static std::vector<Block> blocks_of(const std::vector<int64_t>& lens, const std::vector<int64_t>& rows) {
  std::vector<Block> blocks;
  int64_t start = 0;
  for (size_t i = 0; i < lens.size(); i++) {
    for (int64_t at = 0; at < lens[i]; at += BLOCK) blocks.push_back({start + at, start + std::min(lens[i], at + BLOCK), rows[i]});
    start += lens[i];
  }
  return blocks;
}

// `stats` gets the mean and the inverse deviation of each token; `scratch` has the width of a row.
LF_BODY void modulate_forward(const T* x, const float* shift, const float* scale, float* stats, T* y, float* scratch,
                              int64_t width, float eps, int64_t num) {
  for (int64_t token = 0; token < num; token++, x += width, y += width, stats += 2) {
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) {
      scratch[i] = load(x[i]);
      sum += scratch[i];
    }
    const float mean = sum / width;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < width; i++) {
      const float d = scratch[i] - mean;
      squares += d * d;
    }
    const float by = 1.0f / std::sqrt(squares / width + eps);
    stats[0] = mean, stats[1] = by;
#pragma omp simd
    for (int64_t i = 0; i < width; i++) store(y[i], (scratch[i] - mean) * by * (1.0f + scale[i]) + shift[i]);
  }
}
// Adds the table's gradients of these tokens.
LF_BODY void modulate_backward(const T* x, const float* scale, const float* stats, const T* dy, T* dx, float* dshift,
                               float* dscale, float* scratch, int64_t width, int64_t num) {
  for (int64_t token = 0; token < num; token++, x += width, dy += width, dx += width, stats += 2) {
    const float mean = stats[0], by = stats[1];
    float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t i = 0; i < width; i++) {
      const float normed = (load(x[i]) - mean) * by, d = load(dy[i]), g = d * (1.0f + scale[i]);
      dshift[i] += d;
      dscale[i] += d * normed;
      scratch[i] = g;
      sum += g;
      dot += g * normed;
    }
    const float a = sum / width, b = dot / width;
#pragma omp simd
    for (int64_t i = 0; i < width; i++) store(dx[i], by * (scratch[i] - a - (load(x[i]) - mean) * by * b));
  }
}
LF_BODY void gate_forward(const T* x, const float* gate, T* y, int64_t width, int64_t num) {
  for (int64_t token = 0; token < num; token++, x += width, y += width) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) store(y[i], load(x[i]) * gate[i]);
  }
}
LF_BODY void gate_backward(const T* x, const float* gate, const T* dy, T* dx, float* dgate, int64_t width, int64_t num) {
  for (int64_t token = 0; token < num; token++, x += width, dy += width, dx += width) {
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
      const float d = load(dy[i]);
      dgate[i] += d * load(x[i]);
      store(dx[i], d * gate[i]);
    }
  }
}
#define MODULATE(T)                                                                                                    \
  LF_CLONES static void modulated(const T* x, const float* shift, const float* scale, float* stats, T* y, float* scratch, \
                                  int64_t width, float eps, int64_t num) {                                             \
    modulate_forward(x, shift, scale, stats, y, scratch, width, eps, num);                                             \
  }                                                                                                                    \
  LF_CLONES static void modulated_back(const T* x, const float* scale, const float* stats, const T* dy, T* dx, float* dshift, \
                                       float* dscale, float* scratch, int64_t width, int64_t num) {                    \
    modulate_backward(x, scale, stats, dy, dx, dshift, dscale, scratch, width, num);                                   \
  }                                                                                                                    \
  LF_CLONES static void gated(const T* x, const float* gate, T* y, int64_t width, int64_t num) {                       \
    gate_forward(x, gate, y, width, num);                                                                              \
  }                                                                                                                    \
  LF_CLONES static void gated_back(const T* x, const float* gate, const T* dy, T* dx, float* dgate, int64_t width, int64_t num) { \
    gate_backward(x, gate, dy, dx, dgate, width, num);                                                                 \
  }
MODULATE(float)
MODULATE(bf16)

template <typename T> static const T* data(const Tensor& t) { return static_cast<const T*>(t.const_data_ptr()); }
template <typename T> static T* changing(const Tensor& t) { return static_cast<T*>(t.mutable_data_ptr()); }
// Calls `body` with a value of the tensor's kind of memory.
template <typename F> static void by_kind(const Tensor& x, F body) { x.scalar_type() == at::kBFloat16 ? body(bf16()) : body(float()); }

// `body` with every block, by all threads.
template <typename F> static void for_each(const std::vector<Block>& blocks, int64_t width, const F& body) {
  const int64_t grain = std::max<int64_t>(1, 131072 / BLOCK / std::max<int64_t>(1, width));
  lf_parallel_for(0, blocks.size(), grain, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) body(blocks[i], i);
  });
}
// Adds what blocks summed, `wide` values each, to their rows of `table`, which are `stride` apart.
static void add_up(const std::vector<Block>& blocks, const Tensor& partial, int64_t wide, float* table, int64_t stride) {
  if (lf_is_dry) return;
  const float* from = partial.const_data_ptr<float>();
  for (const Block& block : blocks) {
    float* to = table + block.row * stride;
    for (int64_t i = 0; i < wide; i++) to[i] += from[i];
    from += wide;
  }
}

// The layer norm of x [T, D] without weights, times one plus row `first + 1` of table [R, N, D], plus row `first`.
struct Modulate : torch::autograd::Function<Modulate> {
  static Tensor forward(AutogradContext* ctx, Tensor x, Tensor table, std::vector<int64_t> lens, std::vector<int64_t> rows,
                        int64_t first, double eps) {
    x = x.contiguous(), table = table.contiguous();
    const int64_t width = x.size(1), stride = table.stride(0);
    auto y = at::empty(x.sizes(), x.options()), stats = at::empty({x.size(0), 2}, x.options().dtype(at::kFloat));
    const float* shift = table.const_data_ptr<float>() + first * width;
    float* kept = stats.mutable_data_ptr<float>();
    by_kind(x, [&](auto kind) {
      using T = decltype(kind);
      const T* in = data<T>(x);
      T* out = changing<T>(y);
      for_each(blocks_of(lens, rows), width, [&](const Block& block, int64_t) {
        std::vector<float> scratch(width);
        const float* of = shift + block.row * stride;
        modulated(in + block.begin * width, of, of + width, kept + 2 * block.begin, out + block.begin * width, scratch.data(), width,
                  static_cast<float>(eps), block.end - block.begin);
      });
    });
    ctx->save_for_backward({x, table, stats});
    ctx->saved_data["lens"] = std::move(lens);
    ctx->saved_data["rows"] = std::move(rows);
    ctx->saved_data["first"] = first;
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &table = saved[1], &stats = saved[2], dy = grads[0].contiguous();
    const int64_t width = x.size(1), stride = table.stride(0), first = ctx->saved_data["first"].toInt();
    const auto blocks = blocks_of(ctx->saved_data["lens"].toIntVector(), ctx->saved_data["rows"].toIntVector());
    auto dx = at::empty(x.sizes(), x.options()), dtable = at::zeros(table.sizes(), table.options());
    auto partial = at::zeros({static_cast<int64_t>(blocks.size()), 2 * width}, table.options());
    const float *scale = table.const_data_ptr<float>() + (first + 1) * width, *kept = stats.const_data_ptr<float>();
    float* sums = partial.mutable_data_ptr<float>();
    by_kind(x, [&](auto kind) {
      using T = decltype(kind);
      const T *in = data<T>(x), *d = data<T>(dy);
      T* out = changing<T>(dx);
      for_each(blocks, width, [&](const Block& block, int64_t at) {
        std::vector<float> scratch(width);
        const int64_t begin = block.begin * width;
        float* sum = sums + 2 * at * width;
        modulated_back(in + begin, scale + block.row * stride, kept + 2 * block.begin, d + begin, out + begin, sum, sum + width,
                       scratch.data(), width, block.end - block.begin);
      });
    });
    add_up(blocks, partial, 2 * width, dtable.mutable_data_ptr<float>() + first * width, stride);
    return {dx, dtable, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// x [T, D] times row `first` of table [R, N, D].
struct Gate : torch::autograd::Function<Gate> {
  static Tensor forward(AutogradContext* ctx, Tensor x, Tensor table, std::vector<int64_t> lens, std::vector<int64_t> rows, int64_t first) {
    x = x.contiguous(), table = table.contiguous();
    const int64_t width = x.size(1), stride = table.stride(0);
    auto y = at::empty(x.sizes(), x.options());
    const float* gate = table.const_data_ptr<float>() + first * width;
    by_kind(x, [&](auto kind) {
      using T = decltype(kind);
      const T* in = data<T>(x);
      T* out = changing<T>(y);
      for_each(blocks_of(lens, rows), width, [&](const Block& block, int64_t) {
        gated(in + block.begin * width, gate + block.row * stride, out + block.begin * width, width, block.end - block.begin);
      });
    });
    ctx->save_for_backward({x, table});
    ctx->saved_data["lens"] = std::move(lens);
    ctx->saved_data["rows"] = std::move(rows);
    ctx->saved_data["first"] = first;
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &table = saved[1], dy = grads[0].contiguous();
    const int64_t width = x.size(1), stride = table.stride(0), first = ctx->saved_data["first"].toInt();
    const auto blocks = blocks_of(ctx->saved_data["lens"].toIntVector(), ctx->saved_data["rows"].toIntVector());
    auto dx = at::empty(x.sizes(), x.options()), dtable = at::zeros(table.sizes(), table.options());
    auto partial = at::zeros({static_cast<int64_t>(blocks.size()), width}, table.options());
    const float* gate = table.const_data_ptr<float>() + first * width;
    float* sums = partial.mutable_data_ptr<float>();
    by_kind(x, [&](auto kind) {
      using T = decltype(kind);
      const T *in = data<T>(x), *d = data<T>(dy);
      T* out = changing<T>(dx);
      for_each(blocks, width, [&](const Block& block, int64_t at) {
        const int64_t begin = block.begin * width;
        gated_back(in + begin, gate + block.row * stride, d + begin, out + begin, sums + at * width, width, block.end - block.begin);
      });
    });
    add_up(blocks, partial, width, dtable.mutable_data_ptr<float>() + first * width, stride);
    return {dx, dtable, Tensor(), Tensor(), Tensor()};
  }
};

// Row i of `both` belongs to row order[i] of a and, behind its rows, of b. The bytes of a row go from `both` to the two, or back.
static void move_rows(const Tensor& both, const Tensor& a, const Tensor& b, const Tensor& order, bool back) {
  const int64_t num = both.size(0), rows_of_a = a.size(0), bytes = num > 0 ? both.nbytes() / num : 0;
  const int64_t* at = order.const_data_ptr<int64_t>();
  if (lf_is_dry) return;
  for (int64_t i = 0; i < num; i++) TORCH_CHECK(at[i] >= 0 && at[i] < num, "row ", at[i], " of ", num);
  char *all = changing<char>(both), *of_a = changing<char>(a), *of_b = changing<char>(b);
  lf_parallel_for(0, num, std::max<int64_t>(1, 262144 / std::max<int64_t>(1, bytes)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      char* part = at[i] < rows_of_a ? of_a + at[i] * bytes : of_b + (at[i] - rows_of_a) * bytes;
      back ? std::memcpy(part, all + i * bytes, bytes) : std::memcpy(all + i * bytes, part, bytes);
    }
  });
}
static std::vector<int64_t> with_rows(const Tensor& x, int64_t rows) {
  auto sizes = x.sizes().vec();
  sizes[0] = rows;
  return sizes;
}

struct Join : torch::autograd::Function<Join> {
  static Tensor forward(AutogradContext* ctx, Tensor a, Tensor b, Tensor order) {
    a = a.contiguous(), b = b.contiguous();
    auto both = at::empty(with_rows(a, order.size(0)), a.options());
    move_rows(both, a, b, order, false);
    ctx->save_for_backward({order});
    ctx->saved_data["rows"] = a.size(0);
    return both;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto order = ctx->get_saved_variables()[0];
    const auto both = grads[0].contiguous();
    const int64_t rows = ctx->saved_data["rows"].toInt();
    auto a = at::empty(with_rows(both, rows), both.options()), b = at::empty(with_rows(both, both.size(0) - rows), both.options());
    move_rows(both, a, b, order, true);
    return {a, b, Tensor()};
  }
};

struct Split : torch::autograd::Function<Split> {
  static variable_list forward(AutogradContext* ctx, Tensor both, Tensor order, int64_t rows) {
    both = both.contiguous();
    auto a = at::empty(with_rows(both, rows), both.options()), b = at::empty(with_rows(both, both.size(0) - rows), both.options());
    move_rows(both, a, b, order, true);
    ctx->save_for_backward({order});
    return {a, b};
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto order = ctx->get_saved_variables()[0];
    const auto a = grads[0].contiguous(), b = grads[1].contiguous();
    auto both = at::empty(with_rows(a, order.size(0)), a.options());
    move_rows(both, a, b, order, false);
    return {both, Tensor(), Tensor()};
  }
};

static std::vector<int64_t> listed(const int64_t* of, int64_t num) { return std::vector<int64_t>(of, of + num); }

// x [T, D], float32 or bfloat16, table [R, N, D], float32, both on the CPU; `num` segments of `lens` tokens, T in all, with
// `rows` below R; first + 1 below N. Null on failure.
LF_API void* lf_modulate(Tensor* x, Tensor* table, const int64_t* lens, const int64_t* rows, int64_t num, int64_t first, double eps) {
  LF_RECORD("modulate");
  return lf_guard<void*>(nullptr, [&] { return new Tensor(Modulate::apply(*x, *table, listed(lens, num), listed(rows, num), first, eps)); });
}
// As lf_modulate; first below N. Null on failure.
LF_API void* lf_gate(Tensor* x, Tensor* table, const int64_t* lens, const int64_t* rows, int64_t num, int64_t first) {
  LF_RECORD("gate");
  return lf_guard<void*>(nullptr, [&] { return new Tensor(Gate::apply(*x, *table, listed(lens, num), listed(rows, num), first)); });
}
// Rows of a and b, of one kind and width on the CPU, in an order that has each of them once: [A + B], int64. Null on failure.
LF_API void* lf_join_rows(Tensor* a, Tensor* b, Tensor* order) {
  return lf_guard<void*>(nullptr, [&] { return new Tensor(Join::apply(*a, *b, *order)); });
}
// The way back, with the first `rows` of the order's rows in the first of two outputs. Negative on failure.
LF_API int lf_split_rows(Tensor* both, Tensor* order, int64_t rows, Tensor** outputs) {
  return lf_guard(-1, [&] {
    const auto found = Split::apply(*both, *order, rows);
    outputs[0] = new Tensor(found[0]), outputs[1] = new Tensor(found[1]);
    return 0;
  });
}
