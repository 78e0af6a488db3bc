#include "pentatron/nn/segment.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"

namespace pentatron::nn {

struct Tape::Record {
  std::vector<at::Tensor> inputs; // detached leaves
  std::shared_ptr<Saved> kept;    // the same, for the account
  SavedTensors saved;
  std::vector<torch::autograd::Edge>
      outputs;                // of what the segment gave; invalid: not differentiable
  torch::autograd::Edge loss; // invalid: the segment has none
  bool waits = false;         // for its recomputation
};

Tape::Tape() = default;
Tape::~Tape() = default;
Tape::Tape(Tape&&) noexcept = default;
Tape& Tape::operator=(Tape&&) noexcept = default;

SavedTensors Tape::saved() const {
  SavedTensors all;
  for (const Record& record : records_) all.add(record.saved);
  return all;
}

Chunk::Chunk(std::vector<ConnectedSegment> segments, size_t flows, ChunkOptions options)
    : segments_(std::move(segments)),
      reach_(segments_.size(), {.wanted = std::vector<bool>(flows, true)}), flows_(flows),
      options_(options) {}

void Chunk::limit_backward(size_t segment, bool trains, std::vector<bool> wanted) {
  PT_DCHECK(wanted.size() == flows_);
  Reach& reach = reach_[segment];
  reach.runs = trains || std::ranges::any_of(segments_[segment].ports.takes, [&](int flow) {
                 return wanted[static_cast<size_t>(flow)];
               });
  reach.wanted = std::move(wanted);
}

namespace {

/// What a segment takes, as leaves; a gradient reaches those that are wanted.
std::vector<at::Tensor> leaves_of(const std::vector<at::Tensor>& taken, const Ports& ports,
                                  const std::vector<bool>& wanted) {
  std::vector<at::Tensor> leaves;
  for (size_t k = 0; k < taken.size(); ++k) {
    leaves.push_back(taken[k].defined() ? taken[k].detach() : taken[k]);
    if (taken[k].defined() && leaves[k].is_floating_point() &&
        wanted[static_cast<size_t>(ports.takes[k])])
      leaves[k].requires_grad_(true);
  }
  return leaves;
}

torch::autograd::Edge edge_of(const at::Tensor& x) {
  return x.defined() && x.requires_grad() ? torch::autograd::impl::gradient_edge(x)
                                          : torch::autograd::Edge();
}

Tape::Record record_of(std::vector<at::Tensor> inputs, bool waits) {
  Tape::Record record{.inputs = std::move(inputs)};
  record.waits = waits;
  record.kept = std::make_shared<Saved>("input", record.inputs, std::vector<at::Tensor>());
  record.saved.add(record.kept);
  return record;
}

void remember_outputs(Tape::Record& record, const Segment::Output& output) {
  for (const at::Tensor& x : output.flows) record.outputs.push_back(edge_of(x));
  record.loss = edge_of(output.loss);
}

void check_finite(const Segment& segment, const Segment::Output& output,
                  const ForwardContext& ctx) {
  if (!ctx.check_finite || ctx.state == nullptr || !ctx.state->first_nonfinite.empty()) return;
  const auto bad = [](const at::Tensor& x) {
    return x.defined() && !at::isfinite(x.detach()).all().item<bool>();
  };
  if (bad(output.loss) || std::ranges::any_of(output.flows, bad))
    ctx.state->first_nonfinite = segment.name();
}

/// One call of the engine: from the gradients of what a segment gave to its leaves.
void differentiate(Tape::Record& record, const Segment& segment, const Ports& ports,
                   Flows& gradients) {
  torch::autograd::edge_list roots;
  torch::autograd::variable_list values;
  for (size_t i = 0; i < ports.gives.size(); ++i) {
    at::Tensor value = std::exchange(gradients[static_cast<size_t>(ports.gives[i])], at::Tensor());
    if (!record.outputs[i].is_valid()) continue;
    if (!value.defined()) {
      raise<Error>("internal error: no gradient has arrived for output {} of {}", i,
                   segment.name());
    }
    roots.push_back(std::move(record.outputs[i]));
    values.push_back(std::move(value));
  }
  if (record.loss.is_valid()) {
    values.push_back(at::ones({}, record.loss.function->input_metadata(0).options()));
    roots.push_back(std::move(record.loss));
  }
  if (roots.empty()) return; // a frozen embedding: nothing depends on what is differentiated
  torch::autograd::Engine::get_default_engine().execute(roots, std::move(values),
                                                        /*keep_graph=*/false,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true, {});
}

} // namespace

Segment::Output Chunk::run(const ConnectedSegment& place, const std::vector<at::Tensor>& taken,
                           ForwardContext& ctx) const {
  if (ctx.batch != nullptr)
    ctx.layout = &ctx.batch->layouts[static_cast<size_t>(place.ports.stream)];
  // A stream without tokens has nothing to do, as the encoder's when only the decoder goes on.
  if (ctx.batch != nullptr && ctx.layout->tokens() == 0)
    return {.flows = std::vector<at::Tensor>(place.ports.gives.size()), .loss = {}};
  return place.segment->forward(taken, ctx);
}

Flows Chunk::forward(Flows flows, ForwardContext& ctx, ParamStore& store, Tape* tape) const {
  flows.resize(flows_);
  ctx.count_uses = true;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const auto& [segment, ports] = segments_[i];
    const int64_t unit = options_.first_unit + static_cast<int64_t>(i);
    std::vector<at::Tensor> taken;
    for (const int flow : ports.takes) {
      const at::Tensor& x = flows[static_cast<size_t>(flow)];
      taken.push_back(x.defined() ? x.detach() : x);
    }
    for (const int flow : ports.ends) flows[static_cast<size_t>(flow)] = at::Tensor();
    store.acquire(unit, Pass::kForward);
    Segment::Output output;
    ctx.differentiated = tape != nullptr && reach_[i].runs;
    ctx.recompute_activations = ctx.differentiated && options_.recompute_activations;
    if (!ctx.differentiated || (options_.recompute && segment->recomputable())) {
      const at::NoGradGuard no_grad;
      if (ctx.differentiated) tape->records().push_back(record_of(taken, /*waits=*/true));
      output = run(segments_[i], taken, ctx);
    } else {
      const at::AutoGradMode grad(true);
      Tape::Record record = record_of(leaves_of(taken, ports, reach_[i].wanted), /*waits=*/false);
      taken.clear();
      const SavedTensorsScope scope(record.saved);
      output = run(segments_[i], record.inputs, ctx);
      remember_outputs(record, output);
      tape->records().push_back(std::move(record));
    }
    store.release(unit, Pass::kForward);
    check_finite(*segment, output, ctx);
    if (output.loss.defined()) ctx.deposit("loss", output.loss.detach());
    for (size_t k = 0; k < ports.gives.size(); ++k) {
      const at::Tensor& x = output.flows[k];
      flows[static_cast<size_t>(ports.gives[k])] = x.defined() ? x.detach() : x;
    }
  }
  return flows;
}

