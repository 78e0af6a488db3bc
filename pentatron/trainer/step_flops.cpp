#include "pentatron/trainer/step_flops.h"

#include <algorithm>
#include <map>

#include "pentatron/trainer/adapters.h"
#include "pentatron/trainer/families.h"
#include "pentatron/trainer/recompute.h"

namespace pentatron::trainer {

namespace {

std::vector<nn::LayerShape> shapes_of(const std::vector<data::StreamTotals>& totals,
                                      int64_t samples, int64_t data::StreamTotals::*tokens) {
  std::vector<nn::LayerShape> shapes;
  for (const data::StreamTotals& stream : totals) {
    nn::LayerShape& shape = shapes.emplace_back();
    shape.tokens = stream.*tokens;
    shape.squared_lengths = stream.squared_lengths;
    shape.lengths = stream.lengths;
    if (shapes.size() == 1) continue;
    shape.memory_tokens = shapes[0].tokens;
    shape.crossed_lengths = stream.real_tokens * totals[0].real_tokens / samples;
  }
  return shapes;
}

} // namespace

FlopCounter::FlopCounter(const Config& config, const models::Model& model, int64_t stages)
    : config_(&config), model_(&model), stages_(stages), left_out_(model.spec().segments.size()) {
  if (config.train.freeze.empty() && !config.peft.on()) return;
  // This rank may hold a few stages only.
  auto whole = models::make_model(config.model, {.adapters = plan_adapters(config)});
  for (const nn::Param& param : whole->params())
    if (!trains(config, param))
      left_out_[static_cast<size_t>(param.segments().back())].weights.push_back(&param);
  whole_ = std::move(whole);
  for (size_t i = 0; i < left_out_.size(); ++i) {
    const std::vector<int>& takes = model.spec().segments[i].takes;
    const std::vector<int> wanted = model.gradients_before(static_cast<int64_t>(i));
    const auto unwanted = [&](size_t place) {
      return place < takes.size() && std::ranges::find(wanted, takes[place]) == wanted.end();
    };
    left_out_[i].input = unwanted(0);
    left_out_[i].memory = unwanted(1);
  }
}

double FlopCounter::left_out(int64_t segment, const nn::Cost& cost,
                             const nn::LayerShape& shape) const {
  const LeftOut& of = left_out_[static_cast<size_t>(segment)];
  double flops = 0;
  for (const nn::Param* const weight : of.weights) flops += product_flops(*weight, shape);
  if (of.input) flops += cost.input_gemm_flops;
  if (of.memory) flops += cost.memory_gemm_flops;
  return flops;
}

StepFlops FlopCounter::step(int64_t samples, const std::vector<data::StreamTotals>& totals,
                            const HeadRows& rows) const {
  const models::ModelSpec& spec = model_->spec();
  std::vector<nn::LayerShape> real = shapes_of(totals, samples, &data::StreamTotals::real_tokens),
                              computed = shapes_of(totals, samples, &data::StreamTotals::tokens);
  real.back().head_rows = rows.real;
  computed.back().head_rows = rows.computed;
  struct Costs {
    nn::Cost model, hardware;
  };
  std::map<int, Costs> kinds;
  const nn::Recomputation again = recomputation(config_->train);
  const auto layers =
      static_cast<double>(std::ranges::count_if(spec.segments, &models::SegmentSpec::recomputed));
  const double share = !again.layers ? 0
                       : again.count == 0
                           ? 1
                           : std::min(1.0, static_cast<double>(again.count * stages_) / layers);
  StepFlops flops;
  for (int64_t i = 0; i < spec.num_segments(); ++i) {
    const models::SegmentSpec& segment = spec.segments[static_cast<size_t>(i)];
    if (!kinds.contains(segment.kind))
      kinds[segment.kind] = {models::segment_cost(config_->model, real, i),
                             models::segment_cost(config_->model, computed, i)};
    const auto& [model, hardware] = kinds[segment.kind];
    if (!model_->has_backward(i)) {
      flops.model += model.forward_flops();
      flops.hardware += hardware.forward_flops();
      continue;
    }
    const auto stream = static_cast<size_t>(segment.stream);
    flops.model += model.total_flops() - left_out(i, model, real[stream]);
    flops.hardware += hardware.total_flops() - left_out(i, hardware, computed[stream]);
    flops.hardware += hardware.recomputed_flops(again.parts);
    if (segment.recomputed) flops.hardware += share * hardware.forward_flops();
  }
  return flops;
}

} // namespace pentatron::trainer
