#include "pentatron/nn/segment.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/nn/host_copies.h"

namespace pentatron::nn {

struct Tape::Record {
  std::vector<at::Tensor> inputs; // detached leaves
  std::shared_ptr<Saved> kept;    // the same, for the account
  SavedTensors saved;
  std::vector<torch::autograd::Edge>
      outputs;                // of what the segment gave; invalid: not differentiable
  torch::autograd::Edge loss; // invalid: the segment has none
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
      options_(options) {
  make_groups();
  make_graphed();
}

void Chunk::limit_backward(size_t segment, bool trains, std::vector<bool> wanted) {
  PT_DCHECK(wanted.size() == flows_);
  Reach& reach = reach_[segment];
  reach.runs = trains || std::ranges::any_of(segments_[segment].ports.takes, [&](int flow) {
                 return wanted[static_cast<size_t>(flow)];
               });
  reach.wanted = std::move(wanted);
  make_groups();
  make_graphed();
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

std::vector<at::Tensor> detached(const std::vector<int>& numbers, const Flows& flows) {
  std::vector<at::Tensor> taken;
  for (const int flow : numbers) {
    const at::Tensor& x = flows[static_cast<size_t>(flow)];
    taken.push_back(x.defined() ? x.detach() : x);
  }
  return taken;
}

void give(const Ports& ports, const Segment::Output& output, Flows& flows) {
  for (size_t k = 0; k < ports.gives.size(); ++k) {
    const at::Tensor& x = output.flows[k];
    flows[static_cast<size_t>(ports.gives[k])] = x.defined() ? x.detach() : x;
  }
}

Tape::Record record_of(std::vector<at::Tensor> inputs) {
  Tape::Record record{.inputs = std::move(inputs)};
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
    return x.defined() && !host_value<bool>(at::isfinite(x.detach()).all());
  };
  if (bad(output.loss) || std::ranges::any_of(output.flows, bad))
    ctx.state->first_nonfinite = segment.name();
}

/// One call of the engine: from the gradients of what a segment gave to its leaves.
void run_engine(Tape::Record& record, const Segment& segment, const Ports& ports,
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

void Chunk::make_groups() {
  groups_.clear();
  const Recomputation& again = options_.recompute;
  if (!again.layers) return;
  int64_t layers = 0;
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (!segments_[i].segment->recomputable()) continue;
    const bool counts = again.count == 0 || layers++ < again.count;
    if (!counts || !reach_[i].runs) continue;
    if (!groups_.empty() && groups_.back().end == i &&
        static_cast<int64_t>(i - groups_.back().begin) < again.group) {
      groups_.back().end = i + 1;
    } else {
      groups_.push_back({.begin = i, .end = i + 1, .takes = {}});
    }
  }
  for (Group& group : groups_) {
    std::set<int> made, taken;
    for (size_t i = group.begin; i < group.end; ++i) {
      const Ports& ports = segments_[i].ports;
      for (const int flow : ports.takes)
        if (!made.contains(flow)) taken.insert(flow);
      made.insert(ports.gives.begin(), ports.gives.end());
    }
    group.takes.assign(taken.begin(), taken.end());
  }
}

const Chunk::Group* Chunk::group_of(size_t i) const {
  const auto found = std::ranges::find_if(
      groups_, [&](const Group& group) { return group.begin <= i && i < group.end; });
  return found == groups_.end() ? nullptr : &*found;
}

std::shared_ptr<Offload> Chunk::offload_of(size_t i) const {
  if (options_.offload == nullptr || !segments_[i].segment->recomputable()) return nullptr;
  const auto is_layer = [&](const ConnectedSegment& place) {
    return place.segment->recomputable();
  };
  const auto at = segments_.begin() + static_cast<std::ptrdiff_t>(i);
  const int64_t before = std::count_if(segments_.begin(), at, is_layer),
                all = std::count_if(segments_.begin(), segments_.end(), is_layer);
  return before < (options_.offloaded > 0 ? options_.offloaded : all - 1) ? options_.offload
                                                                          : nullptr;
}

Flows Chunk::forward(Flows flows, ForwardContext& ctx, ParamStore& store, Tape* tape) const {
  flows.resize(flows_);
  ctx.count_uses = true;
  if (options_.offload != nullptr && tape != nullptr) options_.offload->begin_pass();
  if (graphed_ != nullptr && ctx.check_finite) graphed_->graphs->forget(); // memory for this pass
  for (size_t i = 0; i < segments_.size(); ++i) {
    const auto& [segment, ports] = segments_[i];
    const int64_t number = options_.first_segment + static_cast<int64_t>(i);
    ctx.differentiated = tape != nullptr && reach_[i].runs;
    if (tape != nullptr && graphed(i) && !ctx.check_finite) {
      forward_graphed(flows, ctx, store, *tape);
      i = graphed_->end - 1;
      continue;
    }
    if (tape != nullptr && options_.offload != nullptr && segment->recomputable() &&
        offload_of(i) == nullptr)
      options_.offload->begin_staying_layer();
    const Group* const group = ctx.differentiated ? group_of(i) : nullptr;
    if (group != nullptr && group->begin == i)
      tape->records().push_back(start_of(*group, detached(group->takes, flows)));
    std::vector<at::Tensor> taken = detached(ports.takes, flows);
    for (const int flow : ports.ends) flows[static_cast<size_t>(flow)] = at::Tensor();
    store.acquire(number, Pass::kForward);
    Segment::Output output;
    if (!ctx.differentiated || group != nullptr) {
      const at::NoGradGuard no_grad;
      ctx.recomputed = {};
      output = run(segments_[i], taken, ctx);
    } else {
      output = run_recorded(i, std::move(taken), ctx, *tape, offload_of(i));
    }
    store.release(number, Pass::kForward);
    check_finite(*segment, output, ctx);
    if (output.loss.defined()) ctx.deposit("loss", output.loss.detach());
    give(ports, output, flows);
  }
  return flows;
}

Segment::Output Chunk::run_recorded(size_t i, std::vector<at::Tensor> taken, ForwardContext& ctx,
                                    Tape& tape, const std::shared_ptr<Offload>& offload) const {
  const at::AutoGradMode grad(true);
  Tape::Record record = record_of(leaves_of(taken, segments_[i].ports, reach_[i].wanted));
  taken.clear();
  ctx.recomputed = group_of(i) == nullptr ? options_.recompute.parts : Parts();
  const SavedTensorsScope scope(record.saved);
  if (offload != nullptr) offload->begin_layer(record.inputs);
  const SavedHooksScope hooks(offload);
  Segment::Output output = run(segments_[i], record.inputs, ctx);
  remember_outputs(record, output);
  tape.records().push_back(std::move(record));
  return output;
}

/// A record that waits for backward to run its group: of what the group takes alone.
Tape::Record Chunk::start_of(const Group& group, std::vector<at::Tensor> taken) const {
  Tape::Record record;
  const std::shared_ptr<Offload> offload = offload_of(group.begin);
  if (offload != nullptr) offload->begin_layer({});
  const SavedHooksScope hooks(offload);
  const SavedTensorsScope scope(record.saved);
  record.kept = save("input", std::move(taken));
  return record;
}

void Chunk::run_again(const Group& group, ForwardContext& ctx, ParamStore& store,
                      Tape& tape) const {
  Flows flows(flows_);
  {
    Tape::Record start = std::move(tape.records().back());
    tape.records().pop_back();
    for (size_t k = 0; k < group.takes.size(); ++k)
      flows[static_cast<size_t>(group.takes[k])] = (*start.kept)[k];
  }
  if (planted("recomputation_without_dropout")) ctx.training = false;
  for (size_t i = group.begin; i < group.end; ++i) {
    const Ports& ports = segments_[i].ports;
    const int64_t number = options_.first_segment + static_cast<int64_t>(i);
    // The values of the last one stay for its backward pass.
    const bool last = i + 1 == group.end;
    store.acquire(number, last ? Pass::kBackward : Pass::kForward);
    std::vector<at::Tensor> taken = detached(ports.takes, flows);
    for (const int flow : ports.ends) flows[static_cast<size_t>(flow)] = at::Tensor();
    give(ports, run_recorded(i, std::move(taken), ctx, tape, nullptr), flows);
    if (!last) store.release(number, Pass::kForward);
  }
}

void Chunk::differentiate(size_t i, Tape& tape, Flows& gradients, std::vector<bool>& added) const {
  const auto& [segment, ports] = segments_[i];
  PT_DCHECK(!tape.records().empty());
  Tape::Record record = std::move(tape.records().back());
  tape.records().pop_back();
  PT_DCHECK(record.inputs.size() == ports.takes.size());
  run_engine(record, *segment, ports, gradients);
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
}

Flows Chunk::backward(Flows gradients, ForwardContext& ctx, ParamStore& store, Tape& tape) const {
  gradients.resize(flows_);
  ctx.count_uses = false; // what runs again from here on was counted by the first pass
  ctx.differentiated = true;
  std::vector<bool> added(flows_);
  for (size_t i = segments_.size(); i-- > 0;) {
    if (!reach_[i].runs) continue;
    if (graphed(i) && !ctx.check_finite) {
      backward_graphed(gradients, ctx, store, tape);
      i = graphed_->begin;
      continue;
    }
    const int64_t number = options_.first_segment + static_cast<int64_t>(i);
    const Group* const group = group_of(i);
    if (group != nullptr && group->end == i + 1) {
      run_again(*group, ctx, store, tape);
    } else {
      store.acquire(number, Pass::kBackward);
    }
    differentiate(i, tape, gradients, added);
    store.release(number, Pass::kBackward);
  }
  return gradients;
}

/// The layers of one flow that stand side by side and have backward passes.
void Chunk::make_graphed() {
  graphed_ = nullptr;
  if (!options_.graphs) return;
  const auto fits = [&](size_t i, int flow) {
    const Ports& ports = segments_[i].ports;
    return segments_[i].segment->recomputable() && reach_[i].runs &&
           ports.takes == std::vector<int>{flow} && ports.gives == ports.takes;
  };
  for (size_t begin = 0; begin < segments_.size(); ++begin) {
    if (!segments_[begin].segment->recomputable() || segments_[begin].ports.takes.empty()) continue;
    const int flow = segments_[begin].ports.takes.front();
    size_t end = begin;
    while (end < segments_.size() && fits(end, flow)) ++end;
    if (end == begin) continue;
    graphed_ = std::make_unique<GraphedLayers>(
        GraphedLayers{begin, end, static_cast<size_t>(flow),
                      std::make_unique<LayerGraphs>(segments_[begin].ports.stream)});
    return;
  }
}

void Chunk::forward_graphed(Flows& flows, ForwardContext& ctx, ParamStore& store,
                            Tape& tape) const {
  const size_t begin = graphed_->begin, end = graphed_->end, flow = graphed_->flow;
  const auto first = options_.first_segment;
  for (size_t i = begin; i < end; ++i)
    store.acquire(first + static_cast<int64_t>(i), Pass::kForward);
  flows[flow] =
      graphed_->graphs->forward(flows[flow], ctx, tape, [&](const at::Tensor& from, Tape& to) {
        Flows inside(flows_);
        inside[flow] = from;
        for (size_t i = begin; i < end; ++i) {
          const Ports& ports = segments_[i].ports;
          std::vector<at::Tensor> taken = detached(ports.takes, inside);
          inside[flow] = at::Tensor();
          give(ports, run_recorded(i, std::move(taken), ctx, to, nullptr), inside);
        }
        return inside[flow];
      });
  for (size_t i = begin; i < end; ++i)
    store.release(first + static_cast<int64_t>(i), Pass::kForward);
}

void Chunk::backward_graphed(Flows& gradients, ForwardContext&, ParamStore& store,
                             Tape& tape) const {
  const size_t begin = graphed_->begin, end = graphed_->end, flow = graphed_->flow;
  const auto first = options_.first_segment;
  for (size_t i = end; i-- > begin;)
    store.acquire(first + static_cast<int64_t>(i), Pass::kBackward);
  gradients[flow] =
      graphed_->graphs->backward(gradients[flow], tape, [&](const at::Tensor& from, Tape& records) {
        Flows inside(flows_);
        inside[flow] = from;
        std::vector<bool> added(flows_);
        for (size_t i = end; i-- > begin;) differentiate(i, records, inside, added);
        return inside[flow];
      });
  for (size_t i = end; i-- > begin;)
    store.release(first + static_cast<int64_t>(i), Pass::kBackward);
}

} // namespace pentatron::nn
