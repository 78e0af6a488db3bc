#include "pentatron/nn/adapter.h"

namespace pentatron::nn {

std::string adapter_name(const std::string& weight, const std::string& what,
                         const std::string& part) {
  const std::string module = weight.substr(0, weight.rfind('.'));
  return module + "." + what + (part.empty() ? "" : "." + part);
}

std::vector<VariantRows> all_rows(const std::vector<VariantRows>* variants, int64_t rows) {
  std::vector<VariantRows> all;
  int64_t end = 0;
  const auto base_until = [&](int64_t begin) {
    if (begin > end) all.push_back({.begin = end, .size = begin - end, .variant = 0});
  };
  if (variants != nullptr) {
    for (const VariantRows& own : *variants) {
      base_until(own.begin);
      all.push_back(own);
      end = own.begin + own.size;
    }
  }
  base_until(rows);
  return all;
}

std::string variant_suffix(size_t variant) {
  return "@" + std::to_string(variant);
}

ShardSpec spec_of_parts(const ShardSpec& weight, size_t first, size_t count,
                        std::optional<int64_t> columns) {
  const auto row_dim = static_cast<size_t>(weight.stacked_dims);
  ShardSpec spec{.name = {},
                 .shape = {weight.shape.begin(), weight.shape.end() - 1},
                 .parts_dim = weight.stacked_dims,
                 .stacked_dims = weight.stacked_dims,
                 .shard_multiple = weight.shard_multiple};
  if (!weight.parts.empty()) {
    const auto begin = weight.parts.begin() + static_cast<std::ptrdiff_t>(first);
    spec.parts.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
    spec.shape[row_dim] = 0;
    for (const FusedPart& part : spec.parts) spec.shape[row_dim] += part.pieces * part.piece_size;
  }
  if (columns) spec.shape.push_back(*columns);
  return spec;
}

int64_t local_rows_before(const ShardSpec& weight, const Coordinates& where, size_t first) {
  if (first == 0) return 0;
  ShardSpec before = spec_of_parts(weight, 0, first);
  before.placements = weight.placements;
  return local_shape(before, where)[static_cast<size_t>(weight.stacked_dims)];
}

} // namespace pentatron::nn
