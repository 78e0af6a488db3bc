// The vectorised entries, included once for each instruction set: inside its target region, with
// PENTATRON_ISA the namespace of its vectors and PENTATRON_EMBEDDING the namespace of its entries.
// The same operations as in the reference, in the same order.

namespace pentatron::kernels::PENTATRON_EMBEDDING {

using namespace PENTATRON_ISA; // NOLINT: one translation unit

namespace {

/// f(c, n) for every vector of columns [begin, end), n <= width of them from c.
template <class V, class F> void for_columns(int64_t begin, int64_t end, F&& f) {
  int64_t c = begin;
  for (; c + V::kWidth <= end; c += V::kWidth) f(c, int64_t{V::kWidth});
  if (c < end) f(c, end - c);
}
template <class V, class T> V load_some(const T* p, int64_t n) {
  return n == V::kWidth ? load(p) : load(p, n);
}
template <class V, class T> void store_some(T* p, V x, int64_t n) {
  if (n == V::kWidth) {
    store(p, x);
  } else {
    store(p, x, n);
  }
}

template <class T> const T* row(const void* table, int64_t index, int64_t rows, int64_t width) {
  if (!table || index < 0 || index >= rows) return nullptr;
  return static_cast<const T*>(table) + index * width;
}

/// out = factor * word + position, either of which may be null.
template <class T, class Out>
void write_row(const T* word, const T* position, acc_t<T> factor, Out* out, int64_t width) {
  using V = Vec<acc_t<T>>;
  const V f = splat<V>(factor);
  if (word && position) {
    for_columns<V>(0, width, [&](int64_t c, int64_t n) {
      store_some(out + c, f * load_some<V>(word + c, n) + load_some<V>(position + c, n), n);
    });
  } else if (word) {
    for_columns<V>(0, width, [&](int64_t c, int64_t n) {
      store_some(out + c, f * load_some<V>(word + c, n), n);
    });
  } else if (position) {
    for_columns<V>(0, width, [&](int64_t c, int64_t n) {
      store_some(out + c, load_some<V>(position + c, n), n);
    });
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
  const V factor = splat<V>(static_cast<acc_t<T>>(a.scale));
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
    for_columns<V>(begin, end, [&](int64_t c, int64_t n) {
      store_some(g + c, load_some<V>(g + c, n) + factor * load_some<V>(d + c, n), n);
    });
  }
}

} // namespace

void forward(const EmbeddingArgs& a, const Context&) {
  simd::with_type(a.dtype, [&]<class T>(T) {
    simd::with_type(a.out_dtype, [&]<class Out>(Out) {
      if constexpr (std::is_same_v<T, double> == std::is_same_v<Out, double>) {
        const bool copy = std::is_same_v<T, Out> && a.scale == 1;
        simd::parallel_blocks(a.tokens, 16, [&](int64_t begin, int64_t end, int64_t) {
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
  simd::with_type(a.dtype, [&]<class T>(T) {
    simd::parallel_blocks(column_parts * row_parts, 1, [&](int64_t item, int64_t, int64_t) {
      const int64_t p = item % column_parts;
      const auto edge = [&](int64_t k) {
        return k == column_parts ? a.width : blocks * k / column_parts * kColumnBlock;
      };
      add_rows<T>(a, edge(p), edge(p + 1), item / column_parts, row_parts);
    });
  });
}

} // namespace pentatron::kernels::PENTATRON_EMBEDDING
