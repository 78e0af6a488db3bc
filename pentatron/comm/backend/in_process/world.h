/// What the thread ranks of one process share: who has failed or finished, and the operations under
/// way.
///
/// An Operation collects one contribution from each member. The member that completes it splits the
/// work into tasks; it and every member that waits take tasks until none is left. So an operation
/// depends only on all members having started it, the memory traffic is that of one pass, and no
/// thread spins. Contributions hold references to the members' tensors until the last task has
/// ended, even if their owners have left with an error.
///
/// With Order::kStreams ranks wait for each other as GPUs do: the operations of a group that a rank
/// starts form a stream, and each of them begins when the one before it has ended. Only the watch
/// of run_ranks detects ranks that wait for each other in this mode.
#pragma once

#include "pentatron/comm/backend.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

namespace pentatron::comm::in_process {

class World;
struct GroupState;
struct Stream;

enum class Order : unsigned char { kFree, kStreams };

/// What a rank brings to an operation.
struct Contribution {
  std::string call;           ///< "all_reduce(sum)": must be the same for all members
  at::ScalarType dtype{};     ///< likewise, unless `tensors` is false
  std::vector<int64_t> shape; ///< likewise
  bool tensors = false;       ///< whether dtype and shape mean anything
  std::vector<at::Tensor> ins, outs;
  int color = 0, key = 0; ///< of split

  std::string describe() const; ///< "all_reduce(sum) of float32 [3, 4]"
};

struct Operation {
  enum class State : unsigned char { kOpen, kRunning, kDone, kFailed };
  using Task = std::function<void(int64_t)>;

  std::string title;        ///< "all_reduce #12 of group tp"
  std::vector<int> members; ///< world ranks
  // Guarded by the world's mutex; contributions are read without it while the state is kRunning.
  State state = State::kOpen;
  std::vector<std::unique_ptr<Contribution>> contributions; ///< null until that member arrives
  int num_arrived = 0;
  std::string error;
  std::vector<std::shared_ptr<GroupState>> new_groups; ///< of split, by member
  std::vector<std::shared_ptr<Stream>> streams;        ///< of those who have arrived in a stream
  // Set before kRunning.
  Task task;
  int64_t num_tasks = 0;
  std::atomic<int64_t> next_task{0};
  std::atomic<int64_t> unfinished_tasks{0};

  std::string waiting_ranks() const; ///< "0, 2"
};
using OperationPtr = std::shared_ptr<Operation>;

/// (from, to, number): from = -1 for collectives, whose number counts the group's.
using OperationKey = std::tuple<int, int, int64_t>;

/// Splits a complete operation into tasks: sets task and num_tasks, or returns what is wrong with
/// the contributions.
using Plan = std::function<std::string(Operation&)>;

/// What a rank brings to an operation, and to which.
struct Start {
  OperationKey key;
  std::string title;
  std::vector<int> members; ///< world ranks
  int member;               ///< the rank's index among them
  Contribution contribution;
  Plan plan;
};

/// Operations that make progress together.
struct Batch {
  std::weak_ptr<GroupState> group;
  std::vector<Start> starts;
  std::vector<OperationPtr> operations;
};

/// Operations that a member of a group has started, including those that have not begun. Guarded by
/// the world's mutex.
struct Stream {
  size_t under_way = 0; ///< operations of the batch that has begun and not ended
  std::deque<Batch> queued;
};

struct GroupState : std::enable_shared_from_this<GroupState> {
  std::shared_ptr<World> world;
  std::string name;
  std::vector<int> members; ///< world ranks
  // Guarded by the world's mutex.
  std::map<OperationKey, OperationPtr> open;
  std::vector<int64_t> num_collectives;                           ///< by member
  std::map<std::pair<int, int>, int64_t> num_sends, num_receives; ///< by (from, to)
  std::vector<std::shared_ptr<Stream>> streams;                   ///< by member

  GroupState(std::shared_ptr<World> world, std::string name, std::vector<int> members);
  /// What never began is dropped: operations and streams hold each other.
  ~GroupState();
};

class World {
 public:
  explicit World(int size, Order order = Order::kFree) : order_(order), ranks_(size) {}

  /// Adds contributions of the group's member `self`, which make progress together, and returns
  /// without waiting.
  std::vector<OperationPtr> start(GroupState& group, int self, std::vector<Start> starts);
  /// `member` of `operation` waits until it is done.
  void wait(const OperationPtr& operation, int member);
  bool done(const OperationPtr& operation);

  std::mutex& mutex() { return mutex_; }

  /// The rank has failed: everyone else leaves. The first reason is kept.
  void abort(int rank, std::exception_ptr reason, const std::string& sentence);
  /// The rank has returned and will join nothing more.
  void finish(int rank);
  int failed_rank() const {
    return failed_rank_;
  } ///< -1: none; read when all threads have been joined
  std::exception_ptr reason() const { return reason_; }

 private:
  struct Rank {
    std::condition_variable wake;
    bool finished = false;
    const Operation* waits_for = nullptr;
  };

  // These hold the mutex.
  OperationPtr open(GroupState& group, const Start& start);
  /// The batches that can begin now that the operation has ended.
  std::vector<Batch> leave_streams(Operation& operation);
  void throw_if_aborted(const Operation& operation, int world_rank) const;
  void fail(Operation& operation, std::string error);
  void wake_members(const Operation& operation);
  int absent_and_finished(const Operation& operation) const;
  std::string deadlock() const;

  void arrive(Batch batch);
  void arrive(GroupState& group, const OperationPtr& operation, Start start);
  void run_tasks(const OperationPtr& operation);
  void complete(Operation& operation, const std::string& error);

  const Order order_;
  std::mutex mutex_;
  std::vector<Rank> ranks_;
  int failed_rank_ = -1;
  std::string failure_;
  std::exception_ptr reason_;
};

} // namespace pentatron::comm::in_process
