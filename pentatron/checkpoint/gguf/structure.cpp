#include "pentatron/checkpoint/gguf/structure.h"

#include "pentatron/checkpoint/gguf/families/family.h"

namespace pentatron::checkpoint {

std::vector<int64_t> GgufMapEntry::gguf_shape() const {
  if (vector) return {shape.back()};
  const bool transposed = order == GgufOrder::kTransposed;
  if (size > 0 && transposed) return {heads, shape[1], size};
  if (size > 0) return {heads, size, shape[1]};
  return transposed ? std::vector<int64_t>{shape[1], shape[0]} : shape;
}

std::vector<GgufMapEntry> gguf_map(const GgufStructure& structure) {
  return structure.family->map(structure);
}

int64_t hf_row(const GgufMapEntry& entry, int64_t row, int64_t rows) {
  if (entry.size > 0) return row / entry.size * entry.head_rows() + entry.first + row % entry.size;
  if (entry.order != GgufOrder::kRotary) return row;
  const int64_t head = rows / entry.heads, size = entry.rotary > 0 ? entry.rotary : head;
  const int64_t in_head = row % head - (head - size); // among the rows that rotate
  if (in_head < 0) return row;
  return row - in_head + in_head % 2 * (size / 2) + in_head / 2;
}

} // namespace pentatron::checkpoint
