#include "pentatron/parallel/pipeline/schedule/check.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/parallel/pipeline/schedule/rendezvous.h"
#include "pentatron/parallel/pipeline/schedule/text.h"

namespace pentatron::pipeline {
namespace {

/// A result that one stage makes for its neighbour.
struct Data {
  Payload payload;
  int stage; // that made it
  int microbatch;
  bool operator==(const Data&) const = default;
};

std::string describe(const Data& data) {
  return fmt::format("{} of stage {}, microbatch {}",
                     data.payload == Payload::kActivation ? "the activation" : "the input gradient",
                     data.stage, data.microbatch);
}

enum class Posted : unsigned char { kNo, kYes, kUsed };

/// What has happened to a (stage, microbatch).
struct Cell {
  bool forward = false;
  bool input_gradient = false;
  bool weight_gradient = false;
  bool has_output = false;                       // made and not freed
  bool has_gradient = false;                     // of the stage's input: made and not handed on
  Posted posted[2] = {Posted::kNo, Posted::kNo}; // by Payload
  int place[2] = {0, 0};                         // of the posted receive in its queue, by Payload
  int from[2] = {0, 0};                          // rank of that queue, by Payload
};

struct Queue {
  std::vector<Data> sent;
  int posted = 0;
};

/// Why a step does not complete: an error with its sentence, or data that is waited for.
struct Stop {
  std::string error;
  std::optional<Data> awaits;
};

class Machine {
 public:
  Machine(const Schedule& schedule, Purpose purpose)
      : s_(schedule), training_(purpose == Purpose::kTraining), next_(schedule.num_ranks),
        stops_(schedule.num_ranks), live_(schedule.num_ranks), peaks_(schedule.num_ranks),
        cells_(static_cast<size_t>(schedule.num_stages) * schedule.num_microbatches) {}

