// Included once per instruction set by embedding_simd.cpp. The same operations as in the reference,
// in the same order.

template <class T> const T* row(const void* table, int64_t index, int64_t rows, int64_t width) {
  if (!table || index < 0 || index >= rows) return nullptr;
  return static_cast<const T*>(table) + index * width;
}

/// out = factor * word + position, either of which may be null.
template <class T, class Out>
void write_row(const T* word, const T* position, acc_t<T> factor, Out* out, int64_t width) {
  using V = Vec<acc_t<T>>;
  if (word && position) {
    for_vectors<V>(0, width, [&](int64_t c, auto lanes) {
      store(out + c, factor * load(word + c, lanes) + load(position + c, lanes), lanes);
    });
  } else if (word) {
    for_vectors<V>(0, width, [&](int64_t c, auto lanes) {
      store(out + c, factor * load(word + c, lanes), lanes);
    });
  } else if (position) {
    for_vectors<V>(
        0, width, [&](int64_t c, auto lanes) { store(out + c, load(position + c, lanes), lanes); });
  } else {
    std::memset(out, 0, static_cast<size_t>(width) * sizeof(Out));
  }
}

/// Columns of one thread's part of a row of the gradient: whole cache lines.
constexpr int64_t kColumnBlock = 128;
/// Tokens ahead whose row of the gradient is fetched.
constexpr int64_t kAhead = 4;

template <class T>
void add_rows(const EmbeddingGradientArgs& a, int64_t begin, int64_t end, int64_t part,
              int64_t parts) {
  using V = Vec<acc_t<T>>;
  const auto factor = static_cast<acc_t<T>>(a.scale);
  acc_t<T>* grad = static_cast<acc_t<T>*>(a.main_grad);
  const T* dy = static_cast<const T*>(a.dy);
  for (int64_t t = 0; t < a.tokens; ++t) {
    const int64_t r = a.ids[t] - a.row_offset;
    if (r < 0 || r >= a.rows || r % parts != part) continue;
    if (t + kAhead < a.tokens) {
      const int64_t next = a.ids[t + kAhead] - a.row_offset;
      if (next >= 0 && next < a.rows) __builtin_prefetch(grad + next * a.width + begin, 1);
    }
    acc_t<T>* g = grad + r * a.width;
    const T* d = dy + t * a.width;
    for_vectors<V>(begin, end, [&](int64_t c, auto lanes) {
      store(g + c, load(g + c, lanes) + factor * load(d + c, lanes), lanes);
    });
  }
}

void forward(const EmbeddingArgs& a, const Context&) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    visit_dtype(a.out_dtype, [&]<class Out>(Out) {
      if constexpr (std::is_same_v<T, double> == std::is_same_v<Out, double>) {
        const bool copy = std::is_same_v<T, Out> && a.scale == 1;
        parallel_blocks(a.tokens, 16, [&](int64_t begin, int64_t end, int64_t) {
          for (int64_t t = begin; t < end; ++t) {
            const T* word = row<T>(a.table, a.ids[t] - a.row_offset, a.rows, a.width);
            const T* position = a.position_table ? row<T>(a.position_table, a.positions[t],
                                                          a.num_positions, a.width)
                                                 : nullptr;
            Out* out = static_cast<Out*>(a.out) + t * a.width;
            if (copy && word && !position) {
              std::memcpy(out, word, static_cast<size_t>(a.width) * sizeof(T));
            } else {
              write_row(word, position, static_cast<acc_t<T>>(a.scale), out, a.width);
            }
          }
        });
      }
    });
  });
}

void gradient(const EmbeddingGradientArgs& a, const Context&) {
  // Every element of the gradient has one owner, (column block, row mod parts), who adds the tokens
  // in order.
  const int64_t blocks = std::max<int64_t>(1, a.width / kColumnBlock);
  const int64_t threads = num_threads();
  const int64_t column_parts = std::min(blocks, threads);
  const int64_t row_parts = std::max<int64_t>(1, threads / column_parts);
  visit_dtype(a.dtype, [&]<class T>(T) {
    parallel_blocks(column_parts * row_parts, 1, [&](int64_t item, int64_t, int64_t) {
      const int64_t p = item % column_parts;
      const auto edge = [&](int64_t k) {
        return k == column_parts ? a.width : blocks * k / column_parts * kColumnBlock;
      };
      add_rows<T>(a, edge(p), edge(p + 1), item / column_parts, row_parts);
    });
  });
}
