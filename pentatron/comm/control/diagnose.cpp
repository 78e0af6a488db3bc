#include "pentatron/comm/control/diagnose.h"

#include "pentatron/base/error.h"

#include <algorithm>
#include <fmt/ranges.h>
#include <functional>

namespace pentatron::comm::control {

namespace {

using State = OperationStatus::State;

/// An operation that a rank waits for.
struct Wait {
  int rank;
  const GroupStatus* group;
  const OperationStatus* operation;
  double seconds;
};

std::vector<Wait> waits_of(const std::vector<RankView>& ranks, int rank) {
  std::vector<Wait> result;
  const RankView& view = ranks[rank];
  if (view.finished) return result;
  for (const GroupStatus& group : view.status.groups)
    for (const OperationStatus& operation : group.operations)
      if (operation.state == State::kWaiting)
        result.push_back({rank, &group, &operation, operation.waiting_s});
  return result;
}

std::vector<int> participants(const Wait& wait) {
  if (wait.operation->is_transfer()) return {wait.operation->from, wait.operation->to};
  return wait.group->ranks;
}

const GroupStatus* find_group(const RankView& view, const GroupStatus& group) {
  const auto found = std::find_if(view.status.groups.begin(), view.status.groups.end(),
                                  [&](const GroupStatus& one) { return one.same_group(group); });
  return found == view.status.groups.end() ? nullptr : &*found;
}

/// Whether the rank has begun it but its GPU has not come to it.
bool is_queued(const RankView& view, const Wait& wait) {
  const GroupStatus* group = find_group(view, *wait.group);
  return group != nullptr && std::ranges::any_of(group->operations, [&](const auto& one) {
           return one.state == State::kQueued && one.same_key(*wait.operation);
         });
}

bool has_begun(const RankView& view, const Wait& wait) {
  const GroupStatus* group = find_group(view, *wait.group);
  if (!group || is_queued(view, wait)) return false;
  const OperationStatus& operation = *wait.operation;
  if (!operation.is_transfer()) return group->collectives >= operation.number;
  const auto begun = group->transfers.find({operation.from, operation.to});
  return begun != group->transfers.end() && begun->second >= operation.number;
}

/// Participants that have not begun what `wait` waits for.
std::vector<int> missing(const std::vector<RankView>& ranks, const Wait& wait) {
  std::vector<int> result;
  for (const int rank : participants(wait))
    if (rank != wait.rank && !has_begun(ranks[rank], wait)) result.push_back(rank);
  return result;
}

std::vector<int> waiting_in(const std::vector<RankView>& ranks, const Wait& wait) {
  std::vector<int> result;
  for (const int rank : participants(wait)) {
    for (const Wait& other : waits_of(ranks, rank))
      if (other.group->same_group(*wait.group) && other.operation->same_key(*wait.operation)) {
        result.push_back(rank);
        break;
      }
  }
  return result;
}

std::string call_text(const OperationStatus& operation) {
  return operation.tensor.empty() ? operation.call : operation.call + " of " + operation.tensor;
}

std::string disagreement(const GroupStatus& group, int a, const OperationStatus& first, int b,
                         const OperationStatus& second) {
  const bool transfer = first.is_transfer(); // its two ends have different calls
  const bool comparable = first.comparable && second.comparable;
  if ((transfer || first.call == second.call) && (!comparable || first.tensor == second.tensor))
    return "";
  const std::string title =
      transfer ? fmt::format("send #{} from rank {} to rank {} in group {}", first.number,
                             first.from, first.to, group.name)
               : fmt::format("{} #{} of group {}",
                             std::string_view(first.call).substr(0, first.call.find_first_of("( ")),
                             first.number, group.name);
  return fmt::format("{} differs between ranks: rank {} calls {}, rank {} calls {}", title, a,
                     call_text(first), b, call_text(second));
}

std::string seconds_text(double seconds) {
  return fmt::format("{:.{}f} s", seconds, seconds < 10 ? 1 : 0);
}

std::optional<Finding> find_mismatch(const std::vector<RankView>& ranks) {
  for (size_t a = 0; a < ranks.size(); ++a)
    for (const GroupStatus& group : ranks[a].status.groups)
      for (const int b : group.ranks) {
        if (b <= static_cast<int>(a)) continue;
        // In a large group, comparing with its first rank is enough.
        if (group.ranks.size() > 64 && static_cast<int>(a) != group.ranks.front()) break;
        const GroupStatus* other =
            b < static_cast<int>(ranks.size()) ? find_group(ranks[b], group) : nullptr;
        if (!other) continue;
        for (const OperationStatus& first : group.operations)
          for (const OperationStatus& second : other->operations) {
            if (!first.same_key(second)) continue;
            std::string text = disagreement(group, static_cast<int>(a), first, b, second);
            if (!text.empty()) return Finding{-1, std::move(text)};
          }
      }
  return std::nullopt;
}

std::string last_of(const RankView& view) {
  if (!view.status.work.empty())
    return fmt::format("works on {} and has made no progress for {}", view.status.work,
                       seconds_text(view.status.progress_s));
  return view.status.last_finished.empty() ? "has finished no operation yet"
                                           : "last finished " + view.status.last_finished;
}

/// Of a rank that tells no more: its heartbeat is older than what it did last.
std::string last_report_of(const RankView& view) {
  if (view.status.last_finished.empty()) return "";
  return fmt::format("; it had reported {} finished", view.status.last_finished);
}

std::optional<Finding> find_finished(const std::vector<RankView>& ranks) {
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (const Wait& wait : waits_of(ranks, static_cast<int>(rank)))
      for (const int absent : missing(ranks, wait))
        if (ranks[absent].finished) {
          const std::vector<int> waiting = waiting_in(ranks, wait);
          return Finding{absent, fmt::format("rank {} finished while {} wait{} in {}", absent,
                                             rank_list(waiting), waiting.size() == 1 ? "s" : "",
                                             wait.operation->describe(wait.group->name))};
        }
  return std::nullopt;
}

/// Whether the rank has told of progress in long work lately, so that others have waited for a
/// reason.
bool progresses(const RankView& view, double timeout_s) {
  return view.status.progress_s >= 0 && view.status.progress_s < timeout_s;
}

Finding not_arrived(const std::vector<RankView>& ranks, const Wait& wait,
                    const std::vector<int>& absent, double seconds) {
  const std::vector<int> waiting = waiting_in(ranks, wait);
  std::string text =
      fmt::format("{} {} not arrived at {} for {}; {} wait{}", rank_list(absent),
                  absent.size() == 1 ? "has" : "have", wait.operation->describe(wait.group->name),
                  seconds_text(seconds), rank_list(waiting), waiting.size() == 1 ? "s" : "");
  constexpr size_t kShown = 4;
  for (size_t i = 0; i < std::min(absent.size(), kShown); ++i) {
    const RankView& view = ranks[absent[i]];
    text +=
        fmt::format("; rank {} {}{}", absent[i],
                    is_queued(view, wait) ? "has it in its GPU's queue and " : "", last_of(view));
  }
  return {absent.front(), std::move(text)};
}

Finding each_other(const std::vector<Wait>& chain, int first) {
  std::string text = "ranks wait for each other: ";
  bool inside = false;
  for (const Wait& wait : chain) {
    if (!inside && wait.rank != first) continue;
    text += fmt::format("{}rank {} in {}", inside ? ", " : "", wait.rank,
                        wait.operation->describe(wait.group->name));
    inside = true;
  }
  return {-1, std::move(text)};
}

/// What keeps an operation from completing that all its ranks have begun; nothing if the last of
/// them came late, after long work.
std::optional<Finding> not_complete(const std::vector<RankView>& ranks, const Wait& wait,
                                    double timeout_s) {
  const std::vector<int> members = participants(wait);
  if (std::ranges::any_of(members, [&](int r) { return progresses(ranks[r], timeout_s); }))
    return std::nullopt;
  const std::vector<int> waiting = waiting_in(ranks, wait);
  return Finding{
      -1,
      fmt::format("{} is not complete after {}, although all its ranks have started it; {} wait{}",
                  wait.operation->describe(wait.group->name), seconds_text(wait.seconds),
                  rank_list(waiting), waiting.size() == 1 ? "s" : "")};
}

/// Follows from `wait` to what its missing ranks wait for, until a rank that waits for nothing.
/// Nothing if that one makes progress.
std::optional<Finding> follow(const std::vector<RankView>& ranks, const Wait& start,
                              double timeout_s) {
  std::vector<Wait> chain = {start};
  while (true) {
    const Wait& wait = chain.back();
    const std::vector<int> absent = missing(ranks, wait);
    if (absent.empty()) return not_complete(ranks, wait, timeout_s);
    // A rank that waits for nothing is the cause; otherwise go on with one that waits.
    std::optional<Wait> next;
    bool works = false;
    std::vector<int> stuck;
    for (const int rank : absent) {
      const std::vector<Wait> waits = waits_of(ranks, rank);
      if (waits.empty() && progresses(ranks[rank], timeout_s))
        works = true;
      else if (waits.empty())
        stuck.push_back(rank);
      for (const Wait& one : waits)
        if (!next || one.seconds > next->seconds) next = one;
    }
    if (!stuck.empty()) return not_arrived(ranks, wait, works ? stuck : absent, wait.seconds);
    if (works) return std::nullopt;
    for (const Wait& seen : chain)
      if (seen.rank == next->rank) return each_other(chain, seen.rank);
    chain.push_back(*next);
  }
}

} // namespace

std::string rank_list(const std::vector<int>& ranks) {
  constexpr size_t kShown = 16;
  if (ranks.size() == 1) return fmt::format("rank {}", ranks[0]);
  if (ranks.size() <= kShown) return fmt::format("ranks {}", fmt::join(ranks, ", "));
  return fmt::format("ranks {} and {} more", fmt::join(ranks.begin(), ranks.begin() + kShown, ", "),
                     ranks.size() - kShown);
}

std::optional<Finding> diagnose(const std::vector<RankView>& ranks, double timeout_s) {
  if (auto finding = find_mismatch(ranks)) return finding;
  if (auto finding = find_finished(ranks)) return finding;
  std::vector<Wait> long_ones;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (const Wait& wait : waits_of(ranks, static_cast<int>(rank)))
      if (wait.seconds >= timeout_s) long_ones.push_back(wait);
  std::ranges::stable_sort(long_ones, std::greater(), &Wait::seconds);
  for (const Wait& wait : long_ones)
    if (auto finding = follow(ranks, wait, timeout_s)) return finding;
  return std::nullopt;
}

std::string where_lost(const std::vector<RankView>& ranks, int lost) {
  // What others wait for is newer than what the lost rank last told.
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (static_cast<int>(rank) == lost) continue;
    for (const Wait& wait : waits_of(ranks, static_cast<int>(rank))) {
      const std::vector<int> members = participants(wait);
      if (std::find(members.begin(), members.end(), lost) == members.end()) continue;
      std::vector<int> waiting = waiting_in(ranks, wait);
      std::erase(waiting, lost);
      const std::string operation = wait.operation->describe(wait.group->name);
      return fmt::format(" at {}, where {} wait{}{}", operation, rank_list(waiting),
                         waiting.size() == 1 ? "s" : "",
                         has_begun(ranks[lost], wait) ? "" : last_report_of(ranks[lost]));
    }
  }
  const std::vector<Wait> own = waits_of(ranks, lost);
  if (!own.empty()) return " while in " + own.front().operation->describe(own.front().group->name);
  const std::string last = last_report_of(ranks[lost]);
  return last.empty() ? " before it had reported an operation" : last;
}

} // namespace pentatron::comm::control
