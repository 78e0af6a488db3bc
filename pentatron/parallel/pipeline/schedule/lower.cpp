#include "pentatron/parallel/pipeline/schedule/lower.h"

#include <algorithm>
#include <map>

#include "pentatron/base/error.h"

namespace pentatron::pipeline {
namespace {

/// A message on its way from one rank to another.
struct Message {
  Payload payload;
  int stage; // of the receiver
  int microbatch;
  auto operator<=>(const Message&) const = default;
};

/// Builds the lowered form. A "step" is the index of a computing action within its rank.
class Lowering {
 public:
  Lowering(const Schedule& schedule, const LowerOptions& options)
      : in_(schedule), options_(options), needed_(schedule.num_ranks),
        receives_(schedule.num_ranks) {}

  Schedule run() {
    validate();
    find_needs();
    place_receives();
    Schedule out = in_;
    out.lowered = true;
    for (int rank = 0; rank < in_.num_ranks; ++rank) out.actions[rank] = lower_rank(rank);
    return out;
  }

 private:
  void validate() const {
    if (in_.lowered) raise<ConfigError>("the schedule {} is lowered already", in_.name);
    const auto inside = [&](int stage, int rank) {
      return stage >= 0 && stage < in_.num_stages && in_.rank_of_stage[stage] == rank;
    };
    bool good =
        std::ssize(in_.actions) == in_.num_ranks && std::ssize(in_.rank_of_stage) == in_.num_stages;
    for (int rank = 0; good && rank < in_.num_ranks; ++rank) {
      for (const Action& action : in_.actions[rank]) {
        good = good && is_compute(action.kind);
        for (const Pass& pass : Passes(action)) good = good && inside(pass.stage, rank);
      }
    }
    if (!good) {
      raise<ConfigError>("the schedule {} has an action that is not a computation of its rank\n"
                         "  try: check(schedule), which names it",
                         in_.name);
    }
  }

  bool local(int a, int b) const { return in_.rank_of_stage[a] == in_.rank_of_stage[b]; }

  /// The message that a pass waits for, or gives: whether there is one.
  bool awaits(const Pass& pass, Message& message, int& from) const {
    if (pass.kind == ActionKind::kBackwardWeight) return false;
    const bool forward = pass.kind == ActionKind::kForward;
    if (forward ? in_.is_first(pass.stage) : in_.is_last(pass.stage)) return false;
    const int source = pass.stage + (forward ? -1 : 1);
    if (local(source, pass.stage)) return false;
    message = {forward ? Payload::kActivation : Payload::kGradient, pass.stage, pass.microbatch};
    from = in_.rank_of_stage[source];
    return true;
  }
  bool gives(const Pass& pass, Message& message, int& to) const {
    if (pass.kind == ActionKind::kBackwardWeight) return false;
    const bool forward = pass.kind == ActionKind::kForward;
    if (forward ? in_.is_last(pass.stage) : in_.is_first(pass.stage)) return false;
    const int target = pass.stage + (forward ? 1 : -1);
    if (local(target, pass.stage)) return false;
    message = {forward ? Payload::kActivation : Payload::kGradient, target, pass.microbatch};
    to = in_.rank_of_stage[target];
    return true;
  }

  void find_needs() {
    for (int rank = 0; rank < in_.num_ranks; ++rank) {
      for (int step = 0; step < std::ssize(in_.actions[rank]); ++step) {
        for (const Pass& pass : Passes(in_.actions[rank][step])) {
          Message message;
          int from;
          if (awaits(pass, message, from)) needed_[rank].try_emplace(message, step);
        }
      }
    }
  }

  /// The receives of each ordered pair in the order of the sends, each before the first step that
  /// needs it or one that was sent after it.
  void place_receives() {
    for (int rank = 0; rank < in_.num_ranks; ++rank) {
      std::map<int, std::vector<Message>> sent; // by receiver
      for (const Action& action : in_.actions[rank]) {
        for (const Pass& pass : Passes(action)) {
          Message message;
          int to;
          if (gives(pass, message, to)) sent[to].push_back(message);
        }
      }
      for (const auto& [to, messages] : sent) place_receives(rank, to, messages);
    }
    for (auto& receives : receives_) {
      std::ranges::stable_sort(receives, {}, &Receive::step);
    }
  }

  void place_receives(int from, int to, const std::vector<Message>& messages) {
    std::vector<Receive> placed;
    placed.reserve(messages.size());
    int step = static_cast<int>(in_.actions[to].size());
    for (size_t i = messages.size(); i-- > 0;) {
      const auto need = needed_[to].find(messages[i]);
      if (need == needed_[to].end()) {
        raise<ConfigError>(
            "the schedule {} never uses what stage {} sends for microbatch {}\n"
            "  try: check(schedule), which names what is missing",
            in_.name, messages[i].stage + (messages[i].payload == Payload::kActivation ? -1 : 1),
            messages[i].microbatch);
      }
      step = std::min(step, std::max(need->second - options_.prefetch, 0));
      placed.push_back({step,
                        {.kind = ActionKind::kRecv,
                         .stage = messages[i].stage,
                         .microbatch = messages[i].microbatch,
                         .peer = from,
                         .payload = messages[i].payload}});
    }
    receives_[to].insert(receives_[to].end(), placed.rbegin(), placed.rend());
  }

  std::vector<Action> lower_rank(int rank) const {
    const std::vector<Action>& steps = in_.actions[rank];
    std::vector<Action> out;
    auto receive = receives_[rank].begin();
    for (int step = 0; step < std::ssize(steps); ++step) {
      for (; receive != receives_[rank].end() && receive->step == step; ++receive) {
        out.push_back(receive->action);
      }
      out.push_back(steps[step]);
      for (const Pass& pass : Passes(steps[step])) add_send(pass, out);
      for (const Pass& pass : Passes(steps[step])) add_free(pass, out);
    }
    return out;
  }

  void add_send(const Pass& pass, std::vector<Action>& out) const {
    Message message;
    int to;
    if (!gives(pass, message, to)) return;
    out.push_back({.kind = ActionKind::kSend,
                   .stage = pass.stage,
                   .microbatch = pass.microbatch,
                   .peer = to,
                   .payload = message.payload});
  }

  void add_free(const Pass& pass, std::vector<Action>& out) const {
    if (pass.kind != ActionKind::kForward) return;
    const auto free = [&](int stage) {
      out.push_back({.kind = ActionKind::kFree, .stage = stage, .microbatch = pass.microbatch});
    };
    if (!in_.is_first(pass.stage) && local(pass.stage - 1, pass.stage)) free(pass.stage - 1);
    if (in_.is_last(pass.stage) || !local(pass.stage, pass.stage + 1)) free(pass.stage);
  }

  struct Receive {
    int step; // posted before this one
    Action action;
  };

  const Schedule& in_;
  const LowerOptions& options_;
  std::vector<std::map<Message, int>> needed_; // by rank: the step that waits for it
  std::vector<std::vector<Receive>> receives_; // by rank
};

} // namespace

Schedule lower(const Schedule& schedule, const LowerOptions& options) {
  return Lowering(schedule, options).run();
}

} // namespace pentatron::pipeline