  Verdict run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < s_.num_ranks; ++rank) moved = advance(rank) || moved;
    }
    Verdict verdict = judge();
    verdict.peaks = std::move(peaks_);
    return verdict;
  }

 private:
  bool advance(int rank) {
    if (stops_[rank] && !stops_[rank]->error.empty()) return false;
    const std::vector<Action>& steps = s_.actions[rank];
    bool moved = false;
    while (next_[rank] < steps.size()) {
      stops_[rank] = step(rank, steps[next_[rank]]);
      if (stops_[rank]) break;
      ++next_[rank];
      moved = true;
    }
    return moved;
  }

  std::optional<Stop> step(int rank, const Action& action) {
    if (is_compute(action.kind)) return compute(rank, action);
    if (!s_.lowered) return error("it belongs to a lowered schedule, and this one is not");
    if (auto stop = misplaced(rank, action.stage)) return stop;
    if (auto stop = no_microbatch(action.microbatch)) return stop;
    Cell& here = cell(action.stage, action.microbatch);
    switch (action.kind) {
    case ActionKind::kSend:
      return send(rank, action, here);
    case ActionKind::kRecv:
      return receive(rank, action, here);
    default: // kFree
      if (!here.has_output) return error("there is no output to free");
      here.has_output = false;
      return {};
    }
  }

  std::optional<Stop> send(int rank, const Action& action, Cell& here) {
    if (auto stop = bad_peer(rank, action.peer)) return stop;
    if (action.payload == Payload::kActivation && !here.has_output) {
      return error("there is no output to send");
    }
    if (action.payload == Payload::kGradient && !std::exchange(here.has_gradient, false)) {
      return error("there is no input gradient to send");
    }
    queues_[{rank, action.peer}].sent.push_back({action.payload, action.stage, action.microbatch});
    return {};
  }

  std::optional<Stop> receive(int rank, const Action& action, Cell& here) {
    if (auto stop = bad_peer(rank, action.peer)) return stop;
    const int payload = static_cast<int>(action.payload);
    if (here.posted[payload] != Posted::kNo) return error("it is received twice");
    here.posted[payload] = Posted::kYes;
    here.from[payload] = action.peer;
    here.place[payload] = queues_[{action.peer, rank}].posted++;
    return {};
  }

  std::optional<Stop> compute(int rank, const Action& action) {
    const Passes passes(action);
    for (const Pass& pass : passes) {
      if (auto stop = misplaced(rank, pass.stage)) return stop;
      if (auto stop = no_microbatch(pass.microbatch)) return stop;
      if (auto stop = out_of_order(pass)) return stop;
    }
    for (const Pass& pass : passes) {
      if (auto stop = input_missing(rank, pass)) return stop;
    }
    for (const Pass& pass : passes) take_input(rank, pass);
    for (const Pass& pass : passes) {
      finish(pass);
      count(rank, pass);
    }
    return {};
  }

  /// What the rank itself knows to be wrong.
  std::optional<Stop> out_of_order(const Pass& pass) {
    const Cell& here = cell(pass.stage, pass.microbatch);
    if (!training_ && pass.kind != ActionKind::kForward) {
      return error("an evaluation has no backward passes");
    }
    if (pass.kind == ActionKind::kBackwardWeight) {
      if (!here.input_gradient) return error("its input gradient has not run on this rank");
      if (here.weight_gradient) return error("its weight gradient has run already");
      return {};
    }
    if (pass.kind == ActionKind::kForward) {
      if (here.forward) return error("its forward has run already");
    } else {
      if (!here.forward) return error("its forward has not run before it");
      if (here.input_gradient) return error("its backward has run already");
    }
    const std::optional<Data> input = input_of(pass);
    if (!input) return {};
    if (s_.rank_of_stage[input->stage] == s_.rank_of_stage[pass.stage]) {
      return has(*input) ? std::optional<Stop>() : error(describe(*input) + " is not there");
    }
    if (s_.lowered && here.posted[static_cast<int>(input->payload)] == Posted::kNo) {
      return error("no receive was posted for " + describe(*input));
    }
    return {};
  }

  /// What depends on other ranks.
  std::optional<Stop> input_missing(int rank, const Pass& pass) {
    const std::optional<Data> input = input_of(pass);
    if (!input || s_.rank_of_stage[input->stage] == s_.rank_of_stage[pass.stage]) return {};
    if (!s_.lowered) return has(*input) ? std::optional<Stop>() : Stop{{}, *input};
    const Cell& here = cell(pass.stage, pass.microbatch);
    const int payload = static_cast<int>(input->payload);
    const Queue& queue = queues_[{here.from[payload], rank}];
    if (std::ssize(queue.sent) <= here.place[payload]) return Stop{{}, *input};
    const Data& message = queue.sent[here.place[payload]];
    if (message != *input) {
      return error(fmt::format("the receive for {} gets {}", describe(*input), describe(message)));
    }
    return {};
  }

  void take_input(int rank, const Pass& pass) {
    const std::optional<Data> input = input_of(pass);
    if (!input || !s_.lowered) return;
    if (s_.rank_of_stage[input->stage] == rank) {
      if (input->payload == Payload::kGradient)
        cell(input->stage, pass.microbatch).has_gradient = false;
    } else {
      cell(pass.stage, pass.microbatch).posted[static_cast<int>(input->payload)] = Posted::kUsed;
    }
  }

  void finish(const Pass& pass) {
    Cell& here = cell(pass.stage, pass.microbatch);
    if (pass.kind == ActionKind::kForward) {
      here.forward = here.has_output = true;
      return;
    }
    if (makes_input_gradient(pass.kind)) {
      here.input_gradient = true;
      here.has_gradient = !s_.is_first(pass.stage);
    }
    if (makes_weight_gradient(pass.kind)) here.weight_gradient = true;
  }

  void count(int rank, const Pass& pass) {
    Peak& live = live_[rank];
    if (pass.kind == ActionKind::kForward) ++live.live;
    if (makes_weight_gradient(pass.kind)) --live.live;
    if (pass.kind == ActionKind::kBackwardInput) ++live.deferred;
    if (pass.kind == ActionKind::kBackwardWeight) --live.deferred;
    peaks_[rank].live = std::max(peaks_[rank].live, live.live);
    peaks_[rank].deferred = std::max(peaks_[rank].deferred, live.deferred);
  }

  Verdict judge() const {
    for (int rank = 0; rank < s_.num_ranks; ++rank) {
      if (stops_[rank] && !stops_[rank]->error.empty()) {
        return {Verdict::Kind::kBroken, at(rank) + ": " + stops_[rank]->error, {}};
      }
    }
    if (std::ranges::any_of(stops_, [](const auto& stop) { return stop.has_value(); })) {
      return {Verdict::Kind::kDeadlock, deadlock(), {}};
    }
    std::string problem = left_over();
    const auto kind = problem.empty() ? Verdict::Kind::kOk : Verdict::Kind::kBroken;
    return {kind, std::move(problem), {}};
  }

  /// Names the cause where there is one: data that nobody will make or send.
  std::string deadlock() const {
    std::string first;
    for (int rank = 0; rank < s_.num_ranks; ++rank) {
      if (!stops_[rank]) continue;
      const Data& data = *stops_[rank]->awaits;
      const int maker = s_.rank_of_stage[data.stage];
      const std::string wait = fmt::format("{} waits for {}", at(rank), describe(data));
      if (!stops_[maker]) {
        return fmt::format("{}, which rank {} has {} when it is done", wait, maker,
                           has(data) ? "not sent here" : "not made");
      }
      if (first.empty()) first = wait + ", while " + at(maker) + " waits itself";
    }
    return first;
  }

  std::string left_over() const {
    for (int stage = 0; stage < s_.num_stages; ++stage) {
      for (int microbatch = 0; microbatch < s_.num_microbatches; ++microbatch) {
        const std::string what = left_over(stage, microbatch);
        if (!what.empty()) {
          return fmt::format("stage {}, microbatch {}: {}", stage, microbatch, what);
        }
      }
    }
    if (!s_.lowered) return {};
    for (const auto& [pair, queue] : queues_) {
      if (std::ssize(queue.sent) > queue.posted) {
        return fmt::format("rank {} never receives {}, which rank {} sends", pair.second,
                           describe(queue.sent[queue.posted]), pair.first);
      }
    }
    return {};
  }

  std::string left_over(int stage, int microbatch) const {
    const Cell& here = cell(stage, microbatch);
    if (!here.forward) return "its forward is missing";
    if (training_ && !here.input_gradient) return "its backward is missing";
    if (training_ && !here.weight_gradient) return "its weight gradient is missing";
    if (!s_.lowered) return {};
    if (here.has_output) return "its output is never freed";
    if (here.has_gradient) return "its input gradient is never handed on";
    for (const Posted posted : here.posted) {
      if (posted == Posted::kYes) return "what is received for it is never used";
    }
    return {};
  }

  std::string at(int rank) const {
    return fmt::format("rank {}, action {} ({})", rank, next_[rank],
                       to_text(s_.actions[rank][next_[rank]]));
  }

  static std::optional<Stop> error(std::string sentence) { return Stop{std::move(sentence), {}}; }

  std::optional<Stop> misplaced(int rank, int stage) const {
    if (stage < 0 || stage >= s_.num_stages) {
      return error(fmt::format("there is no stage {} of {}", stage, s_.num_stages));
    }
    if (s_.rank_of_stage[stage] != rank) {
      return error(fmt::format("stage {} is on rank {}", stage, s_.rank_of_stage[stage]));
    }
    return {};
  }

  std::optional<Stop> no_microbatch(int microbatch) const {
    if (microbatch >= 0 && microbatch < s_.num_microbatches) return {};
    return error(fmt::format("there is no microbatch {} of {}", microbatch, s_.num_microbatches));
  }

  std::optional<Stop> bad_peer(int rank, int peer) const {
    if (peer >= 0 && peer < s_.num_ranks && peer != rank) return {};
    return error(fmt::format("rank {} cannot be its peer", peer));
  }

  std::optional<Data> input_of(const Pass& pass) const {
    const bool forward = pass.kind == ActionKind::kForward;
    if (pass.kind == ActionKind::kBackwardWeight ||
        (forward ? s_.is_first(pass.stage) : s_.is_last(pass.stage))) {
      return {};
    }
    return Data{forward ? Payload::kActivation : Payload::kGradient,
                pass.stage + (forward ? -1 : 1), pass.microbatch};
  }

  /// Whether the data is with the rank that made it.
  bool has(const Data& data) const {
    const Cell& maker = cell(data.stage, data.microbatch);
    if (data.payload == Payload::kActivation) return s_.lowered ? maker.has_output : maker.forward;
    return s_.lowered ? maker.has_gradient : maker.input_gradient;
  }

  Cell& cell(int stage, int microbatch) {
    return cells_[static_cast<size_t>(stage) * s_.num_microbatches + microbatch];
  }
  const Cell& cell(int stage, int microbatch) const {
    return const_cast<Machine*>(this)->cell(stage, microbatch);
  }

  const Schedule& s_;
  const bool training_;
  std::vector<size_t> next_;
  std::vector<std::optional<Stop>> stops_;
  std::vector<Peak> live_, peaks_;
  std::vector<Cell> cells_;                     // by (stage, microbatch)
  std::map<std::pair<int, int>, Queue> queues_; // by (sender, receiver)
};

