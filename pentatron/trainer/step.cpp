#include "pentatron/trainer/step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "pentatron/comm/collectives.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/parallel/data/gradients.h"

namespace pentatron::trainer {

namespace {

constexpr int64_t kNoTarget = -100;

at::Tensor int64_tensor(const std::vector<int64_t>& values, at::Device device) {
  at::Tensor host = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), host.data_ptr<int64_t>());
  return host.to(device);
}

double summed(double value, const comm::Group& group) {
  return comm::all_reduce(at::scalar_tensor(value, at::kDouble), comm::ReduceOp::kSum, group)
      .item<double>();
}

} // namespace

ModelInput model_input(const data::Batch& batch, at::Device device) {
  const nn::MemoryScope scope(nn::MemoryCategory::kData);
  std::vector<int64_t> labels = batch.labels;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (batch.loss_mask[i] == 0) labels[i] = kNoTarget;
  }
  std::vector<uint64_t> ids(batch.sample_ids.begin(), batch.sample_ids.end());
  const int64_t b = batch.batch_size, s = batch.sequence_length;
  ModelInput input{
      int64_tensor(batch.tokens, device), int64_tensor(labels, device),
      nn::SequenceLayout::packed(b, s, std::move(ids), batch.cu_seqlens, false, device)};
  // The loader decides where positions start again, which need not be where attention does.
  input.layout.positions = int64_tensor(batch.position_ids, device).to(at::kInt);
  return input;
}

Stepper::Stepper(build::RankModel& model, optim::Optimizer& optimizer, build::Groups groups)
    : model_(&model), optimizer_(&optimizer), groups_(std::move(groups)) {}

int64_t Stepper::global_targets(const data::StepData& data) const {
  return comm::all_reduce(at::scalar_tensor(data.num_targets, at::kLong), comm::ReduceOp::kSum,
                          groups_.dp)
      .item<int64_t>();
}

StepResult Stepper::step(const data::StepData& data, const StepOptions& options) {
  StepResult result;
  result.num_targets = global_targets(data);
  if (result.num_targets == 0) return result;
  const at::Device device = model_->store->values().device();
  const nn::Chunk& chunk = model_->gpt->loss_chunk();
  model_->store->zero_grad();
  nn::StepState state;
  for (const data::Batch& batch : data.microbatches) {
    const ModelInput input = model_input(batch, device);
    const nn::MemoryScope scope(nn::MemoryCategory::kActivations);
    nn::WgradQueue wgrad;
    nn::Tape tape;
    nn::ForwardContext ctx{.layout = &input.layout,
                           .wgrad = &wgrad,
                           .state = &state,
                           .labels = input.labels,
                           .loss_scale = 1.0 / static_cast<double>(result.num_targets),
                           .seed = options.seed,
                           .training = true,
                           .check_finite = options.find_nonfinite_layer};
    chunk.forward(input.ids, ctx, *model_->store, &tape);
    chunk.backward({}, ctx, *model_->store, tape);
  }
  parallel::reduce_gradients(*model_->store, groups_.dp, groups_.tp);
  result.loss =
      summed(state.loss_sums["lm loss"], groups_.dp) / static_cast<double>(result.num_targets);
  result.grad_norm = optim::global_grad_norm(*model_->store, groups_.tp);
  result.finite = std::isfinite(result.loss) && std::isfinite(result.grad_norm);
  if (!result.finite) {
    result.first_nonfinite = state.first_nonfinite;
    if (result.first_nonfinite.empty() && options.find_nonfinite_layer) {
      const std::string name = optim::first_nonfinite_gradient(*model_->store);
      if (!name.empty()) result.first_nonfinite = "the gradient of " + name;
    }
    return result;
  }
  optimizer_->step(options.lr, options.weight_decay,
                   optim::clip_coefficient(options.clip_grad, result.grad_norm));
  return result;
}

Stepper::Evaluation Stepper::evaluate(const data::StepData& data) {
  const at::Device device = model_->store->values().device();
  nn::StepState state;
  for (const data::Batch& batch : data.microbatches) {
    const ModelInput input = model_input(batch, device);
    const nn::MemoryScope scope(nn::MemoryCategory::kActivations);
    nn::ForwardContext ctx{.layout = &input.layout, .state = &state, .labels = input.labels};
    model_->gpt->loss_chunk().forward(input.ids, ctx, *model_->store, nullptr);
  }
  return {summed(state.loss_sums["lm loss"], groups_.dp), global_targets(data)};
}

} // namespace pentatron::trainer
