// Attention by blocks, with the products of attention.cpp; included as attention.h is.
// Keys and values of one document and head, as products want them; rows up to the next multiple are zero.
struct Keys {
  int64_t len, padded;
  LineVector<E> k, kt, v, vt; // [S, C], [C, S], [S, V], [V, S]
  Keys(const Head& h, bool backward) : len(h.len), padded(round_up(h.len)) {
    k.resize(padded * h.width);
    copy_rows(h.k, h.sk, len, h.width, k.data());
    if (backward) {
      kt.resize(padded * h.width), v.resize(padded * h.values);
      transpose_rows(h.k, h.sk, len, padded, h.width, kt.data());
      copy_rows(h.v, h.sv, len, h.values, v.data());
    } else {
      vt.resize(padded * h.values);
      transpose_rows(h.v, h.sv, len, padded, h.values, vt.data());
    }
  }
};

// Outputs of a block of queries, and the logarithms, to base 2, of their sums of exponentials.
static void forward_block(const Head& h, const Keys& keys, const T* q, T* out, float* lse, int64_t first, Scratch& s) {
  const int64_t n = std::min(QUERIES, h.len - first), columns = round_up(n);
  const int64_t end = h.causal ? round_up(first + n) : keys.padded;
  pair_columns(q + first * h.sq, h.sq, n, columns, h.width, s.qt.data());
  float maxima[QUERIES], totals[QUERIES];
  std::fill_n(maxima, QUERIES, -1e30f);
  std::fill_n(totals, QUERIES, 0.0f);
  std::fill_n(s.sums.data(), h.values * QUERIES, 0.0f);
  for (int64_t key = 0; key < end; key += KEYS) {
    const int64_t num = std::min(KEYS, end - key);
    product(num, columns, h.width, keys.k.data() + key * h.width, h.width, s.qt.data(), columns, s.scores.data(), QUERIES, false);
    soften(s.scores.data(), s.pairs.data(), maxima, totals, s.sums.data(), columns, first, key, num, h);
    product(h.values, columns, num, keys.vt.data() + key, keys.padded, s.pairs.data(), QUERIES, s.sums.data(), QUERIES, true);
  }
  finish(s.sums.data(), totals, out + first * h.so, n, h);
  for (int64_t i = 0; i < n; i++) lse[first + i] = maxima[i] + std::log2(totals[i]);
}

// Gradients of one head of queries; those of its keys [S, C] and values [S, V] are added.
static void backward_head(const Head& h, const Keys& keys, const T* q, const T* out, const T* dout, const float* lse,
                          T* dq, int64_t sdq, float* dk, float* dv, Scratch& s) {
  float shares[QUERIES], logs[QUERIES];
  for (int64_t first = 0; first < h.len; first += QUERIES) {
    const int64_t n = std::min(QUERIES, h.len - first), columns = round_up(n);
    const int64_t end = h.causal ? round_up(first + n) : keys.padded;
    const T *qi = q + first * h.sq, *di = dout + first * h.so;
    pair_columns(qi, h.sq, n, columns, h.width, s.qt.data());
    pair_columns(di, h.so, n, columns, h.values, s.dt.data());
    pair_rows(qi, h.sq, n, columns, h.width, s.qn.data());
    pair_rows(di, h.so, n, columns, h.values, s.dn.data());
    share(out + first * h.so, di, h.so, shares, n, h.values);
    std::copy_n(lse + first, n, logs);
    std::fill(shares + n, shares + QUERIES, 0.0f);
    std::fill(logs + n, logs + QUERIES, 1e30f); // no probability
    for (int64_t key = 0; key < end; key += KEYS) {
      const int64_t num = std::min(KEYS, end - key);
      product(num, columns, h.width, keys.k.data() + key * h.width, h.width, s.qt.data(), columns, s.scores.data(), QUERIES, false);
      probable(s.scores.data(), logs, s.rows.data(), columns, first, key, num, h);
      product(num, h.values, columns, s.rows.data(), QUERIES, s.dn.data(), h.values, dv + key * h.values, h.values, true);
      product(num, columns, h.values, keys.v.data() + key * h.values, h.values, s.dt.data(), columns, s.more.data(), QUERIES, false);
      differentiate(s.scores.data(), s.more.data(), shares, s.rows.data(), s.pairs.data(), columns, num, h.scale);
      product(num, h.width, columns, s.rows.data(), QUERIES, s.qn.data(), h.width, dk + key * h.width, h.width, true);
      product(h.width, columns, num, keys.kt.data() + key, keys.padded, (IN_PAIRS ? s.pairs : s.rows).data(), QUERIES, s.sums.data(), QUERIES, key > 0);
    }
    transpose_out(s.sums.data(), dq + first * sdq, sdq, n, h.width);
  }
}

