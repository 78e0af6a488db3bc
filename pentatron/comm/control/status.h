/// One rank's report on its communication, as text and numbers: the input of diagnose.h and the
/// content of a heartbeat.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pentatron::comm::control {

/// An operation as one rank has begun it.
struct OperationStatus {
  enum class State : uint8_t {
    kOpen,
    kWaiting, ///< its rank waits for it; of an operation on a GPU: it runs
    kDone,
    kQueued, ///< the rank has begun it, its GPU has not
  };

  int from = -1; ///< world rank of a transfer's sender; -1 for collectives
  int to = -1;
  int64_t number = 0;     ///< counts the group's collectives, or its transfers between this pair
  std::string call;       ///< "all_reduce(sum)"
  std::string tensor;     ///< "float32 [3, 4]", or empty
  bool comparable = true; ///< whether `tensor` is the same on all ranks
  State state = State::kOpen;
  double waiting_s = 0; ///< of kWaiting

  bool is_transfer() const { return from >= 0; }
  bool same_key(const OperationStatus& other) const {
    return from == other.from && to == other.to && number == other.number;
  }
  /// "all_reduce(sum) #17 of group tp of float32 [3, 4]"
  std::string describe(const std::string& group) const;
  bool operator==(const OperationStatus&) const = default;
};

struct GroupStatus {
  std::string name;
  std::vector<int> ranks;  ///< world ranks of the members
  int ordinal = 0;         ///< counts this rank's groups of this name and these ranks
  int64_t collectives = 0; ///< begun so far
  std::map<std::pair<int, int>, int64_t> transfers; ///< begun so far, by world ranks (from, to)
  /// The last ones and all that are waited for, in order. Of those in a GPU's queue the first is
  /// kQueued and the rest are open.
  std::vector<OperationStatus> operations;

  bool same_group(const GroupStatus& other) const {
    return ordinal == other.ordinal && name == other.name && ranks == other.ranks;
  }
  bool operator==(const GroupStatus&) const = default;
};

struct RankStatus {
  std::vector<GroupStatus> groups;
  std::string last_finished; ///< described; empty before the first
  std::string work;          ///< long work under way (long_work.h), or empty
  double progress_s = -1;    ///< since the last progress of long work, also past; -1: none yet
};

} // namespace pentatron::comm::control