Flows Chunk::backward(Flows gradients, ForwardContext& ctx, ParamStore& store, Tape& tape) const {
  PT_DCHECK(std::ssize(tape.records()) == std::ranges::count_if(reach_, &Reach::runs));
  gradients.resize(flows_);
  ctx.count_uses = false; // what runs again from here on was counted by the first pass
  ctx.differentiated = true;
  ctx.recompute_activations = options_.recompute_activations;
  std::vector<bool> added(flows_); // of flows that several segments take
  for (size_t i = segments_.size(); i-- > 0;) {
    if (!reach_[i].runs) continue;
    const auto& [segment, ports] = segments_[i];
    Tape::Record record = std::move(tape.records().back());
    tape.records().pop_back();
    const int64_t unit = options_.first_unit + static_cast<int64_t>(i);
    store.acquire(unit, Pass::kBackward);
    if (record.waits) {
      const at::AutoGradMode enabled(true);
      const SavedTensorsScope scope(record.saved);
      record.inputs = leaves_of(record.inputs, ports, reach_[i].wanted);
      if (planted("recomputation_without_dropout")) ctx.training = false;
      remember_outputs(record, run(segments_[i], record.inputs, ctx));
    }
    differentiate(record, *segment, ports, gradients);
    for (size_t k = 0; k < ports.takes.size(); ++k) {
      const at::Tensor& input = record.inputs[k];
      const at::Tensor own =
          input.defined() && input.is_floating_point() ? input.grad() : at::Tensor();
      if (!own.defined()) continue;
      const auto flow = static_cast<size_t>(ports.takes[k]);
      at::Tensor& sum = gradients[flow];
      // Taken by several segments: summed from the last to the first, the same in every layout.
      const bool lost = !added[flow] && planted("gradient_of_the_next_stage_is_replaced");
      sum = sum.defined() && !lost ? sum + own : own;
      added[flow] = true;
    }
    store.release(unit, Pass::kBackward);
  }
  return gradients;
}

} // namespace pentatron::nn
