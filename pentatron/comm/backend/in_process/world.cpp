#include "pentatron/comm/backend/in_process/world.h"

#include "pentatron/base/error.h"

#include <fmt/ranges.h>

namespace pentatron::comm::in_process {

std::string Contribution::describe() const {
  if (!tensors) return call;
  return fmt::format("{} of {} [{}]", call, c10::toString(dtype), fmt::join(shape, ", "));
}

std::string Operation::waiting_ranks() const {
  std::vector<int> arrived;
  for (size_t i = 0; i < members.size(); ++i)
    if (contributions[i]) arrived.push_back(members[i]);
  return fmt::format("{}", fmt::join(arrived, ", "));
}

GroupState::GroupState(std::shared_ptr<World> world_, std::string name_, std::vector<int> members_)
    : world(std::move(world_)), name(std::move(name_)), members(std::move(members_)),
      num_collectives(members.size(), 0), streams(members.size()) {
  for (auto& stream : streams) stream = std::make_shared<Stream>();
}

GroupState::~GroupState() {
  std::vector<std::deque<Batch>> rest; // destroyed after the lock is released
  const std::lock_guard lock(world->mutex());
  for (const std::shared_ptr<Stream>& stream : streams)
    rest.push_back(std::exchange(stream->queued, {}));
}

namespace {

/// What `b` does differently from `a`, or nothing.
std::string mismatch(const Operation& operation, int a, int b) {
  const Contribution& first = *operation.contributions[a];
  const Contribution& second = *operation.contributions[b];
  if (first.call == second.call && first.dtype == second.dtype && first.shape == second.shape)
    return "";
  return fmt::format("{} differs between ranks: rank {} calls {}, rank {} calls {}",
                     operation.title, operation.members[a], first.describe(), operation.members[b],
                     second.describe());
}

} // namespace

std::vector<OperationPtr> World::start(GroupState& group, int self, std::vector<Start> starts) {
  Batch batch{group.weak_from_this(), std::move(starts), {}};
  {
    const std::lock_guard lock(mutex_);
    for (const Start& start : batch.starts) batch.operations.push_back(open(group, start));
    if (order_ == Order::kStreams) {
      Stream& stream = *group.streams[self];
      for (size_t i = 0; i < batch.starts.size(); ++i) {
        Operation& operation = *batch.operations[i];
        operation.streams.resize(operation.members.size());
        operation.streams[batch.starts[i].member] = group.streams[self];
      }
      if (stream.under_way > 0) {
        std::vector<OperationPtr> operations = batch.operations;
        stream.queued.push_back(std::move(batch));
        return operations;
      }
      stream.under_way = batch.operations.size();
    }
  }
  std::vector<OperationPtr> operations = batch.operations;
  arrive(std::move(batch));
  return operations;
}

OperationPtr World::open(GroupState& group, const Start& start) {
  auto [slot, created] = group.open.try_emplace(start.key);
  if (created) {
    slot->second = std::make_shared<Operation>();
    slot->second->title = fmt::format("{} of group {}", start.title, group.name);
    slot->second->contributions.resize(start.members.size());
    slot->second->members = start.members;
  }
  throw_if_aborted(*slot->second, start.members[start.member]);
  return slot->second;
}

void World::arrive(Batch batch) {
  const std::shared_ptr<GroupState> group = batch.group.lock();
  if (!group) return; // all its ranks have left
  for (size_t i = 0; i < batch.starts.size(); ++i)
    arrive(*group, batch.operations[i], std::move(batch.starts[i]));
}

void World::arrive(GroupState& group, const OperationPtr& operation, Start start) {
  const int member = start.member;
  {
    const std::lock_guard lock(mutex_);
    operation->contributions[member] =
        std::make_unique<Contribution>(std::move(start.contribution));
    const bool complete = ++operation->num_arrived == static_cast<int>(operation->members.size());
    if (complete) group.open.erase(start.key);
    if (operation->state == Operation::State::kOpen && operation->num_arrived > 1) {
      int other = 0;
      while (other == member || !operation->contributions[other]) ++other;
      if (std::string error = mismatch(*operation, other, member); !error.empty())
        fail(*operation, std::move(error));
    }
    if (operation->state == Operation::State::kOpen && complete)
      if (std::string error = start.plan(*operation); !error.empty())
        fail(*operation, std::move(error));
    if (operation->state == Operation::State::kFailed) throw CommError(operation->error);
    if (!complete) return;
    operation->unfinished_tasks = operation->num_tasks;
    operation->state = Operation::State::kRunning;
    if (operation->num_tasks > 1) wake_members(*operation);
  }
  if (operation->num_tasks == 0) complete(*operation, "");
  run_tasks(operation);
}

void World::run_tasks(const OperationPtr& operation) {
  int64_t finished = 0;
  std::string error;
  while (true) {
    const int64_t task = operation->next_task.fetch_add(1, std::memory_order_relaxed);
    if (task >= operation->num_tasks) break;
    try {
      operation->task(task);
    } catch (const std::exception& exception) {
      error = exception.what();
    }
    ++finished;
    if (!error.empty()) break;
  }
  if (!error.empty()) {
    // The tasks left are worthless now, and who waits must not wait for them.
    const int64_t next = operation->next_task.exchange(operation->num_tasks);
    finished += std::max<int64_t>(0, operation->num_tasks - next);
    std::lock_guard lock(mutex_);
    fail(*operation, fmt::format("{} failed: {}", operation->title, error));
  }
  if (finished > 0 && operation->unfinished_tasks.fetch_sub(finished) == finished)
    complete(*operation, error);
}

void World::complete(Operation& operation, const std::string& error) {
  {
    // Destroyed without the lock, and before anyone goes on: who is done holds no memory here.
    std::vector<std::unique_ptr<Contribution>> contributions;
    Operation::Task task;
    const std::lock_guard lock(mutex_);
    contributions.swap(operation.contributions);
    task.swap(operation.task);
  }
  std::vector<Batch> next;
  {
    const std::lock_guard lock(mutex_);
    if (error.empty() && operation.state == Operation::State::kRunning)
      operation.state = Operation::State::kDone;
    wake_members(operation);
    next = leave_streams(operation);
  }
  for (Batch& batch : next) arrive(std::move(batch));
}

std::vector<Batch> World::leave_streams(Operation& operation) {
  std::vector<Batch> next;
  for (const std::shared_ptr<Stream>& stream : operation.streams) {
    if (!stream || --stream->under_way > 0 || stream->queued.empty()) continue;
    next.push_back(std::move(stream->queued.front()));
    stream->queued.pop_front();
    stream->under_way = next.back().operations.size();
  }
  return next;
}

void World::wait(const OperationPtr& operation, int member) {
  std::unique_lock lock(mutex_);
  const int world_rank = operation->members[member];
  Rank& self = ranks_[world_rank];
  while (operation->state != Operation::State::kDone) {
    if (operation->state == Operation::State::kFailed) throw CommError(operation->error);
    throw_if_aborted(*operation, world_rank);
    if (operation->state == Operation::State::kRunning) {
      if (operation->next_task.load(std::memory_order_relaxed) < operation->num_tasks) {
        lock.unlock();
        run_tasks(operation);
        lock.lock();
        continue;
      }
    } else if (const int gone = absent_and_finished(*operation); gone >= 0) {
      fail(*operation, fmt::format("rank {} finished while ranks {} wait in {}", gone,
                                   operation->waiting_ranks(), operation->title));
      continue;
    }
    self.waits_for = operation.get();
    if (const std::string error = deadlock(); !error.empty()) {
      for (Rank& rank : ranks_)
        if (rank.waits_for) fail(const_cast<Operation&>(*rank.waits_for), error);
    } else {
      self.wake.wait(lock);
    }
    self.waits_for = nullptr;
  }
}

bool World::done(const OperationPtr& operation) {
  std::lock_guard lock(mutex_);
  return operation->state == Operation::State::kDone ||
         operation->state == Operation::State::kFailed || failed_rank_ >= 0;
}

void World::abort(int rank, std::exception_ptr reason, const std::string& sentence) {
  std::lock_guard lock(mutex_);
  if (failed_rank_ < 0) {
    failed_rank_ = rank;
    reason_ = std::move(reason);
    failure_ = sentence;
  }
  ranks_[rank].finished = true;
  for (Rank& other : ranks_) other.wake.notify_all();
}

void World::finish(int rank) {
  std::lock_guard lock(mutex_);
  ranks_[rank].finished = true;
  for (Rank& other : ranks_) other.wake.notify_all();
}

void World::throw_if_aborted(const Operation& operation, int world_rank) const {
  if (failed_rank_ < 0) return;
  raise<CommError>("rank {} left {} because rank {} of {} failed: {}", world_rank, operation.title,
                   failed_rank_, ranks_.size(), failure_);
}

void World::fail(Operation& operation, std::string error) {
  if (operation.state == Operation::State::kFailed) return;
  operation.state = Operation::State::kFailed;
  operation.error = std::move(error);
  wake_members(operation);
}

void World::wake_members(const Operation& operation) {
  for (const int rank : operation.members) ranks_[rank].wake.notify_all();
}

int World::absent_and_finished(const Operation& operation) const {
  for (size_t i = 0; i < operation.members.size(); ++i)
    if (!operation.contributions[i] && ranks_[operation.members[i]].finished)
      return operation.members[i];
  return -1;
}

std::string World::deadlock() const {
  if (order_ == Order::kStreams) return "";
  std::string waits;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].finished) continue;
    const Operation* operation = ranks_[i].waits_for;
    if (!operation || operation->state != Operation::State::kOpen ||
        absent_and_finished(*operation) >= 0)
      return "";
    waits += fmt::format("{}rank {} in {}", waits.empty() ? "" : ", ", i, operation->title);
  }
  return "ranks wait for each other: " + waits;
}

} // namespace pentatron::comm::in_process