// Calls `body` with every task and a thread's memory, each thread with the next one when it is done with another.
template <typename F> static void for_each(const std::vector<Task>& tasks, int64_t width, int64_t values, F body) {
  std::atomic<size_t> next{0};
  lf_parallel_for(0, std::min<int64_t>(at::get_num_threads(), tasks.size()), 1, [&](int64_t, int64_t) {
    Scratch scratch(width, values);
    for (size_t i; (i = next++) < tasks.size();) body(tasks[i], scratch);
    at::native::cpublas::brgemm_release();
  });
}

static const T* data(const Tensor& t) { return static_cast<const T*>(t.const_data_ptr()); }
static T* changing(const Tensor& t) { return static_cast<T*>(t.mutable_data_ptr()); }
static Tensor rows_together(const Tensor& x) { return x.stride(2) == 1 ? x : x.contiguous(); }

// q [T, H, C], k [T, K, C], v [T, K, V] to [T, H, V]; documents end at `ends`.
struct Attention : torch::autograd::Function<Attention> {
  static Head head_of(const Task& task, const Tensor& q, const Tensor& k, const Tensor& v, double scale, bool causal) {
    return {data(k) + task.start * k.stride(0) + task.head * k.stride(1), data(v) + task.start * v.stride(0) + task.head * v.stride(1),
            q.stride(0), k.stride(0), v.stride(0), q.size(1) * v.size(2), task.len, q.size(2), v.size(2), static_cast<float>(scale), causal};
  }
  static Tensor forward(AutogradContext* ctx, Tensor q, Tensor k, Tensor v, std::vector<int64_t> ends, bool causal, double scale) {
    q = rows_together(q), k = rows_together(k), v = rows_together(v);
    const int64_t tokens = q.size(0), heads = q.size(1), group = heads / k.size(1), values = v.size(2);
    auto y = at::empty({tokens, heads, values}, q.options());
    auto lse = at::empty({heads, tokens}, q.options().dtype(at::kFloat));
    T* out = changing(y);
    float* logs = lse.mutable_data_ptr<float>();
    for_each(tasks_of(ends, k.size(1)), q.size(2), values, [&](const Task& task, Scratch& scratch) {
      const auto h = head_of(task, q, k, v, scale, causal);
      const Keys keys(h, false);
      for (int64_t head = task.head * group; head < (task.head + 1) * group; head++)
        for (int64_t first = 0; first < task.len; first += QUERIES)
          forward_block(h, keys, data(q) + task.start * h.sq + head * q.stride(1), out + task.start * h.so + head * values,
                        logs + head * tokens + task.start, first, scratch);
    });
    ctx->save_for_backward({q, k, v, y, lse});
    ctx->saved_data["ends"] = std::move(ends);
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["scale"] = scale;
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &y = saved[3], dy = grads[0].contiguous();
    const int64_t tokens = q.size(0), group = q.size(1) / k.size(1), width = q.size(2), values = v.size(2);
    auto dq = at::empty(q.sizes(), q.options()), dk = at::empty(k.sizes(), k.options()), dv = at::empty(v.sizes(), v.options());
    const float* logs = saved[4].const_data_ptr<float>();
    T *to_q = changing(dq), *to_k = changing(dk), *to_v = changing(dv);
    const double scale = ctx->saved_data["scale"].toDouble();
    const bool causal = ctx->saved_data["causal"].toBool();
    for_each(tasks_of(ctx->saved_data["ends"].toIntVector(), k.size(1)), width, values, [&](const Task& task, Scratch& scratch) {
      const auto h = head_of(task, q, k, v, scale, causal);
      const Keys keys(h, true);
      LineVector<float> sum_k(keys.padded * width), sum_v(keys.padded * values);
      for (int64_t head = task.head * group; head < (task.head + 1) * group; head++) {
        const int64_t at = task.start * h.so + head * values;
        backward_head(h, keys, data(q) + task.start * h.sq + head * q.stride(1), data(y) + at, data(dy) + at, logs + head * tokens + task.start,
                      to_q + task.start * dq.stride(0) + head * width, dq.stride(0), sum_k.data(), sum_v.data(), scratch);
      }
      round_rows(sum_k.data(), task.len, width, to_k + task.start * dk.stride(0) + task.head * width, dk.stride(0));
      round_rows(sum_v.data(), task.len, values, to_v + task.start * dv.stride(0) + task.head * values, dv.stride(0));
    });
    return {dq, dk, dv, Tensor(), Tensor(), Tensor()};
  }
};

