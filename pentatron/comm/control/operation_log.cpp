#include "pentatron/comm/control/operation_log.h"

#include "pentatron/base/error.h"

#include <algorithm>
#include <fmt/ranges.h>

namespace pentatron::comm::control {

std::string OperationStatus::describe(const std::string& group) const {
  const std::string what =
      is_transfer()
          ? fmt::format("send #{} from rank {} to rank {} in group {}", number, from, to, group)
          : fmt::format("{} #{} of group {}", call, number, group);
  return tensor.empty() ? what : what + " of " + tensor;
}

int OperationLog::add_group(std::string name, std::vector<int> ranks) {
  auto group = std::make_unique<Group>();
  group->name = std::move(name);
  group->sends.resize(ranks.size());
  group->receives.resize(ranks.size());
  group->ranks = std::move(ranks);
  const std::lock_guard lock(mutex_);
  group->ordinal =
      static_cast<int>(std::count_if(groups_.begin(), groups_.end(), [&](const auto& other) {
        return other->name == group->name && other->ranks == group->ranks;
      }));
  groups_.push_back(std::move(group));
  return static_cast<int>(groups_.size()) - 1;
}

OperationLog::Token OperationLog::begin(int group, const OperationStart& start) {
  const std::lock_guard lock(mutex_);
  return add(group, start, -1, -1, ++groups_[group]->collectives);
}

OperationLog::Token OperationLog::begin_transfer(int group, int from, int to,
                                                 const OperationStart& start) {
  const std::lock_guard lock(mutex_);
  Group& entry = *groups_[group];
  const bool sends = start.call[0] == 's';
  entry.self = sends ? from : to;
  return add(group, start, from, to, ++(sends ? entry.sends[to] : entry.receives[from]));
}

OperationLog::Token OperationLog::add(int group, const OperationStart& start, int from, int to,
                                      int64_t number) {
  Group& entry = *groups_[group];
  const int64_t serial = ++entry.serial;
  Record& record = entry.records[serial % kKept];
  record.start = start;
  record.from = from;
  record.to = to;
  record.number = number;
  record.serial = serial;
  record.state = OperationStatus::State::kOpen;
  return {group, serial};
}

OperationLog::Record* OperationLog::find(Token token) {
  if (token.group < 0) return nullptr;
  Record& record = groups_[token.group]->records[token.serial % kKept];
  return record.serial == token.serial ? &record : nullptr;
}

void OperationLog::wait(Token token) {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  Record* record = find(token);
  if (!record || record->state != OperationStatus::State::kOpen) return;
  record->state = OperationStatus::State::kWaiting;
  record->since = now;
}

void OperationLog::leave(Token token) {
  const std::lock_guard lock(mutex_);
  Record* record = find(token);
  if (record && record->state == OperationStatus::State::kWaiting)
    record->state = OperationStatus::State::kOpen;
}

void OperationLog::end(Token token) {
  const std::lock_guard lock(mutex_);
  Record* record = find(token);
  if (!record || record->state == OperationStatus::State::kDone) return;
  record->state = OperationStatus::State::kDone;
  last_finished_ = *record;
  last_finished_group_ = token.group;
}

void OperationLog::follow(const std::vector<Token>& tokens,
                          std::shared_ptr<DeviceOperation> operation) {
  const std::lock_guard lock(mutex_);
  Followed followed{std::move(operation), {}};
  for (const Token token : tokens)
    if (const Record* record = find(token)) followed.records.push_back(*record);
  if (!followed.records.empty()) groups_[tokens.front().group]->followed.push_back(followed);
}

void OperationLog::look(int index, Clock::time_point now) {
  Group& group = *groups_[index];
  const auto end = [&](const Followed& followed) {
    for (const Record& record : followed.records) {
      if (Record* kept = find({index, record.serial})) kept->state = OperationStatus::State::kDone;
      last_finished_ = record;
      last_finished_group_ = index;
    }
  };
  using Progress = DeviceOperation::Progress;
  while (!group.followed.empty()) {
    Followed& first = group.followed.front();
    const Progress progress = first.operation->progress();
    if (progress != Progress::kDone) {
      const auto state = progress == Progress::kQueued ? OperationStatus::State::kQueued
                                                       : OperationStatus::State::kWaiting;
      for (Record& record : first.records) {
        if (record.state != state) record.since = now;
        record.state = state;
        if (Record* kept = find({index, record.serial})) *kept = record;
      }
      return;
    }
    end(first);
    group.followed.pop_front();
  }
}

void OperationLog::add_device(int group, const std::shared_ptr<DeviceGroup>& device) {
  const std::lock_guard lock(mutex_);
  groups_[group]->device = device;
}

std::string OperationLog::device_error() {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  for (size_t index = 0; index < groups_.size(); ++index) {
    const std::shared_ptr<DeviceGroup> device = groups_[index]->device.lock();
    const std::string error = device ? device->error() : "";
    if (error.empty()) continue;
    look(static_cast<int>(index), now);
    const Group& group = *groups_[index];
    const std::string where =
        group.followed.empty()
            ? ""
            : " at " +
                  describe(group, group.followed.front().records.front(), now).describe(group.name);
    return fmt::format("the GPU communication of group {} failed{}: {}", group.name, where, error);
  }
  return "";
}

void OperationLog::abort_devices() {
  std::vector<std::shared_ptr<DeviceGroup>> devices;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& group : groups_)
      if (auto device = group->device.lock()) devices.push_back(std::move(device));
  }
  for (const auto& device : devices) device->abort();
}

