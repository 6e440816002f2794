// This shares products by tiles out to the threads. It is included once for each set of instructions, in a namespace of its own, after
// the header that defines their constants and `words_of`, `pack_lanes`, `tile_of_width`, `add_scaled` and `put_row`.

// Words that are packed at a time of each factor (8 MiB, of rows up to half more), most words of each of its lines, and most words of
// the rows that a thread takes together (512 KiB).
static constexpr int64_t MOST_WORDS = 2 << 20, LINE_WORDS = 2048, ROW_WORDS = 1 << 17;

// Float32 is read in place, without packing, up to a stride of IN_PLACE_STRIDE words and this many words in all: with a larger stride
// lines compete for the same sets of the cache, and more words touch too many pages.
static constexpr int64_t IN_PLACE_WORDS = 1 << 19;

static bool is_compact(const Lines& x, int64_t stride, int64_t num) {
  return !x.bf16 && stride <= IN_PLACE_STRIDE && stride * num <= IN_PLACE_WORDS;
}

// A factor's panels of `width` lines: the first `in_place` are read in place, the others are packed with `row_words` words a row,
// all ahead, or, where `late`, each when it is asked for.
struct Panels {
  const Lines& lines;
  int64_t width, row_words, in_place = 0;
  bool as_rows = false; // all panels are in place, and their lines are rows
  bool late;
  Words packed;

  Panels(const Lines& x, int64_t width, int64_t row_words, bool can_be_rows, bool late)
      : lines(x), width(width), row_words(row_words), late(late) {
    const int64_t panels = panels_of(x.lines, width);
    as_rows = can_be_rows && x.step == 1 && is_compact(x, x.line, 1);
    in_place = as_rows ? panels : x.line == 1 && is_compact(x, x.step, x.inner) ? x.lines / width : 0;
    if (!late) packed = new_words(num_ahead() * size());
  }
  // Words of a packed panel.
  int64_t size() const { return words_of(lines) * row_words; }
  void pack(int64_t panel, uint32_t* to) const {
    for (int64_t at = 0; at < row_words; at += LANES) pack_lanes(lines, panel * width + at, std::min(LANES, width), to + at, row_words);
  }
  // Panels that are packed ahead; and one of them.
  int64_t num_ahead() const { return late ? 0 : panels_of(lines.lines, width) - in_place; }
  void pack_ahead(int64_t which) const { pack(in_place + which, packed.get() + which * size()); }
  // `room`, of `size` words, takes the panel where it is packed late.
  Panel at(int64_t panel, uint32_t* room) const {
    const auto words = reinterpret_cast<const uint32_t*>(lines.data);
    if (panel < in_place) return {words + panel * width * lines.line, as_rows ? 0 : lines.step};
    if (late) pack(panel, room);
    return {late ? room : packed.get() + (panel - in_place) * size(), row_words};
  }
};

// What is packed ahead of both factors, by the threads of the product itself: those that sleep are woken once for packing and product, and
// those that are awake begin without them.
struct Packing {
  const Panels &left, &right;
  std::atomic<int64_t> next{0}, done{0};

  Packing(const Panels& left, const Panels& right) : left(left), right(right) {}
  // Packs what no other thread has begun, and returns when all is packed.
  void finish() {
    const int64_t of_left = left.num_ahead(), all = of_left + right.num_ahead();
    for (int64_t panel = next++; panel < all; panel = next++) {
      if (panel < of_left) left.pack_ahead(panel);
      else right.pack_ahead(panel - of_left);
      done++;
    }
    while (done < all) std::this_thread::yield();
  }
};

// Tasks of a product for each thread, which takes another as soon as it is done with one; and the words of a tile's lines
// that are worth waking a thread for.
static constexpr int64_t TASKS = 6, THREAD_WORDS = 1 << 10;

// Blocks of rows, each of which a thread takes together: as many as are wanted, of four tiles at least. Of more there are as many as it
// takes for a block's rows, the panel of columns that they are multiplied by and the next one to lie in a core's second cache, of which an
// eighth is left to the sums. Where not even two tiles do, to read more panels would cost more than to read the rows from the third cache.
// Of one block no more are made: its panels of columns need not go to memory and back.
static int64_t blocks_of(int64_t rows, int64_t words, int64_t wanted) {
  const int64_t most = std::max<int64_t>(1, ROW_WORDS / (words * PACKED_ROWS));
  const int64_t blocks = std::max(panels_of(rows, most), std::min(wanted, rows / 4));
  const int64_t fits = (second_cache_words() / 8 * 7 / words - 2 * TILE_COLUMNS) / PACKED_ROWS;
  return blocks == 1 || fits < 2 ? blocks : std::max(blocks, panels_of(rows, fits));
}

template <bool BF16, bool ROWS> static void tile_of(int64_t words, Panel a, int64_t a_line, Panel b, const Place& place) {
  if (place.columns <= LANES) tile_of_width<BF16, ROWS, 1>(words, a, a_line, b, place);
  else tile_of_width<BF16, ROWS, 2>(words, a, a_line, b, place);
}

// Most rows, and columns of a thread at a time, of products that read a right factor's rows as they lie: a tile would read a
// little of each, from as many pages as there are rows.
static constexpr int64_t FEW_ROWS = 4, FEW_COLUMNS = 512;

