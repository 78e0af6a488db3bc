#include "pentatron/comm/backend/messages/engine.h"

#include "pentatron/base/error.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

namespace pentatron::comm::messages {

using std::chrono::microseconds;
using std::chrono::steady_clock;

namespace {

// How a waiting thread spends passes that find nothing.
constexpr microseconds kYieldForPeers{50};  // then sleeps: a peer computes
constexpr microseconds kYieldForData{5000}; // data is on its way, and moves in passes
constexpr microseconds kLongestSleep{1000};
constexpr microseconds kShortestSleep{10};
// The engine's own thread gives way to the computation it runs beside.
constexpr microseconds kShortestPause{20}, kLongestPause{200};
constexpr microseconds kStayAwake{2000}; // starts in that time need not wake it

constexpr int64_t kMostFreeBytes = int64_t{32} << 20;

} // namespace

Engine::Engine(std::unique_ptr<Transport> transport, const MessageOptions& options)
    : transport_(std::move(transport)), options_(options), rank_(transport_->rank()),
      size_(transport_->size()) {
  listen();
  thread_ = std::thread([this] { background(); });
}

Engine::~Engine() {
  close();
}

void Engine::close() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    work_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(mutex_);
  transport_->close(all_left_); // messages_ stay, and with them what it may still read
}

// Starting and waiting.

void Engine::start(const OperationPtr& operation) {
  const Lock lock(mutex_);
  operation->number = ++operation->lane.num_operations;
  operation->arrived.assign(operation->members.size(), 0);
  operation->arrived[static_cast<size_t>(operation->member)] = 1;
  if (const std::string reason = reason_to_leave(*operation); !reason.empty())
    throw CommError(reason);
  pending_.insert(operation);
  operation->lane.queue.push_back(operation);
  if (operation->lane.queue.size() == 1) run_lane(operation->lane);
  if (asleep_) work_.notify_one();
}

std::string Engine::reason_to_leave(const Operation& operation) const {
  if (!broken_.empty()) return fmt::format("{}: {}", operation.title(), broken_);
  if (!in_run_ || operation.group->run != run_)
    return fmt::format("{}: the run of this group has ended", operation.title());
  if (first_failed_ < 0) return "";
  return fmt::format("rank {} left {} because rank {} of {} failed: {}", rank_, operation.title(),
                     first_failed_, size_,
                     runs_.at(run_).outcomes[static_cast<size_t>(first_failed_)]->failure.sentence);
}

void Engine::wait(const OperationPtr& operation) {
  Lock lock(mutex_);
  if (!operation->finished()) drive(lock, [&] { return operation->finished(); });
  if (operation->state == Operation::State::kFailed) throw CommError(operation->error);
}

bool Engine::done(const OperationPtr& operation) {
  const Lock lock(mutex_);
  if (!operation->finished()) pass();
  return operation->finished();
}

void Engine::drive(Lock& lock, const std::function<bool()>& until,
                   steady_clock::time_point deadline) {
  const bool limited = deadline != steady_clock::time_point{};
  ++num_waiting_;
  while (!until()) {
    if (limited && steady_clock::now() > deadline) break;
    if (someone_drives_) {
      changed_.wait(lock);
      continue;
    }
    someone_drives_ = true;
    auto last_progress = steady_clock::now();
    while (!until()) {
      const bool progress = pass();
      const auto now = steady_clock::now();
      if (limited && now > deadline) break;
      if (progress) {
        last_progress = now;
        if (num_waiting_ > 1) changed_.notify_all();
        continue;
      }
      const auto waited = now - last_progress;
      const bool yield = waited < (num_in_transfer_ > 0 ? kYieldForData : kYieldForPeers);
      lock.unlock();
      if (yield)
        sched_yield();
      else
        transport_->pause(
            std::clamp<steady_clock::duration>(waited / 8, kShortestSleep, kLongestSleep));
      lock.lock();
    }
    someone_drives_ = false;
    changed_.notify_all();
    if (!pending_.empty()) work_.notify_one();
  }
  --num_waiting_;
}

