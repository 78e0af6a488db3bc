#include "pentatron/parallel/pipeline/runtime.h"

#include <ATen/ATen.h>

#include <deque>
#include <map>
#include <memory>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"

namespace pentatron::pipeline {

namespace {

/// Flows that may still be on their way.
struct Arriving {
  nn::Flows flows;
  comm::Work work;

  void wait() { std::exchange(work, {}).wait(); }
  nn::Flows take() {
    wait();
    return std::exchange(flows, {});
  }
};

/// One microbatch in one stage, from its F to its last backward pass.
struct Flight {
  nn::ForwardContext context;
  nn::WgradQueue wgrad;
  nn::Tape tape;
  Arriving input, output_gradient;  // from the neighbouring stages
  nn::Flows output, input_gradient; // for them

  explicit Flight(bool deferred) : wgrad(deferred) {}
};

/// One run of a rank's list.
class Run {
 public:
  Run(const Schedule& schedule, const std::vector<const nn::Chunk*>& chunks, nn::ParamStore& store,
      const Channels& channels, const Boundaries& boundaries,
      const std::vector<nn::Microbatch>& microbatches, nn::StepState& state,
      const RunOptions& options)
      : schedule_(schedule), store_(store), channels_(channels), pipeline_(channels.pipeline()),
        boundaries_(boundaries), microbatches_(microbatches), state_(state), options_(options) {
    const std::vector<int> stages = schedule.stages_of(pipeline_.rank());
    if (!schedule.lowered || schedule.num_ranks != pipeline_.size() ||
        stages.size() != chunks.size() ||
        schedule.num_microbatches != static_cast<int>(microbatches.size())) {
      raise<Error>(
          "internal error: the schedule {} is for {} ranks and {} microbatches, and runs on "
          "{} ranks, {} stages here, {} microbatches",
          schedule.name, schedule.num_ranks, schedule.num_microbatches, pipeline_.size(),
          chunks.size(), microbatches.size());
    }
    for (size_t i = 0; i < stages.size(); ++i) chunks_[stages[i]] = chunks[i];
    for (const Action& action : schedule.actions[pipeline_.rank()]) {
      for (const Pass& pass : Passes(action)) {
        forwards_left_ += pass.kind == ActionKind::kForward;
        differentiates_ = differentiates_ || makes_input_gradient(pass.kind);
        defers_ = defers_ || pass.kind == ActionKind::kBackwardWeight;
      }
    }
  }

  void run() {
    for (const Action& action : schedule_.actions[pipeline_.rank()]) perform(action);
    for (auto& [flows, work] : sends_) work.wait();
  }

 private:
  void perform(const Action& action) {
    switch (action.kind) {
    case ActionKind::kForward:
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
    case ActionKind::kBackwardWeight:
      for (const Pass& pass : Passes(action)) run_pass(pass);
      return;
    case ActionKind::kOverlap:
      return overlap(action);
    case ActionKind::kSend:
      return timed(action, [&] { send(action); });
    case ActionKind::kRecv:
      return timed(action, [&] { receive(action); });
    case ActionKind::kFree:
      flight(action.stage, action.microbatch).output.clear();
      if (!differentiates_) flights_.erase({action.stage, action.microbatch});
      return;
    }
  }

  void run_pass(const Pass& pass) {
    await_input(pass);
    timed({.kind = pass.kind, .stage = pass.stage, .microbatch = pass.microbatch},
          [&] { compute(pass); });
  }

  /// The pair's forward pass begins without the gradient that its backward pass waits for.
  void overlap(const Action& action) {
    const Passes pair(action);
    const Pass &first = pair.begin()[0], &second = pair.begin()[1];
    if (options_.turns == nullptr) {
      run_pass(first);
      return run_pass(second);
    }
    await_input(first);
    timed(action, [&] {
      options_.turns->run([&] { compute(first); },
                          [&] {
                            await_input(second);
                            compute(second);
                          });
    });
  }

  void timed(const Action& action, const auto& body) {
    const double start = monotonic_s();
    body();
    if (options_.intervals != nullptr)
      options_.intervals->push_back({action, start, monotonic_s()});
  }

  void await_input(const Pass& pass) {
    Flight& f = flight(pass.stage, pass.microbatch);
    if (pass.kind == ActionKind::kForward) f.input.wait();
    if (makes_input_gradient(pass.kind)) f.output_gradient.wait();
  }

  void compute(const Pass& pass) {
    switch (pass.kind) {
    case ActionKind::kForward:
      forward(pass.stage, pass.microbatch);
      if (--forwards_left_ == 0 && options_.forwards_done) options_.forwards_done();
      return;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      return backward(pass.stage, pass.microbatch, pass.kind == ActionKind::kBackward);
    default:
      return weight_pass(pass.stage, pass.microbatch);
    }
  }

  Flight& flight(int stage, int microbatch) {
    std::unique_ptr<Flight>& slot = flights_[{stage, microbatch}];
    if (!slot) slot = std::make_unique<Flight>(defers_);
    return *slot;
  }

  bool here(int stage) const { return schedule_.rank_of_stage[stage] == pipeline_.rank(); }

  void forward(int stage, int microbatch) {
    Flight& f = flight(stage, microbatch);
    const bool wrong = pipeline_.rank() > 0 && planted("layout_of_another_microbatch");
    const nn::Microbatch& data = microbatches_[wrong ? 0 : microbatch];
    f.context = {.batch = &data,
                 .wanted = options_.wanted,
                 .results = options_.results,
                 .wgrad = &f.wgrad,
                 .state = &state_,
                 .cache = options_.cache,
                 .variant_rows = options_.variant_rows,
                 .loss_scales = options_.loss_scales,
                 .seed = options_.seed,
                 .training = options_.training,
                 .check_finite = options_.check_finite,
                 .expert_loads = options_.expert_loads};
    f.output = chunks_.at(stage)->forward(f.input.take(), f.context, store_,
                                          differentiates_ ? &f.tape : nullptr);
    if (!schedule_.is_last(stage) && here(stage + 1))
      flight(stage + 1, microbatch).input.flows = f.output;
  }

