/// How one parameter is distributed over the ranks: its global shape, fused parts, and a placement
/// for each mesh axis.
///
/// Initialisation, gradient reduction, gradient norm, checkpoint boxes, Hugging Face names and
/// memory counts all follow from a ShardSpec; nothing else knows how a tensor is split.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::nn {

/// kReplicate: every rank of the axis holds the value and computes the same full gradient.
/// kShard: a rank holds its part of `dim`. kPartial: the value is replicated, the ranks hold
/// addends of its gradient.
struct Placement {
  enum class Kind : uint8_t { kReplicate, kShard, kPartial };
  Kind kind = Kind::kReplicate;
  int dim = 0;

  static Placement replicate() { return {}; }
  static Placement shard(int dim) { return {Kind::kShard, dim}; }
  static Placement partial() { return {Kind::kPartial, 0}; }
  bool operator==(const Placement&) const = default;
};

/// One part of a fused dimension (q, k, v; gate, up): `pieces` pieces of `piece_size` rows that are
/// never cut. Each part is sharded by itself, so a rank holds [its q; its k; its v].
struct FusedPart {
  std::string name;
  int64_t pieces = 0;
  int64_t piece_size = 1;
  /// Fewer pieces than ranks are allowed: a group of neighbouring ranks then holds the same piece,
  /// and the gradient of the part is Partial over that group (key and value heads).
  bool in_groups = false;
};

struct ShardSpec {
  std::string name;             ///< global name, e.g. layers.0.attention.qkv.weight
  std::vector<int64_t> shape;   ///< true global shape
  std::vector<FusedPart> parts; ///< of dimension `parts_dim`; empty: one part
  int parts_dim = 0;
  int stacked_dims = 0;       ///< first dimensions that only number equal tensors: experts
  int64_t shard_multiple = 0; ///< > 0: shards of ceil(n / ranks) rounded up to this, the last ones
                              ///< short or empty (vocabulary)
  bool table = false; ///< rows that are looked up, or of which each is for an output class: no map
                      ///< from features to features
  std::map<std::string, Placement>
      placements; ///< by axis; an axis not named is kPartial for dp and cp, else kReplicate

  Placement placement(const std::string& axis) const;
  int64_t numel() const;
};

/// A rank's coordinate on each axis; an axis not named has size 1.
struct AxisPosition {
  int rank = 0;
  int size = 1;
};
using Coordinates = std::map<std::string, AxisPosition>;

/// A block that a rank holds: `size` elements from `global` in the true tensor, at `local` in the
/// rank's tensor.
struct LocalBox {
  std::vector<int64_t> global, local, size;
  bool operator==(const LocalBox&) const = default;
};

/// Shape of a rank's tensor, padding included. Throws ConfigError if an axis does not divide what
/// it shards.
std::vector<int64_t> local_shape(const ShardSpec& spec, const Coordinates& where);

/// The blocks of a rank, in local order; they never cover padding. Over the ranks of the sharded
/// axes they tile the tensor exactly once.
std::vector<LocalBox> local_boxes(const ShardSpec& spec, const Coordinates& where);

/// Elements [begin, begin + size) of a rank's tensor, flattened.
struct FlatRange {
  int64_t begin = 0, size = 0;
  bool operator==(const FlatRange&) const = default;
};

/// Elements of a rank's tensor that are neighbours in the true tensor, too, both flattened: `count`
/// runs of `size` elements.
struct GlobalRuns {
  int64_t local = 0;  ///< first element of the first run, from the first of the range
  int64_t global = 0; ///< the same element in the true tensor
  int64_t size = 0, count = 1;
  int64_t local_step = 0, global_step = 0; ///< from run to run
  bool operator==(const GlobalRuns&) const = default;
};

/// Where the elements of `range` of a rank's tensor are in the true tensor. Padding is in no run.
std::vector<GlobalRuns> global_runs(const ShardSpec& spec, const Coordinates& where,
                                    const FlatRange& range);

/// What this rank counts in sums over all ranks (norms, parameter counts), so that every element is
/// counted once: everything on rank 0 of every axis that does not shard the parameter, nothing on
/// the others; of a part held in groups, rank 0 of each group. Padding is included. Ascending.
std::vector<FlatRange> counted_ranges(const ShardSpec& spec, const Coordinates& where);

/// The part of the rank's tensor whose gradient must be summed over `axis`: all where it is
/// Partial, else nothing. The axis kTpReplicaAxis stands for the group of tp ranks that hold the
/// same pieces of parts held in groups. Ascending.
std::vector<FlatRange> partial_ranges(const ShardSpec& spec, const Coordinates& where,
                                      const std::string& axis);
inline constexpr const char* kTpReplicaAxis = "tp-replicas";
/// The axis of the copies of a parameter that several pipeline ranks hold: its coordinate is the
/// position among the holders, in order of the segments that read it. Tied embeddings are one.
inline constexpr std::string_view kSharedAxis = "shared:";
std::string shared_axis(std::string_view param);
/// The axis of copies on which the spec is Partial and `where` names several; empty: none.
std::string shared_axis_of(const ShardSpec& spec, const Coordinates& where);

/// The rows [begin, begin + rows) of the true dimension parts_dim that the named part covers.
struct PartRange {
  int64_t begin = 0;
  int64_t rows = 0;
};
PartRange part_range(const ShardSpec& spec, const std::string& part);

} // namespace pentatron::nn