void Engine::background() {
  pthread_setname_np(pthread_self(), "comm engine");
  prctl(PR_SET_TIMERSLACK, 1000UL); // ns; the default of 50 us is longer than most pauses
  at::get_num_threads();            // torch sets OpenMP's number when a thread first asks
  omp_set_num_threads(1);
  Lock lock(mutex_);
  auto last_progress = steady_clock::now();
  while (!stop_) {
    if (pending_.empty() && steady_clock::now() - last_progress > kStayAwake) {
      asleep_ = true;
      work_.wait(lock, [this] { return stop_ || !pending_.empty(); });
      asleep_ = false;
      last_progress = steady_clock::now();
    }
    if (!someone_drives_ && pass()) {
      last_progress = steady_clock::now();
      changed_.notify_all();
      lock.unlock();
      sched_yield();
      lock.lock();
      continue;
    }
    const auto waited = steady_clock::now() - last_progress;
    work_.wait_for(lock, someone_drives_ ? steady_clock::duration(kStayAwake)
                                         : std::clamp<steady_clock::duration>(
                                               waited / 4, kShortestPause, kLongestPause));
  }
}

void Engine::joined(Operation& operation) {
  operation.joined = true;
  ++num_in_transfer_;
}

// Lanes and operations.

void Engine::run_lane(Lane& lane) {
  while (!lane.queue.empty() && lane.queue.front()->state == Operation::State::kQueued) {
    const OperationPtr operation = lane.queue.front();
    operation->state = Operation::State::kRunning;
    operation->protocol = std::exchange(operation->make_protocol, {})(*operation);
    operation->protocol.start();
    if (operation->protocol.done()) resume(operation, {});
  }
}

void Engine::resume(const OperationPtr& operation, std::coroutine_handle<> where) {
  if (where) where.resume();
  if (!operation->protocol.done()) return;
  if (const std::exception_ptr error = operation->protocol.error())
    finish(*operation, Operation::State::kFailed, Failure::of(error).sentence);
  else
    finish(*operation, Operation::State::kDone, "");
}

void Engine::finish(Operation& operation, Operation::State state, std::string error) {
  const OperationPtr keep = operation.shared_from_this();
  Lane& lane = operation.lane;
  if (operation.joined) --num_in_transfer_;
  operation.state = state;
  operation.error = std::move(error);
  lane.queue.erase(std::find(lane.queue.begin(), lane.queue.end(), keep));
  pending_.erase(keep);
  if (state == Operation::State::kFailed)
    for (size_t i = 0; i < messages_.size(); ++i)
      if (messages_[i].open && messages_[i].operation == keep && messages_[i].receives)
        transport_->cancel(static_cast<int64_t>(i));
  if (operation.num_open_messages == 0) release(operation);
}

void Engine::release(Operation& operation) {
  operation.protocol = Protocol();
  operation.make_protocol = nullptr;
  operation.flights.clear();
  for (Buffer& buffer : operation.buffers) {
    if (free_bytes_ + buffer.bytes > kMostFreeBytes) continue;
    free_bytes_ += buffer.bytes;
    free_buffers_.push_back(std::move(buffer));
  }
  operation.buffers.clear();
  operation.tensors.clear();
}

Buffer Engine::take_buffer(int64_t bytes) {
  // The smallest that is large enough, unless most of it would lie idle.
  auto best = free_buffers_.end();
  for (auto it = free_buffers_.begin(); it != free_buffers_.end(); ++it)
    if (it->bytes >= bytes && it->bytes <= 2 * bytes &&
        (best == free_buffers_.end() || it->bytes < best->bytes))
      best = it;
  if (best == free_buffers_.end())
    return {std::unique_ptr<std::byte[]>(new std::byte[static_cast<size_t>(bytes)]), bytes};
  Buffer buffer = std::move(*best);
  *best = std::move(free_buffers_.back());
  free_buffers_.pop_back();
  free_bytes_ -= buffer.bytes;
  return buffer;
}

void Engine::fail_all() {
  const std::vector<OperationPtr> all(pending_.begin(), pending_.end());
  for (const OperationPtr& operation : all)
    finish(*operation, Operation::State::kFailed, reason_to_leave(*operation));
}

/// Called after a pass that found nothing: what a rank sent before it left has been received. One
/// that left because another failed is no finding: the notice of the one that failed is on its way.
void Engine::fail_those_that_wait_for_who_left() {
  if (!someone_left_ || !in_run_) return;
  const auto finished = [&](int rank) {
    const auto& outcome = runs_.at(run_).outcomes[static_cast<size_t>(rank)];
    return outcome && outcome->kind == Outcome::Kind::kFinished;
  };
  const std::vector<OperationPtr> all(pending_.begin(), pending_.end());
  for (const OperationPtr& operation : all) {
    if (operation->state != Operation::State::kRunning || operation->joined) continue;
    std::vector<int> waiting;
    int gone = -1;
    for (size_t i = 0; i < operation->members.size(); ++i)
      if (operation->arrived[i])
        waiting.push_back(operation->members[i]);
      else if (gone < 0 && finished(operation->members[i]))
        gone = operation->members[i];
    if (gone < 0) continue;
    finish(*operation, Operation::State::kFailed,
           fmt::format("rank {} finished while ranks {} wait in {}", gone, fmt::join(waiting, ", "),
                       operation->title()));
    run_lane(operation->lane);
  }
}

