#include "pentatron/nn/segment.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"

namespace pentatron::nn {

struct Tape::Record {
  at::Tensor input;             // the detached leaf
  torch::autograd::Edge output; // unset while the segment waits for its recomputation
};

Tape::Tape() = default;
Tape::~Tape() = default;
Tape::Tape(Tape&&) noexcept = default;
Tape& Tape::operator=(Tape&&) noexcept = default;

Chunk::Chunk(std::vector<std::unique_ptr<Segment>> segments, ChunkOptions options)
    : segments_(std::move(segments)), options_(options) {}

namespace {

at::Tensor leaf_of(const at::Tensor& x) {
  at::Tensor leaf = x.detach();
  if (leaf.is_floating_point()) leaf.requires_grad_(true);
  return leaf;
}

void check_finite(const Segment& segment, const at::Tensor& output, const ForwardContext& ctx) {
  if (!ctx.check_finite || ctx.state == nullptr || !ctx.state->first_nonfinite.empty()) return;
  if (!at::isfinite(output.detach()).all().item<bool>())
    ctx.state->first_nonfinite = segment.name();
}

} // namespace

at::Tensor Chunk::forward(const at::Tensor& x, ForwardContext& ctx, ParamStore& store,
                          Tape* tape) const {
  at::Tensor h = x;
  ctx.differentiated = tape != nullptr;
  ctx.count_uses = true;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& segment = *segments_[i];
    const int64_t unit = options_.first_unit + static_cast<int64_t>(i);
    store.acquire(unit, Pass::kForward);
    if (tape == nullptr) {
      const at::NoGradGuard no_grad;
      h = segment.forward(h, ctx);
    } else if (options_.recompute && segment.recomputable()) {
      tape->records().push_back({h.detach(), {}});
      const at::NoGradGuard no_grad;
      h = segment.forward(h, ctx);
    } else {
      const at::AutoGradMode grad(true);
      at::Tensor input = leaf_of(h);
      const at::Tensor output = segment.forward(input, ctx);
      tape->records().push_back({std::move(input), torch::autograd::impl::gradient_edge(output)});
      h = output.detach();
    }
    store.release(unit, Pass::kForward);
    check_finite(segment, h, ctx);
  }
  return h;
}

at::Tensor Chunk::backward(at::Tensor grad, ForwardContext& ctx, ParamStore& store,
                           Tape& tape) const {
  PT_DCHECK(tape.records().size() == segments_.size());
  ctx.count_uses = false; // what runs again from here on was counted by the first pass
  for (size_t i = segments_.size(); i-- > 0;) {
    Tape::Record record = std::move(tape.records().back());
    tape.records().pop_back();
    const int64_t unit = options_.first_unit + static_cast<int64_t>(i);
    store.acquire(unit, Pass::kBackward);
    if (record.output.function == nullptr) {
      const at::AutoGradMode enabled(true);
      record.input = leaf_of(record.input);
      if (planted("recomputation_without_dropout")) ctx.training = false;
      const at::Tensor output = segments_[i]->forward(record.input, ctx);
      record.output = torch::autograd::impl::gradient_edge(output);
    }
    if (!grad.defined()) grad = at::ones({}, record.output.function->input_metadata(0).options());
    torch::autograd::Engine::get_default_engine().execute(
        {std::move(record.output)}, {std::move(grad)},
        /*keep_graph=*/false, /*create_graph=*/false,
        /*accumulate_grad=*/true, {});
    grad = record.input.is_floating_point() ? record.input.grad() : at::Tensor();
    store.release(unit, Pass::kBackward);
  }
  return grad;
}

} // namespace pentatron::nn
