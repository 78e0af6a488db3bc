/// The operations of one rank, written by the threads that communicate and read once a heartbeat.
///
/// Writing costs a lock that is almost never contended and the copy of a few words: no text is
/// made and no system is called until somebody asks.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pentatron/comm/control/status.h"
#include "pentatron/comm/device_operation.h"
#include "pentatron/comm/long_work.h"

namespace pentatron::comm::control {

/// What an operation is, as its caller knows it; the strings are literals.
struct OperationStart {
  static constexpr int kMaxDims = 6;

  const char* call = "";       ///< "all_reduce(sum)"
  const char* dtype = nullptr; ///< "float32"; null without a tensor
  int num_dims = 0;            ///< dims beyond kMaxDims are not shown
  std::array<int64_t, kMaxDims> dims{};
  bool comparable = true; ///< whether dtype and shape are the same on all ranks
  int root = -1;          ///< of broadcast
  std::string note = {};  ///< of split: the new group's name
};

class OperationLog final : public Activity {
 public:
  using Clock = std::chrono::steady_clock;

  /// Refers to an operation begun here. Operations that many later ones have followed are
  /// forgotten; a token of one does nothing.
  struct Token {
    int group = -1;
    int64_t serial = 0;
  };

  /// Ranks are of the world, in group order. Returns the group's index here.
  int add_group(std::string name, std::vector<int> ranks);

  Token begin(int group, const OperationStart& start);
  /// A transfer between members `from` and `to`, ranks in the group, one of which is this rank.
  Token begin_transfer(int group, int from, int to, const OperationStart& start);
  /// The caller blocks now in this operation.
  void wait(Token token);
  /// It does no longer, and the operation failed or is given up.
  void leave(Token token);
  void end(Token token);
  /// The operations of `tokens`, of one group, are one in a GPU's queue. From now on status() asks
  /// `operation` how far it is: it counts as waited for while it runs.
  void follow(const std::vector<Token>& tokens, std::shared_ptr<DeviceOperation> operation);
  /// What carries a group's operations on a GPU.
  void add_device(int group, const std::shared_ptr<DeviceGroup>& device);
  /// "NCCL failed in group tp, at all_reduce(sum) #17 of group tp of float32 [3, 4]: ..."; empty if
  /// no group's device has an error.
  std::string device_error();
  /// Aborts the devices of all groups.
  void abort_devices();

  void begin(const std::string& what) override;
  void progress() override;
  void end() override;

  /// Subtracts time during which the process was stopped; it does not count as waiting.
  void excuse(double seconds);

  RankStatus status();

 private:
  // 64 operations of one group under way are more than any schedule has.
  static constexpr int kKept = 64;
  static constexpr int kReported = 8;

  struct Record {
    OperationStart start;
    int from = -1, to = -1;
    int64_t number = 0;
    int64_t serial = 0; ///< 0: unused
    OperationStatus::State state = OperationStatus::State::kOpen;
    Clock::time_point since;
  };
  /// In a GPU's queue, with what has been begun under its tokens.
  struct Followed {
    std::shared_ptr<DeviceOperation> operation;
    std::vector<Record> records;
  };
  struct Group {
    std::string name;
    std::vector<int> ranks;
    int ordinal = 0;
    int64_t collectives = 0;
    std::vector<int64_t> sends, receives; ///< by group rank of the peer
    int self = -1;                        ///< known from the first transfer
    int64_t serial = 0;                   ///< of the last operation
    std::array<Record, kKept> records;
    std::deque<Followed> followed; ///< not known to have ended, in order
    std::weak_ptr<DeviceGroup> device;
  };

  Token add(int group, const OperationStart& start, int from, int to, int64_t number);
  Record* find(Token token);
  /// Asks the GPU how far it is.
  void look(int group, Clock::time_point now);
  static OperationStatus describe(const Record& record, Clock::time_point now);
  static OperationStatus describe(const Group& group, const Record& record, Clock::time_point now);
  static GroupStatus describe(const Group& group, Clock::time_point now);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Group>> groups_;
  Record last_finished_;
  int last_finished_group_ = -1;
  std::string work_; ///< begun last
  int num_works_ = 0;
  Clock::time_point progress_; ///< the epoch: none yet
};

} // namespace pentatron::comm::control
