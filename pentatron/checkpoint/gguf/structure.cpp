#include "pentatron/checkpoint/gguf/structure.h"

#include "pentatron/checkpoint/gguf/families/family.h"

namespace pentatron::checkpoint {

std::vector<int64_t> GgufMapEntry::gguf_shape() const {
  if (vector) return {shape.back()};
  if (order != GgufOrder::kTransposed) return shape;
  return {shape[1], shape[0]};
}

std::vector<GgufMapEntry> gguf_map(const GgufStructure& structure) {
  return structure.family->map(structure);
}

int64_t hf_row(const GgufMapEntry& entry, int64_t row, int64_t rows) {
  if (entry.order != GgufOrder::kRotary) return row;
  const int64_t size = rows / entry.heads, in_head = row % size;
  return row - in_head + in_head % 2 * (size / 2) + in_head / 2;
}

} // namespace pentatron::checkpoint
