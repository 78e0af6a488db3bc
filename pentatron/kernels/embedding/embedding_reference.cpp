#include "pentatron/kernels/embedding/embedding_entries.h"

#include "pentatron/kernels/common/parallel.h"
#include "pentatron/kernels/common/scalar.h"

namespace pentatron::kernels::embedding_reference {

namespace {

/// The row of `table` that `index` names, or null.
template <class T> const T* row(const void* table, int64_t index, int64_t rows, int64_t width) {
  if (!table || index < 0 || index >= rows) return nullptr;
  return static_cast<const T*>(table) + index * width;
}

} // namespace

void forward(const EmbeddingArgs& a, const Context&) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    visit_dtype(a.out_dtype, [&]<class Out>(Out) {
      using Acc = acc_t<T>;
      const auto factor = static_cast<Acc>(a.scale);
      parallel_blocks(a.tokens, 16, [&](int64_t begin, int64_t end, int64_t) {
        for (int64_t t = begin; t < end; ++t) {
          const T* word = row<T>(a.table, a.ids[t] - a.row_offset, a.rows, a.width);
          const T* position =
              a.position_table ? row<T>(a.position_table, a.positions[t], a.num_positions, a.width)
                               : nullptr;
          Out* out = static_cast<Out*>(a.out) + t * a.width;
          for (int64_t c = 0; c < a.width; ++c) {
            Acc value = word ? factor * to_acc(word[c]) : Acc{0};
            if (position) value += to_acc(position[c]);
            out[c] = from_double<Out>(value);
          }
        }
      });
    });
  });
}

void gradient(const EmbeddingGradientArgs& a, const Context&) {
  visit_dtype(a.dtype, [&]<class T>(T) {
    using Acc = acc_t<T>;
    const auto factor = static_cast<Acc>(a.scale);
    for (int64_t t = 0; t < a.tokens; ++t) {
      const int64_t r = a.ids[t] - a.row_offset;
      if (r < 0 || r >= a.rows) continue;
      Acc* grad = static_cast<Acc*>(a.main_grad) + r * a.width;
      const T* dy = static_cast<const T*>(a.dy) + t * a.width;
      for (int64_t c = 0; c < a.width; ++c) grad[c] += factor * to_acc(dy[c]);
    }
  });
}

} // namespace pentatron::kernels::embedding_reference