// Adds a · b to sums [FEW_ROWS, FEW_COLUMNS], for `num` columns of b from `first` on. The sums are those of tiles, bit for bit.
LF_GEMM static void add_few_rows(const Lines& a, const Lines& b, int64_t first, int64_t num, float* sums) {
  const auto left = reinterpret_cast<const float*>(a.data), right = reinterpret_cast<const float*>(b.data);
  for (int64_t k = 0; k < b.inner; k++)
    for (int64_t i = 0; i < a.lines; i++) add_scaled(left[i * a.line + k * a.step], right + k * b.step + first, num, sums + i * FEW_COLUMNS);
}

static void multiply_few_rows(const Lines& a, const Lines& b, float* to, int64_t stride, const float* bias, bool add) {
  const int64_t blocks = panels_of(b.lines, FEW_COLUMNS), words = a.lines * FEW_COLUMNS * b.inner;
  lf_parallel_for(0, blocks, std::max<int64_t>(1, (1 << 15) / words), [&](int64_t begin, int64_t end) {
    float sums[FEW_ROWS * FEW_COLUMNS];
    for (int64_t block = begin; block < end; block++) {
      const int64_t first = block * FEW_COLUMNS, num = std::min(FEW_COLUMNS, b.lines - first);
      std::fill_n(sums, FEW_ROWS * FEW_COLUMNS, 0.0f);
      add_few_rows(a, b, first, num, sums);
      for (int64_t i = 0; i < a.lines; i++)
        put_row({to + i * stride + first, stride, 1, num, bias ? bias + first : nullptr, add}, sums + i * FEW_COLUMNS);
    }
  });
}

// `to`, rows `stride` apart, gets a · b with `bias`, or added where `add`.
static void multiply(const Lines& a, const Lines& b, float* to, int64_t stride, const float* bias, bool add) {
  if (a.lines <= FEW_ROWS && !a.bf16 && b.line == 1 && b.step != 1) return multiply_few_rows(a, b, to, stride, bias, add);
  const int64_t words = words_of(a), rows = panels_of(a.lines, TILE_ROWS), columns = panels_of(b.lines, TILE_COLUMNS);
  const int64_t threads = std::clamp<int64_t>(rows * columns * words / THREAD_WORDS, 1, at::get_num_threads());
  // Rows are shared out first, in blocks, which read each panel of columns one after the other.
  const int64_t wanted = threads > 1 ? TASKS * threads : 1, blocks = blocks_of(rows, words, wanted);
  const int64_t shares = std::min(columns, panels_of(wanted, blocks)), tasks = blocks * shares;
  // Where all rows are one block each panel of columns is read once, and need not go to memory and back.
  const Panels left(a, TILE_ROWS, PACKED_ROWS, true, false), right(b, TILE_COLUMNS, TILE_COLUMNS, false, blocks == 1);
  Packing packing(left, right);
  std::atomic<int64_t> next{0};
  lf_parallel_for(0, std::min(threads, tasks), 1, [&](int64_t, int64_t) {
    packing.finish();
    const Words room = new_words(right.late ? right.size() : 0);
    for (int64_t task = next++; task < tasks; task = next++) {
      const int64_t block = task / shares, share = task % shares, first = rows * block / blocks, end = rows * (block + 1) / blocks;
      for (int64_t column = columns * share / shares; column < columns * (share + 1) / shares; column++) {
        const Panel y = right.at(column, room.get());
        for (int64_t row = first; row < end; row++) {
          const int64_t i = row * TILE_ROWS, j = column * TILE_COLUMNS, height = std::min(TILE_ROWS, a.lines - i);
          // What is added to comes from memory meanwhile.
          for (int64_t line = 0; add && line < height; line++)
            for (int64_t at = 0; at < TILE_COLUMNS; at += 16) __builtin_prefetch(to + (i + line) * stride + j + at, 1);
          const Panel x = left.at(row, nullptr);
          const Place place{to + i * stride + j, stride, height, std::min(TILE_COLUMNS, b.lines - j), bias ? bias + j : nullptr, add};
          if (a.bf16) tile_of<true, false>(words, x, 0, y, place);
          else if (left.as_rows) tile_of<false, true>(words, x, a.line, y, place);
          else tile_of<false, false>(words, x, 0, y, place);
        }
      }
    }
  });
}

// y [M, N] = x · z + bias [N] (undefined: none), or y += x · z where `add`.
static void multiply_blocks(const Lines& x, const Lines& z, const at::Tensor& y, const at::Tensor& bias, bool add) {
  float* to = y.mutable_data_ptr<float>();
  const float* by = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  const int64_t stride = y.stride(0), inner = (x.bf16 ? BF16_IN_WORD : 1) * LINE_WORDS, words = std::min(words_of(x), LINE_WORDS);
  const int64_t most = MOST_WORDS / (words * PACKED_ROWS) * TILE_ROWS, columns = MOST_WORDS / (words * TILE_COLUMNS) * TILE_COLUMNS;
  // Each part of the rows packs all columns again and wakes the threads again: there are as few as have half more than most rows, of one size.
  const int64_t parts = std::max<int64_t>(1, (x.lines + most / 2) / most), rows = panels_of(panels_of(x.lines, parts), TILE_ROWS) * TILE_ROWS;
  for (int64_t i = 0; i < x.lines; i += rows)
    for (int64_t j = 0; j < z.lines; j += columns)
      for (int64_t k = 0; k < x.inner; k += inner)
        multiply(x.part(i, rows, k, inner), z.part(j, columns, k, inner), to + i * stride + j, stride, by && k == 0 ? by + j : nullptr, add || k > 0);
}
#undef LF_GEMM
