// The beginning and the end of runs: what ranks tell each other about how they left.
#include "pentatron/base/error.h"
#include "pentatron/comm/backend/messages/engine.h"

#include <cstring>

namespace pentatron::comm::messages {

using std::chrono::duration;
using std::chrono::steady_clock;

namespace {

constexpr int kNoticeTag = 0; // groups count their contexts from 1

} // namespace

std::shared_ptr<GroupState> Engine::begin_run() {
  const Lock lock(mutex_);
  if (!all_left_)
    raise<CommError>("a run of {} ranks was started before all ranks left the previous run", size_);
  runs_.erase(run_);
  ++run_;
  runs_[run_].outcomes.resize(static_cast<size_t>(size_)); // perhaps a faster rank has left already
  in_run_ = true;
  first_failed_ = -1;
  someone_left_ = false;
  Run& run = runs_[run_];
  for (int rank = 0; rank < size_; ++rank)
    if (const auto& outcome = run.outcomes[static_cast<size_t>(rank)]) {
      someone_left_ = true;
      if (outcome->kind == Outcome::Kind::kFailed && first_failed_ < 0) first_failed_ = rank;
    }
  std::vector<int> members(static_cast<size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) members[static_cast<size_t>(rank)] = rank;
  // All ranks have the same number here: they told each other theirs at the end of the last run.
  return std::make_shared<GroupState>("world", std::move(members), rank_, next_context_++, run_);
}

void Engine::drain() {
  Lock lock(mutex_);
  drive(lock, [this] { return pending_.empty(); });
}

bool Engine::aborted() {
  const Lock lock(mutex_);
  return first_failed_ >= 0;
}

std::optional<std::pair<int, Failure>> Engine::end_run(const Outcome& outcome) {
  Lock lock(mutex_);
  Notice& notice = said_;
  notice.run = run_;
  notice.rank = rank_;
  notice.largest_context = next_context_;
  notice.kind = outcome.kind;
  notice.failure = outcome.failure.kind;
  const size_t length = std::min(outcome.failure.sentence.size(), sizeof(notice.text) - 1);
  std::memcpy(notice.text, outcome.failure.sentence.data(), length);
  notice.text[length] = '\0';
  const auto bytes = static_cast<int64_t>(offsetof(Notice, text) + length + 1);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    ++saying_.num_open;
    transport_->send(rank, kNoticeTag, &notice, bytes,
                     open_message({.flight = &saying_, .member = rank}));
  }
  hear(notice);
  fail_all(); // only a rank that failed leaves anything

  const Run& run = runs_.at(run_);
  const auto left = [&] { return run.num_outcomes == size_ && saying_.num_open == 0; };
  drive(lock, [&] { return left() || first_failed_ >= 0 || !broken_.empty(); });
  drive(
      lock, [&] { return left() || !broken_.empty(); },
      steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(
                                duration<double>(options_.leave_timeout_s)));
  all_left_ = left();
  in_run_ = false;
  next_context_ = std::max(next_context_, run.largest_context);
  for (int rank = 0; rank < size_; ++rank)
    if (const auto& other = run.outcomes[static_cast<size_t>(rank)];
        other && other->kind == Outcome::Kind::kFailed)
      return std::pair{rank, other->failure};
  return std::nullopt;
}

void Engine::listen() {
  transport_->receive(Transport::kAnyRank, kNoticeTag, &heard_, sizeof(Notice),
                      open_message({.receives = true}));
}

void Engine::hear(const Notice& notice) {
  Run& run = runs_[notice.run];
  run.outcomes.resize(static_cast<size_t>(size_));
  run.outcomes[static_cast<size_t>(notice.rank)] =
      Outcome{notice.kind, {notice.failure, notice.text}};
  ++run.num_outcomes;
  run.largest_context = std::max(run.largest_context, notice.largest_context);
  if (notice.run != run_ || !in_run_) return;
  if (notice.rank != rank_) someone_left_ = true;
  if (notice.kind != Outcome::Kind::kFailed || first_failed_ >= 0) return;
  first_failed_ = notice.rank;
  if (notice.rank != rank_) fail_all();
}

} // namespace pentatron::comm::messages