// Messages.

int64_t Engine::open_message(Message message) {
  message.open = true;
  if (message.operation) {
    ++message.flight->num_open;
    ++message.operation->num_open_messages;
  }
  if (free_ids_.empty()) {
    messages_.push_back(std::move(message));
    return static_cast<int64_t>(messages_.size()) - 1;
  }
  const int64_t id = free_ids_.back();
  free_ids_.pop_back();
  messages_[static_cast<size_t>(id)] = std::move(message);
  return id;
}

void Engine::post_send(Operation& operation, Flight& flight, int to, const void* data,
                       int64_t bytes, bool first) {
  const auto* from = static_cast<const std::byte*>(data);
  const int64_t limit = first ? bytes : options_.max_message_bytes;
  for (int64_t begin = 0; begin < bytes; begin += limit)
    transport_->send(
        operation.members[static_cast<size_t>(to)], operation.lane.send_tag, from + begin,
        std::min(bytes - begin, limit),
        open_message({.operation = operation.shared_from_this(), .flight = &flight, .member = to}));
}

void Engine::post_receive(Operation& operation, Flight& flight, int from, void* data, int64_t bytes,
                          bool first) {
  auto* to = static_cast<std::byte*>(data);
  const int64_t limit = first ? bytes : options_.max_message_bytes;
  for (int64_t begin = 0; begin < bytes; begin += limit)
    transport_->receive(operation.members[static_cast<size_t>(from)], operation.lane.receive_tag,
                        to + begin, std::min(bytes - begin, limit),
                        open_message({.operation = operation.shared_from_this(),
                                      .flight = &flight,
                                      .member = from,
                                      .receives = true,
                                      .first = first}));
}

bool Engine::pass() {
  if (!broken_.empty()) return false;
  try {
    return test_messages();
  } catch (const std::exception& error) { // the transport is of no more use
    broken_ = error.what();
    fail_all();
    return true;
  }
}

bool Engine::test_messages() {
  ended_.clear();
  transport_->test(ended_);
  if (ended_.empty()) {
    fail_those_that_wait_for_who_left();
    return false;
  }
  std::vector<std::pair<OperationPtr, std::coroutine_handle<>>> ready;
  for (const Transport::Completion& one : ended_) {
    Message& slot = messages_[static_cast<size_t>(one.id)];
    const Message message = std::exchange(slot, {});
    free_ids_.push_back(one.id);
    completed(message, one.error, ready);
  }
  for (const auto& [operation, where] : ready) {
    if (operation->state != Operation::State::kRunning) continue;
    resume(operation, where);
    run_lane(operation->lane);
  }
  return true;
}

void Engine::completed(const Message& message, const std::string& error,
                       std::vector<std::pair<OperationPtr, std::coroutine_handle<>>>& ready) {
  if (!message.operation) {
    if (!message.receives) {
      --saying_.num_open; // to one that has died too: the control channel tells
      return;
    }
    if (!error.empty()) raise<CommError>("cannot detect the end of a rank: {}", error);
    const Notice notice = heard_;
    listen();
    hear(notice);
    return;
  }
  Operation& operation = *message.operation;
  --operation.num_open_messages;
  if (operation.finished()) {
    if (operation.num_open_messages == 0) release(operation);
    return;
  }
  if (!error.empty()) {
    finish(operation, Operation::State::kFailed,
           fmt::format("{} failed: a message {} rank {}: {}", operation.title(),
                       message.receives ? "from" : "to",
                       operation.members[static_cast<size_t>(message.member)], error));
    run_lane(operation.lane);
    return;
  }
  if (message.first) operation.arrived[static_cast<size_t>(message.member)] = 1;
  if (--message.flight->num_open == 0 && message.flight->waiter)
    ready.emplace_back(message.operation, std::exchange(message.flight->waiter, {}));
}

int Engine::next_context() {
  const Lock lock(mutex_);
  return next_context_;
}

void Engine::contexts_used_up_to(int context) {
  const Lock lock(mutex_);
  const int most = transport_->largest_tag() / GroupState::kTagsPerContext;
  if (context >= most)
    raise<CommError>("more than {} groups were created, and the {} backend has no more tags", most,
                     transport());
  next_context_ = std::max(next_context_, context + 1);
}

} // namespace pentatron::comm::messages
