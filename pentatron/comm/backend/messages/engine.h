/// Drives every operation of this process, and carries what ranks tell each other about the end of
/// a run.
///
/// All calls of the transport happen under one mutex. A thread that waits makes passes over the
/// open messages itself; between waits a thread of the engine does, which sleeps as long as nothing
/// is pending. Passes that find nothing are followed by a yield or a sleep whose length grows with
/// the time waited, so that more ranks than cores make progress.
#pragma once

#include "pentatron/comm/backend/messages/operation.h"
#include "pentatron/comm/backend/messages/transport.h"
#include "pentatron/comm/failure.h"
#include "pentatron/comm/process_world.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>

namespace pentatron::comm::messages {

/// How a rank left a run.
struct Outcome {
  enum class Kind : uint8_t { kFinished, kFailed, kLeft } kind; ///< kLeft: because another failed
  Failure failure;                                              ///< of kFailed
};

class Engine {
 public:
  Engine(std::unique_ptr<Transport> transport, const MessageOptions& options);
  ~Engine();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const char* transport() const { return transport_->name(); }
  const MessageOptions& options() const { return options_; }

  // For backends.
  /// Puts the operation into its lane and returns without waiting.
  void start(const OperationPtr& operation);
  /// Until it has finished; throws what it failed with.
  void wait(const OperationPtr& operation);
  bool done(const OperationPtr& operation);
  /// A context number that is larger than those of all groups of this process.
  int next_context();
  void contexts_used_up_to(int context);

  // For the world.
  /// A new run: the state of the group of all ranks.
  std::shared_ptr<GroupState> begin_run();
  /// Waits for everything that was started in this run.
  void drain();
  /// Whether another rank has failed in this run.
  bool aborted();
  /// Tells the others and waits until all have left. Returns the first rank that failed with its
  /// failure, if any.
  std::optional<std::pair<int, Failure>> end_run(const Outcome& outcome);
  /// Whether all ranks have left every run.
  bool all_left() const { return all_left_; }
  /// No calls follow. Cancels what is open.
  void close();

  // For operations; the mutex is held.
  void post_send(Operation& operation, Flight& flight, int to, const void* data, int64_t bytes,
                 bool first);
  void post_receive(Operation& operation, Flight& flight, int from, void* data, int64_t bytes,
                    bool first);
  void joined(Operation& operation);
  /// Memory, kept for the next operations: fresh pages cost as much as the messages.
  Buffer take_buffer(int64_t bytes);

 private:
  struct Message {
    OperationPtr operation; ///< null: of the engine itself
    Flight* flight = nullptr;
    int member = -1; ///< of the peer, in the operation; of the engine's own: its rank in the world
    bool receives = false;
    bool first = false;
    bool open = false;
  };
  /// How a rank left a run, on its way.
  struct Notice {
    int64_t run;
    int32_t rank, largest_context;
    Outcome::Kind kind;
    FailureKind failure;
    char text[3000];
  };
  struct Run {
    std::vector<std::optional<Outcome>> outcomes;
    int num_outcomes = 0;
    int largest_context = 0;
  };
  using Lock = std::unique_lock<std::mutex>;

  // The mutex is held.
  /// Checks the open messages and continues the operations whose messages have arrived. Returns
  /// whether anything changed.
  bool pass();
  bool test_messages();
  void completed(const Message& message, const std::string& error,
                 std::vector<std::pair<OperationPtr, std::coroutine_handle<>>>& ready);
  /// Its place in messages_ is its id for the transport.
  int64_t open_message(Message message);
  void resume(const OperationPtr& operation, std::coroutine_handle<> where);
  void run_lane(Lane& lane);
  void finish(Operation& operation, Operation::State state, std::string error);
  void release(Operation& operation);
  void fail_all();
  void fail_those_that_wait_for_who_left();
  std::string reason_to_leave(const Operation& operation) const;
  void listen();
  void hear(const Notice& notice);
  /// Makes passes until `until` holds or the deadline has passed.
  void drive(Lock& lock, const std::function<bool()>& until,
             std::chrono::steady_clock::time_point deadline = {});
  void background();

  const std::unique_ptr<Transport> transport_;
  const MessageOptions options_;
  const int rank_, size_;

  std::mutex mutex_;
  std::vector<Message> messages_; ///< by id
  std::vector<int64_t> free_ids_;
  std::vector<Transport::Completion> ended_;
  std::unordered_set<OperationPtr> pending_;
  int num_in_transfer_ = 0; ///< pending ones whose members have all started them
  std::vector<Buffer> free_buffers_;
  int64_t free_bytes_ = 0;
  std::string broken_; ///< why the transport is of no more use, or empty
  int next_context_ = 1;
  int64_t run_ = 0;
  bool in_run_ = false, all_left_ = true;
  std::map<int64_t, Run> runs_; ///< this one and, if others are ahead, the next
  int first_failed_ = -1;       ///< the rank whose failure was heard of first in this run
  bool someone_left_ = false;
  Notice heard_{}, said_{};
  Flight saying_;

  bool someone_drives_ = false;
  int num_waiting_ = 0;
  bool stop_ = false, asleep_ = false;
  std::condition_variable changed_; ///< an operation has finished or the driver has left
  std::condition_variable work_;    ///< for the engine's thread
  std::thread thread_;
};

} // namespace pentatron::comm::messages
