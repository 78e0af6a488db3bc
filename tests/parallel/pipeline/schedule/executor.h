/// Runs a schedule for real: a thread a rank, blocking first-in-first-out channels, and integers
/// in place of tensors. It knows the runtime's semantics and nothing of check(): what is wrong
/// shows as a lookup that finds nothing, a value that differs from the sequential computation's,
/// threads that all wait, or something left at the end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "pentatron/parallel/pipeline/schedule/check.h"
#include "pentatron/parallel/pipeline/schedule/schedule.h"
#include "tests/parallel/pipeline/schedule/sequential.h"
#include "tests/parallel/pipeline/schedule/world.h"

namespace pentatron::pipeline::execution {

using Kind = Verdict::Kind;

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Rank {
 public:
  Rank(const Schedule& s, const Sequential& expected, World& world, int rank)
      : s_(s), expected_(expected), world_(world), rank_(rank) {}

  void run() {
    for (const Action& action : s_.actions[rank_]) step(action);
  }

  Peak peak() const { return peak_; }

  /// After every rank has come to its end.
  void finish(Purpose purpose) {
    if (purpose == Purpose::kEvaluation) {
      need(std::ssize(started_) == std::ssize(s_.stages_of(rank_)) * s_.num_microbatches, "no F");
      return finish_messages();
    }
    for (const int stage : s_.stages_of(rank_)) {
      need(weight_[stage] == expected_.weight[stage], "wrong weight gradients");
      need(weights_done_[stage] == s_.num_microbatches, "weight gradients are missing");
    }
    need(saved_.empty() && deferred_.empty(), "activations are left");
    finish_messages();
  }

 private:
  void finish_messages() {
    need(!s_.lowered || outputs_.empty(), "outputs are left");
    need(!s_.lowered || gradients_.empty(), "gradients are left");
    for (const auto& [key, handle] : handles_) need(handle.used, "an unused receive");
    for (int from = 0; from < s_.num_ranks; ++from) {
      need(world_.sent(from, rank_) <= posted_[from], "a message is never received");
    }
  }

  using Cell = std::pair<int, int>; // stage, microbatch
  struct Handle {
    int from;
    size_t place;
    bool used = false;
  };
  struct Saved {
    Value in, grad;
  };

  static void need(bool condition, const char* what) {
    if (!condition) throw Failure(what);
  }
  void mine(int stage) const {
    need(stage >= 0 && stage < s_.num_stages && s_.rank_of_stage[stage] == rank_, "not my stage");
  }
  void exists(int mb) const { need(mb >= 0 && mb < s_.num_microbatches, "no such microbatch"); }

  void step(const Action& a) {
    if (is_compute(a.kind)) return compute(a);
    need(s_.lowered, "not lowered");
    mine(a.stage);
    const Cell cell{a.stage, a.microbatch};
    switch (a.kind) {
    case ActionKind::kFree:
      exists(a.microbatch);
      need(outputs_.erase(cell) == 1, "nothing to free");
      break;
    case ActionKind::kSend: {
      exists(a.microbatch);
      need(a.peer >= 0 && a.peer < s_.num_ranks && a.peer != rank_, "no such peer");
      auto& from = a.payload == Payload::kActivation ? outputs_ : gradients_;
      const auto found = from.find(cell);
      need(found != from.end(), "nothing to send");
      world_.send(rank_, a.peer, found->second);
      if (a.payload == Payload::kGradient) from.erase(found);
      break;
    }
    default: // kRecv
      exists(a.microbatch);
      need(a.peer >= 0 && a.peer < s_.num_ranks && a.peer != rank_, "no such peer");
      need(handles_.try_emplace({a.payload, a.stage, a.microbatch}, Handle{a.peer, posted_[a.peer]})
               .second,
           "received twice");
      ++posted_[a.peer];
    }
  }

  void compute(const Action& action) {
    const Passes passes(action);
    for (const Pass& pass : passes) ready(pass);
    std::vector<Value> inputs;
    for (const Pass& pass : passes) inputs.push_back(remote_input(pass));
    auto input = inputs.begin();
    for (const Pass& pass : passes) {
      run(pass, *input++);
      const int live = static_cast<int>(saved_.size() + deferred_.size());
      peak_.live = std::max(peak_.live, live);
      peak_.deferred = std::max(peak_.deferred, static_cast<int>(deferred_.size()));
    }
  }

  void ready(const Pass& pass) {
    mine(pass.stage);
    exists(pass.microbatch);
    const Cell cell{pass.stage, pass.microbatch};
    if (pass.kind == ActionKind::kBackwardWeight) {
      return need(deferred_.contains(cell), "no deferred weight gradient");
    }
    const bool forward = pass.kind == ActionKind::kForward;
    if (forward) {
      need(!started_.contains(cell), "forward twice");
    } else {
      need(saved_.contains(cell), "no saved activation");
    }
    if (end_of_pipe(pass)) return;
    const int source = pass.stage + (forward ? -1 : 1);
    if (s_.rank_of_stage[source] == rank_) {
      const auto& from = forward ? outputs_ : gradients_;
      need(from.contains({source, pass.microbatch}), "local input is not there");
    } else if (s_.lowered) {
      need(handles_.contains(key(pass)), "no receive");
    }
  }

  Value remote_input(const Pass& pass) {
    if (pass.kind == ActionKind::kBackwardWeight || end_of_pipe(pass)) return 0;
    const bool forward = pass.kind == ActionKind::kForward;
    const int source = pass.stage + (forward ? -1 : 1);
    if (s_.rank_of_stage[source] == rank_) return 0;
    Value value;
    if (s_.lowered) {
      const Handle& handle = handles_.at(key(pass));
      value = world_.take(handle.from, rank_, handle.place);
    } else {
      value = world_.get(
          {forward ? Payload::kActivation : Payload::kGradient, source, pass.microbatch});
    }
    const auto& right = forward ? expected_.output : expected_.gradient;
    need(value == right[source][pass.microbatch], "wrong data arrived");
    return value;
  }

  Value input(const Pass& pass, Value remote) {
    const bool forward = pass.kind == ActionKind::kForward;
    if (end_of_pipe(pass)) return forward ? kData : kLoss;
    const int source = pass.stage + (forward ? -1 : 1);
    if (s_.rank_of_stage[source] != rank_) {
      if (s_.lowered) handles_.at(key(pass)).used = true;
      return remote;
    }
    auto& from = forward ? outputs_ : gradients_;
    const Value value = from.at({source, pass.microbatch});
    if (!forward && s_.lowered) from.erase({source, pass.microbatch});
    return value;
  }

  void run(const Pass& pass, Value remote) {
    const Cell cell{pass.stage, pass.microbatch};
    if (pass.kind == ActionKind::kForward) {
      const Value in = input(pass, remote);
      started_.insert(cell);
      saved_[cell] = in;
      const Value out = run_forward(in, pass.stage, pass.microbatch);
      outputs_[cell] = out;
      if (!s_.lowered) world_.put({Payload::kActivation, pass.stage, pass.microbatch}, out);
      return;
    }
    if (makes_input_gradient(pass.kind)) {
      const Value in = saved_.at(cell);
      saved_.erase(cell);
      const Value grad = input(pass, remote);
      const Value out = run_input(in, grad, pass.stage);
      deferred_[cell] = {in, grad};
      if (pass.stage > 0) gradients_[cell] = out;
      if (!s_.lowered) world_.put({Payload::kGradient, pass.stage, pass.microbatch}, out);
    }
    if (makes_weight_gradient(pass.kind)) {
      const Saved saved = deferred_.at(cell);
      deferred_.erase(cell);
      weight_[pass.stage] += run_weight(saved.in, saved.grad, pass.stage);
      ++weights_done_[pass.stage];
    }
  }

  bool end_of_pipe(const Pass& pass) const {
    return pass.kind == ActionKind::kForward ? s_.is_first(pass.stage) : s_.is_last(pass.stage);
  }
  static World::Key key(const Pass& pass) {
    const auto payload =
        pass.kind == ActionKind::kForward ? Payload::kActivation : Payload::kGradient;
    return {payload, pass.stage, pass.microbatch};
  }

  const Schedule& s_;
  const Sequential& expected_;
  World& world_;
  int rank_;
  std::set<Cell> started_;
  std::map<Cell, Value> saved_, outputs_, gradients_;
  std::map<Cell, Saved> deferred_;
  std::map<World::Key, Handle> handles_;
  std::map<int, size_t> posted_; // by sender
  std::map<int, Value> weight_;
  std::map<int, int> weights_done_;
  Peak peak_;
};

/// What became of it, and of a failure the first rank's reason.
struct Outcome {
  Kind kind = Kind::kOk;
  std::string reason;
  std::vector<Peak> peaks; // by rank, if all is well
};

inline Outcome execute(const Schedule& s, Purpose purpose = Purpose::kTraining) {
  const Sequential expected(s);
  World world(s.num_ranks);
  std::vector<Rank> ranks;
  for (int r = 0; r < s.num_ranks; ++r) ranks.emplace_back(s, expected, world, r);
  std::vector<Outcome> outcomes(s.num_ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < s.num_ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        ranks[r].run();
      } catch (const Failure& failure) {
        outcomes[r] = {Kind::kBroken, failure.what(), {}};
      } catch (const AllWait&) {
        outcomes[r] = {Kind::kDeadlock, "all wait", {}};
      }
      world.leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Kind kind : {Kind::kBroken, Kind::kDeadlock}) {
    for (const Outcome& outcome : outcomes) {
      if (outcome.kind == kind) return outcome;
    }
  }
  try {
    for (Rank& rank : ranks) rank.finish(purpose);
  } catch (const Failure& failure) {
    return {Kind::kBroken, failure.what(), {}};
  }
  Outcome good;
  for (const Rank& rank : ranks) good.peaks.push_back(rank.peak());
  return good;
}

} // namespace pentatron::pipeline::execution