void OperationLog::begin(const std::string& what) {
  const std::lock_guard lock(mutex_);
  ++num_works_;
  work_ = what;
  progress_ = Clock::now();
}

void OperationLog::progress() {
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  if (num_works_ > 0) progress_ = now;
}

void OperationLog::end() {
  const std::lock_guard lock(mutex_);
  if (--num_works_ == 0) work_.clear();
  progress_ = Clock::now();
}

void OperationLog::excuse(double seconds) {
  const auto gap =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  const std::lock_guard lock(mutex_);
  for (const auto& group : groups_) {
    for (Record& record : group->records)
      if (record.state == OperationStatus::State::kWaiting) record.since += gap;
    for (Followed& followed : group->followed)
      for (Record& record : followed.records) record.since += gap;
  }
  if (progress_ != Clock::time_point()) progress_ += gap;
}

OperationStatus OperationLog::describe(const Record& record, Clock::time_point now) {
  const OperationStart& start = record.start;
  OperationStatus status;
  status.from = record.from;
  status.to = record.to;
  status.number = record.number;
  status.call = start.call;
  if (start.root >= 0) status.call += fmt::format("(root {})", start.root);
  if (!start.note.empty()) status.call += " into " + start.note;
  if (start.dtype) {
    const int shown = std::min(start.num_dims, OperationStart::kMaxDims);
    status.tensor = fmt::format("{} [{}{}]", start.dtype,
                                fmt::join(start.dims.begin(), start.dims.begin() + shown, ", "),
                                shown < start.num_dims ? ", ..." : "");
  }
  status.comparable = start.comparable;
  status.state = record.state;
  if (record.state == OperationStatus::State::kWaiting)
    status.waiting_s = std::chrono::duration<double>(now - record.since).count();
  return status;
}

OperationStatus OperationLog::describe(const Group& group, const Record& record,
                                       Clock::time_point now) {
  OperationStatus operation = describe(record, now);
  if (operation.is_transfer()) {
    operation.from = group.ranks[record.from];
    operation.to = group.ranks[record.to];
  }
  return operation;
}

GroupStatus OperationLog::describe(const Group& group, Clock::time_point now) {
  GroupStatus status;
  status.name = group.name;
  status.ranks = group.ranks;
  status.ordinal = group.ordinal;
  status.collectives = group.collectives;
  for (size_t peer = 0; peer < group.ranks.size(); ++peer) {
    if (group.sends[peer] > 0)
      status.transfers[{group.ranks[group.self], group.ranks[peer]}] = group.sends[peer];
    if (group.receives[peer] > 0)
      status.transfers[{group.ranks[peer], group.ranks[group.self]}] = group.receives[peer];
  }
  const int64_t first_kept = std::max<int64_t>(1, group.serial - kKept + 1);
  if (!group.followed.empty()) // a host may be far ahead of its GPU
    for (const Record& record : group.followed.front().records)
      if (record.serial < first_kept) status.operations.push_back(describe(group, record, now));
  for (int64_t serial = first_kept; serial <= group.serial; ++serial) {
    const Record& record = group.records[serial % kKept];
    const bool recent = serial > group.serial - kReported;
    const bool waits = record.state == OperationStatus::State::kWaiting ||
                       record.state == OperationStatus::State::kQueued;
    if (recent || waits) status.operations.push_back(describe(group, record, now));
  }
  return status;
}

RankStatus OperationLog::status() {
  const auto now = Clock::now();
  RankStatus status;
  const std::lock_guard lock(mutex_);
  for (size_t index = 0; index < groups_.size(); ++index) look(static_cast<int>(index), now);
  status.groups.reserve(groups_.size());
  for (const auto& group : groups_) status.groups.push_back(describe(*group, now));
  if (last_finished_group_ >= 0) {
    const Group& group = *groups_[last_finished_group_];
    status.last_finished = describe(group, last_finished_, now).describe(group.name);
  }
  status.work = work_;
  if (progress_ != Clock::time_point())
    status.progress_s = std::chrono::duration<double>(now - progress_).count();
  return status;
}

} // namespace pentatron::comm::control
