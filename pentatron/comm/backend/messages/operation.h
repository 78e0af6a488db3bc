/// An operation of this process, the group it belongs to and the lane it runs in.
///
/// A lane is a queue of operations that run one after another: the collectives of a group are one,
/// the transfers from one rank to another of a group are one. Messages of a lane have a tag of
/// their own, so what the n-th operation of a lane sends meets the n-th operation there, whatever
/// other lanes do in between. This takes the place of MPI's communicators, whose
/// creation blocks.
#pragma once

#include "pentatron/comm/backend/messages/protocol.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pentatron::comm::messages {

class Engine;
struct Operation;
using OperationPtr = std::shared_ptr<Operation>;

struct Buffer {
  std::unique_ptr<std::byte[]> data;
  int64_t bytes = 0;
};

struct Lane {
  int send_tag = 0, receive_tag = 0;
  int64_t num_operations = 0;
  std::deque<OperationPtr> queue; ///< the first one runs
};

/// One member's view of a group.
struct GroupState {
  std::string name;
  std::vector<int> members; ///< world ranks
  int member = 0;           ///< this rank
  int context = 0;          ///< distinguishes its tags from those of every other group of a member
  int64_t run = 0;          ///< the run of the world it belongs to
  Lane collectives;
  std::map<std::pair<int, int>, Lane> transfers; ///< by (from, to)

  GroupState(std::string name, std::vector<int> members, int member, int context, int64_t run);
  Lane& transfers_between(int from, int to);

  static constexpr int kTagsPerContext = 3;
};

/// Messages that were posted together; co_await waits for all of them. May be used again then.
/// g++ 12 awaits a copy of what an expression returns by reference, so await it by a name.
class Flight {
 public:
  int num_open = 0;
  std::coroutine_handle<> waiter;

  Flight() = default;
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  bool await_ready() const noexcept { return num_open == 0; }
  void await_suspend(std::coroutine_handle<> awaiting) noexcept { waiter = awaiting; }
  void await_resume() const noexcept {}
};

/// Owns what the transport reads and writes, and so lives until its last message has ended, even if
/// the operation failed before.
struct Operation : std::enable_shared_from_this<Operation> {
  enum class State : unsigned char { kQueued, kRunning, kDone, kFailed };

  Engine& engine;
  std::shared_ptr<GroupState> group;
  Lane& lane;
  std::string name, route;  ///< "send", " from rank 0 to rank 1"; collectives have no route
  std::string call;         ///< what all members must agree on: "all_reduce(sum) of Float [3, 4]"
  std::vector<int> members; ///< world ranks that take part; messages name them by index
  int member;               ///< this rank's index
  std::function<Protocol(Operation&)> make_protocol;

  // Guarded by the engine's mutex from here.
  int64_t number = 0; ///< in its lane, from 1
  State state = State::kQueued;
  std::string error;
  Protocol protocol;
  bool joined = false;       ///< all members have started it
  std::vector<char> arrived; ///< which members have
  int num_open_messages = 0;
  std::deque<Flight> flights;
  std::vector<Buffer> buffers;
  std::vector<at::Tensor> tensors;

  Operation(Engine& engine, std::shared_ptr<GroupState> group, Lane& lane)
      : engine(engine), group(std::move(group)), lane(lane) {}

  bool finished() const { return state == State::kDone || state == State::kFailed; }
  int size() const { return static_cast<int>(members.size()); }
  std::string title() const; ///< "all_reduce #12 of group tp"

  // For protocols.
  Flight& flight() { return flights.emplace_back(); }
  std::byte* buffer(int64_t bytes);
  void send(Flight& flight, int to, const void* data, int64_t bytes);
  void receive(Flight& flight, int from, void* data, int64_t bytes);
  /// The message that tells members that this one has started. It is never cut, and may be shorter
  /// than what is expected.
  void send_first(Flight& flight, int to, const void* data, int64_t bytes);
  void receive_first(Flight& flight, int from, void* data, int64_t bytes);
};

} // namespace pentatron::comm::messages
