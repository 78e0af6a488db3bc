#include "pentatron/trainer/exchange_plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "pentatron/base/format.h"
#include "pentatron/models/model.h"
#include "pentatron/parallel/context/zigzag.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/adapters.h"
#include "pentatron/trainer/families.h"
#include "pentatron/trainer/recompute.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

/// Of the links for which the table gives a time: round numbers that are easy to scale.
constexpr double kBytesPerSecond = 10e9, kCollectiveSeconds = 20e-6;

/// A microbatch of the context rank with the most tokens.
nn::LayerShape microbatch_of(const Config& config) {
  const parallelize::ParallelConfig& p = config.parallel;
  const auto cp = static_cast<int>(p.context_parallel_size);
  int64_t length = 0;
  for (int rank = 0; rank < std::min(cp, 2); ++rank)
    length = std::max(length, parallel::zigzag_tokens(config.train.seq_length, rank, cp));
  const at::ScalarType type = scalar_type(config.dtype);
  const int64_t tp = p.tensor_model_parallel_size;
  return {.tokens = config.train.micro_batch_size * length,
          .element_bytes = static_cast<int64_t>(c10::elementSize(type)),
          .acc_bytes = static_cast<int64_t>(c10::elementSize(nn::acc_dtype(type))),
          .tp = static_cast<int>(tp),
          .sequence_parallel = p.sequence_parallel,
          .ep = static_cast<int>(p.expert_model_parallel_size),
          .etp = static_cast<int>(p.expert_tensor_parallel_size.value_or(tp)),
          .gathers_tokens = p.moe_token_dispatcher_type == parallel::DispatchKind::kAllGather};
}

/// By segment, whether it has a backward pass; empty: all have.
std::vector<bool> backward_of(const Config& config) {
  if (config.train.freeze.empty() && !config.peft.on()) return {};
  const std::unique_ptr<models::Model> model =
      models::make_model(config.model, {.adapters = plan_adapters(config)});
  const auto segments = static_cast<size_t>(model->spec().num_segments());
  std::vector<bool> trained(segments, false), backward(segments);
  for (const nn::Param& param : model->params())
    if (trains(config, param))
      for (const int64_t segment : param.segments()) trained[static_cast<size_t>(segment)] = true;
  model->limit_backward(trained);
  for (size_t i = 0; i < segments; ++i) backward[i] = model->has_backward(static_cast<int64_t>(i));
  return backward;
}

} // namespace

ExchangePlan plan_exchange(const Config& config, int world_size) {
  if (!config.model.num_moe_experts) return {};
  const models::ModelSpec spec = models::model_spec(config.model);
  const parallelize::PipelinePlan plan = pipeline_plan(config);
  const std::vector<nn::LayerShape> shapes = {microbatch_of(config)};
  const nn::Recomputation again = recomputation(config.train);
  const std::vector<bool> with_backward = backward_of(config);
  std::map<int, nn::ExchangeCost> kinds;
  ExchangePlan most;
  for (int rank = 0; rank <= *std::ranges::max_element(plan.rank_of_stage); ++rank) {
    ExchangePlan one;
    for (const SegmentRange& stage : plan.stages_of(rank)) {
      int64_t layers = 0; // of the stage
      for (int64_t i = stage.begin; i < stage.end; ++i) {
        const models::SegmentSpec& segment = spec.segments[static_cast<size_t>(i)];
        if (!kinds.contains(segment.kind))
          kinds[segment.kind] = models::segment_cost(config.model, shapes, i).expert_exchange;
        const nn::ExchangeCost& cost = kinds.at(segment.kind);
        const bool whole =
            again.layers && segment.recomputed && (again.count == 0 || layers++ < again.count);
        const bool backward = with_backward.empty() || with_backward[static_cast<size_t>(i)];
        const int times = backward && (whole || again.parts.has(nn::Part::kMoe)) ? 2 : 1;
        one.bytes += times * cost.forward_bytes + backward * cost.backward_bytes;
        one.operations += times * cost.forward_count + backward * cost.backward_count;
      }
    }
    if (one.bytes > most.bytes) most = one;
  }
  const double microbatches =
      static_cast<double>(config.train.global_batch_size) /
      static_cast<double>(config.train.micro_batch_size *
                          parallelize::data_parallel_size(config.parallel, world_size));
  return {.bytes = most.bytes * microbatches, .operations = most.operations * microbatches};
}

std::string describe_exchange(const Config& config, int world_size) {
  const ExchangePlan plan = plan_exchange(config, world_size);
  if (plan.bytes == 0) return "";
  return fmt::format(
      "experts      about {} sent per rank and step in {} collectives: {:.2g} s at {} "
      "GB/s and {} us each",
      format_bytes(plan.bytes), format_grouped(static_cast<int64_t>(plan.operations)),
      plan.seconds(kBytesPerSecond, kCollectiveSeconds), kBytesPerSecond / 1e9,
      kCollectiveSeconds * 1e6);
}

} // namespace pentatron::trainer