  void backward(int stage, int microbatch, bool complete) {
    Flight& f = flight(stage, microbatch);
    tell_rows(f);
    f.input_gradient =
        chunks_.at(stage)->backward(f.output_gradient.take(), f.context, store_, f.tape);
    if (!schedule_.is_first(stage) && here(stage - 1))
      flight(stage - 1, microbatch).output_gradient.flows = std::move(f.input_gradient);
    if (!complete) return;
    if (defers_) drain(f);
    if (schedule_.is_first(stage) || here(stage - 1)) {
      flights_.erase({stage, microbatch});
    } else {
      over_.push_back({stage, microbatch}); // when its gradient has been sent
    }
  }

  void weight_pass(int stage, int microbatch) {
    drain(flight(stage, microbatch));
    flights_.erase({stage, microbatch});
  }

  void tell_rows(const Flight& f) const {
    if (options_.gradient_rows != nullptr) options_.gradient_rows->set(*f.context.batch);
  }

  void drain(Flight& f) {
    tell_rows(f);
    if (!planted("weight_passes_dropped")) f.wgrad.drain();
    if (options_.weight_passes_done) options_.weight_passes_done();
  }

  /// What an action carries over a boundary: all flows that are alive there, or the gradients of
  /// those from which one is wanted. A flow without rows, or of a term that the pass does not
  /// have, is not sent.
  std::vector<int> carried(const Action& action) const {
    const bool forth = action.payload == Payload::kActivation;
    const bool sends = action.kind == ActionKind::kSend;
    const auto behind = static_cast<size_t>(forth == sends ? action.stage + 1 : action.stage);
    std::vector<int> carried =
        (forth ? boundaries_.before_stage : boundaries_.gradients_before_stage)[behind];
    std::erase_if(carried, [&](int flow) {
      const nn::FlowSpec& spec = boundaries_.flows[static_cast<size_t>(flow)];
      return (!spec.term.empty() && !options_.loss_scales.contains(spec.term)) ||
             spec.num_rows(microbatches_[action.microbatch]) == 0;
    });
    return carried;
  }

  void send(const Action& action) {
    Flight& f = flight(action.stage, action.microbatch);
    const bool forth = action.payload == Payload::kActivation;
    nn::Flows values = forth ? f.output : std::exchange(f.input_gradient, {});
    const Channels::End end = channels_.to(action.peer);
    comm::TransferBatch transfers(*end.group);
    const std::vector<int> flows = carried(action);
    for (const int flow : flows) {
      at::Tensor& x = values[static_cast<size_t>(flow)];
      x = x.contiguous();
      if (forth && flow == flows.front() && flows.size() > 1 &&
          planted("encoder_output_of_no_stage"))
        x = at::zeros_like(x);
      transfers.send(x, end.peer);
    }
    sends_.emplace_back(std::move(values), transfers.start());
    while (!sends_.empty() && sends_.front().second.done()) sends_.pop_front();
    if (!forth && !over_.empty()) {
      flights_.erase(over_.back());
      over_.clear();
    }
  }

  void receive(const Action& action) {
    Flight& f = flight(action.stage, action.microbatch);
    Arriving& into = action.payload == Payload::kActivation ? f.input : f.output_gradient;
    into.flows.resize(boundaries_.flows.size());
    const Channels::End end = channels_.from(action.peer);
    comm::TransferBatch transfers(*end.group);
    for (const int flow : carried(action)) {
      const nn::FlowSpec& spec = boundaries_.flows[static_cast<size_t>(flow)];
      at::Tensor& x = into.flows[static_cast<size_t>(flow)];
      x = at::empty({spec.num_rows(microbatches_[action.microbatch]), spec.width},
                    at::TensorOptions(spec.differentiable ? boundaries_.dtype : at::kLong)
                        .device(boundaries_.device));
      transfers.recv(x, end.peer);
    }
    into.work = transfers.start();
  }

  const Schedule& schedule_;
  nn::ParamStore& store_;
  const Channels& channels_;
  const comm::Group& pipeline_;
  const Boundaries& boundaries_;
  const std::vector<nn::Microbatch>& microbatches_;
  nn::StepState& state_;
  const RunOptions& options_;

  std::map<int, const nn::Chunk*> chunks_; // by stage
  int forwards_left_ = 0;
  bool differentiates_ = false, defers_ = false;
  std::map<std::pair<int, int>, std::unique_ptr<Flight>> flights_; // by (stage, microbatch)
  std::vector<std::pair<int, int>> over_;
  std::deque<std::pair<nn::Flows, comm::Work>> sends_;
};

} // namespace

Runtime::Runtime(std::vector<const nn::Chunk*> chunks, nn::ParamStore& store, Channels channels,
                 Boundaries boundaries)
    : chunks_(std::move(chunks)), store_(&store), channels_(std::move(channels)),
      boundaries_(std::move(boundaries)) {}

void Runtime::run(const Schedule& lowered, const std::vector<nn::Microbatch>& microbatches,
                  nn::StepState& state, const RunOptions& options) {
  Run(lowered, chunks_, *store_, channels_, boundaries_, microbatches, state, options).run();
}

} // namespace pentatron::pipeline