/// What is wrong with the sizes alone.
std::string malformed(const Schedule& s) {
  if (s.num_ranks < 1 || s.num_stages < 1 || s.num_microbatches < 1) {
    return fmt::format("{} ranks, {} stages and {} microbatches are no schedule", s.num_ranks,
                       s.num_stages, s.num_microbatches);
  }
  if (std::ssize(s.actions) != s.num_ranks || std::ssize(s.rank_of_stage) != s.num_stages) {
    return fmt::format("there are actions for {} of {} ranks and ranks for {} of {} stages",
                       s.actions.size(), s.num_ranks, s.rank_of_stage.size(), s.num_stages);
  }
  for (int stage = 0; stage < s.num_stages; ++stage) {
    if (s.rank_of_stage[stage] < 0 || s.rank_of_stage[stage] >= s.num_ranks) {
      return fmt::format("stage {} is on rank {} of {}", stage, s.rank_of_stage[stage],
                         s.num_ranks);
    }
  }
  int64_t actions = 0;
  for (const auto& steps : s.actions) actions += std::ssize(steps);
  if (int64_t{s.num_stages} * s.num_microbatches > actions) {
    return fmt::format("{} actions cannot run {} microbatches through {} stages", actions,
                       s.num_microbatches, s.num_stages);
  }
  return {};
}

} // namespace

Verdict check(const Schedule& schedule, Purpose purpose, Messages messages) {
  if (std::string problem = malformed(schedule); !problem.empty()) {
    return {Verdict::Kind::kBroken, std::move(problem), {}};
  }
  Verdict verdict = Machine(schedule, purpose).run();
  if (!verdict.ok() || !schedule.lowered || messages == Messages::kBuffered) return verdict;
  verdict.problem = rendezvous_deadlock(schedule, messages);
  if (!verdict.problem.empty()) verdict.kind = Verdict::Kind::kDeadlock;
  return verdict;
}

void require_valid(const Schedule& schedule) {
  const Verdict verdict = check(schedule, Purpose::kTraining, Messages::kChannels);
  if (!verdict.ok()) {
    raise<ConfigError>("the pipeline schedule {} cannot run: {}", schedule.name, verdict.problem);
  }
}

} // namespace pentatron::pipeline
