/// The linear layers of a model that have low-rank adapters. A layer reads its own entry when it is
/// constructed, so models do not mention adapters.
///
/// Source: Hu et al. 2021 (arXiv:2106.09685); Liu et al. 2024 (arXiv:2402.09353) for DoRA;
/// Kalajdzievski 2023 (arXiv:2312.03732) for the scale alpha / sqrt(rank); Hayou et al. 2024
/// (arXiv:2402.12354) for the learning rate of B.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "pentatron/nn/shard_spec.h"

namespace pentatron::nn {

/// One adapter: y += scale (x A^T) B^T for some parts of a fused weight, A [rank, in], B [rows of
/// the parts, rank].
struct AdaptedPart {
  std::string name; ///< "q", "q.k.v"; empty: of a weight without parts
  size_t first = 0; ///< of the weight's parts
  size_t count = 1; ///< neighbouring parts that share the adapter
  int64_t rank = 0;
  double scale = 1;
  bool operator==(const AdaptedPart&) const = default;
};

/// How a layer uses a weight that takes adapters.
enum class AdaptedUse : uint8_t {
  kLinear = 1,
  kTokenWise = 2, ///< each rank applies all of it to its own tokens: without dropout and DoRA
  kEmbedding = 4, ///< looked up, and so without dropout and DoRA
  kOutput = 8     ///< the product with a word table, which may be that of the embedding
};

struct AdapterPlan {
  /// By the name of the weight, ascending parts.
  std::map<std::string, std::vector<AdaptedPart>, std::less<>> weights;
  double dropout = 0;    ///< of the input of A
  bool dora = false;     ///< rows are scaled to trained magnitudes
  double b_lr_scale = 1; ///< learning rate of B, and of DoRA's magnitudes, over that of A
  /// Parameters of the model that train whole beside the adapters, by name.
  std::set<std::string, std::less<>> whole = {};
};

/// Rows [begin, begin + size) of a pass take adapter `variant` of several that a model holds; the
/// first is 1.
struct VariantRows {
  int64_t begin = 0, size = 0, variant = 0;
};
/// Returns ranges for all `rows` of a pass: `variants`, and ranges with variant 0 for the rows
/// between them. `variants` may be null.
std::vector<VariantRows> all_rows(const std::vector<VariantRows>* variants, int64_t rows);
/// Suffix of the parameter names of variant i, which makes them unique: "@1".
std::string variant_suffix(size_t variant);

/// "layers.0.attention.qkv.lora_A", "layers.0.attention.qkv.lora_B.q" of the weight's name.
std::string adapter_name(const std::string& weight, const std::string& what,
                         const std::string& part = {});

/// Parts [first, first + count) of a weight as a tensor of their own, with `columns` columns, or of
/// one dimension; without placements.
ShardSpec spec_of_parts(const ShardSpec& weight, size_t first, size_t count,
                        std::optional<int64_t> columns = {});
/// Rows of a rank's weight before its part `first`.
int64_t local_rows_before(const ShardSpec& weight, const Coordinates& where, size_t first);

} // namespace pentatron::nn
