/// A set of ranks that communicate. A cheap value: copies refer to the same group.
///
/// A default-constructed Group is a group of one, on which every collective is the identity; so
/// code that communicates contains no `if (size > 1)`.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::comm {

class Backend;

enum class ReduceOp : unsigned char { kSum, kMax };

/// What a group is for; on GPUs its messages have resources that suit it.
enum class GroupUse : unsigned char {
  kCollectives, ///< anything; the next computation waits for it
  kBackground,  ///< gradients and weights of data-parallel ranks, while kernels compute
  kTransfers,   ///< small messages between few ranks; may wait long while kernels compute
};

class Group {
 public:
  Group() : Group("self") {}
  /// A group of one with a name for error messages; `world_rank` is its only member.
  explicit Group(std::string_view name, int world_rank = 0);
  explicit Group(std::shared_ptr<Backend> backend);
  static Group self() { return Group(); }

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_->size()); }
  const std::string& name() const { return *name_; }
  /// The members as ranks of the world, in group order.
  const std::vector<int>& ranks() const { return *ranks_; }

  /// Collective over this group: ranks with one `color` form a new group, ordered by (key, rank
  /// here). Ranks with the color kUnused need none; the group that they get must not be used.
  /// Throws CommError if the ranks disagree on `name`.
  Group split(int color, int key, std::string_view name,
              GroupUse use = GroupUse::kCollectives) const;
  static constexpr int kUnused = -1;

  /// What carries the communication. Throws CommError on a group of one that has none.
  Backend& backend() const;
  /// The backend as a shared pointer, for wrappers; null on a group of one without a backend.
  const std::shared_ptr<Backend>& shared_backend() const { return backend_; }

 private:
  std::shared_ptr<Backend> backend_;
  std::shared_ptr<const std::string> name_;
  std::shared_ptr<const std::vector<int>> ranks_;
  int rank_ = 0;
};

} // namespace pentatron::comm
