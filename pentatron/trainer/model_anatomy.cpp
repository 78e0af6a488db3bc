#include "pentatron/trainer/model_anatomy.h"

#include <algorithm>

#include "pentatron/models/parts.h"
#include "pentatron/optim/optimizer.h"
#include "pentatron/optim/rule.h"
#include "pentatron/trainer/adapters.h"
#include "pentatron/trainer/families.h"
#include "pentatron/trainer/precision.h"
#include "pentatron/trainer/recompute.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

/// True elements, of which there may be more than 64 bits count.
double real_elements(const nn::ShardSpec& spec, const nn::Coordinates& where) {
  double total = 0;
  for (const nn::LocalBox& box : nn::local_boxes(spec, where)) {
    double size = 1;
    for (const int64_t n : box.size) size *= static_cast<double>(n);
    total += size;
  }
  return total;
}

/// Of a rank at `where`.
Parameters local_part(const nn::Param& param, const nn::Coordinates& where, const Config& run) {
  double count = 1;
  for (const int64_t n : nn::local_shape(param.spec(), where)) count *= static_cast<double>(n);
  const at::ScalarType dtype = types_of(run.dtype).dtype;
  const double vectors = count * optim::vector_bytes(run.optimizer, param.spec(), dtype);
  const bool whole =
      optim::make_rule(run.optimizer, optim::rule_name(run.optimizer, param.spec()))->needs_whole();
  const double state = count * optim::state_bytes(run.optimizer, param.spec(), dtype, where);
  const Elements elements = {.count = count,
                             .state = state,
                             .padding = count - real_elements(param.spec(), where),
                             .vectors = vectors,
                             .whole = whole ? vectors : 0,
                             .whole_count = whole ? count : 0,
                             .whole_state = whole ? state : 0,
                             .linear = param.linear ? count : 0,
                             .longest = count,
                             .largest = whole ? count : 0,
                             .update =
                                 optim::update_bytes(run.optimizer, param.spec(), dtype, where)};
  if (param.group == nn::ReductionGroup::kExpert) return {.dense = {}, .experts = elements};
  return {.dense = elements, .experts = {}};
}

/// Elements that an adapter keeps of each token: x A^T, and with DoRA y before it is scaled.
double saved_by_adapter(const nn::Param& param, const models::ModelConfig& model) {
  const std::vector<int64_t>& shape = param.spec().shape;
  if (param.name().find(".lora_A") != std::string::npos)
    return param.spec().stacked_dims > 0 // kept whole and by part, of each choice
               ? 2.0 * static_cast<double>(shape[1] * model.moe_router_topk)
               : static_cast<double>(shape[0]);
  const bool of_output = param.spec().shard_multiple > 0; // which keeps nothing for backward
  if (param.name().find(".lora_magnitude") != std::string::npos && !of_output)
    return static_cast<double>(param.shape()[0]);
  return 0;
}

/// Whether the layer that makes keys of latents has an adapter anywhere.
bool adapts_latent_keys(const Config& run) {
  if (!run.peft.on() || !run.model.multi_latent_attention) return false;
  return std::ranges::any_of(plan_adapters(run)->weights,
                             [](const auto& one) { return one.first.ends_with(".kv_b.weight"); });
}

/// Whether context ranks pass on or gather keys in all layers.
bool keys_travel(const parallelize::ParallelConfig& parallel) {
  using parallel::ContextComm;
  return parallel.context_parallel_size > 1 &&
         std::ranges::all_of(parallel.cp_comm_type, [](ContextComm way) {
           return way == ContextComm::kP2p || way == ContextComm::kAllGather;
         });
}

/// Of products on CPUs, of shapes with so many tokens. None where the last layers have none: when
/// their backward begins, the most is kept.
nn::QuantisedBytes quantised_bytes(const Config& run, const ElementTypes& types, int64_t tokens) {
  const MixedPrecisionConfig& c = run.mixed_precision;
  if (!c.low_precision() || !on_cpu(run.device) ||
      (c.first_last_layers_bf16 && c.num_layers_at_end_in_bf16 > 0))
    return {};
  const bool fp4 = c.fp4 != Fp4Format::kNone;
  const bool one_scale = fp4 || c.fp8_recipe == Fp8Recipe::kTensorwise ||
                         c.fp8_recipe == Fp8Recipe::kDelayed; // of a tensor
  const auto acc = static_cast<int64_t>(types.acc);
  return {.values = types.element > 4 ? 8 : 2,
          .sum = types.element < types.acc ? acc : 0,
          .transformed = fp4 ? acc : 0,
          .product = one_scale ? acc : 0,
          .shapes = static_cast<double>(run.train.micro_batch_size) *
                    static_cast<double>(run.train.seq_length) / static_cast<double>(tokens)};
}

/// Settings that name layers by number may match none of a model with one layer; the first of the
/// whole model stands for all then.
std::shared_ptr<const nn::AdapterPlan> adapters_of_one_layer(const Config& one, const Config& run) {
  try {
    return plan_adapters(one);
  } catch (const ConfigError&) {
    return plan_adapters(run);
  }
}

} // namespace

ElementTypes types_of(Precision precision) {
  switch (precision) {
  case Precision::kFp64:
    return {.element = 8, .acc = 8, .dtype = at::kDouble};
  case Precision::kBf16:
    return {.element = 2, .acc = 4, .dtype = at::kBFloat16};
  case Precision::kFp16:
    return {.element = 2, .acc = 4, .dtype = at::kHalf};
  default:
    return {};
  }
}

nn::Coordinates coordinates_of(const parallelize::ParallelConfig& parallel) {
  const auto axis = [](int64_t size) {
    return nn::AxisPosition{.rank = 0, .size = static_cast<int>(size)};
  };
  const int64_t tp = parallel.tensor_model_parallel_size;
  return {{"tp", axis(tp)},
          {"ep", axis(parallel.expert_model_parallel_size)},
          {"etp", axis(parallel.expert_tensor_parallel_size.value_or(tp))}};
}

double targets_by_token(const Config& config) {
  return static_cast<double>(stream_lengths(config).back()) /
         static_cast<double>(config.train.seq_length);
}

Anatomy anatomy_of(const Config& run, const nn::Coordinates& where) {
  const ElementTypes types = types_of(run.dtype);
  Config small_run = run;
  small_run.model = run.model.with_one_layer();
  const models::ModelConfig& small = small_run.model;
  const models::ModelSpec spec = models::model_spec(small);
  constexpr int64_t kEnough = 4096; // tokens; bytes of more might not be a number
  const int64_t tokens = std::min(kEnough, run.train.seq_length);
  std::vector<int64_t> lengths(spec.streams.size(), tokens);
  lengths.back() = std::max(
      int64_t{1}, static_cast<int64_t>(static_cast<double>(tokens) * targets_by_token(run)));
  std::vector<nn::LayerShape> shapes =
      models::stream_shapes(spec, 1, lengths, share_of_targets(run));
  const bool travel = keys_travel(run.parallel) && !adapts_latent_keys(run);
  for (nn::LayerShape& shape : shapes) {
    shape.element_bytes = static_cast<int64_t>(types.element);
    shape.acc_bytes = static_cast<int64_t>(types.acc);
    shape.tp = where.at("tp").size;
    shape.sequence_parallel = run.parallel.sequence_parallel;
    shape.ep = where.at("ep").size;
    shape.etp = where.at("etp").size;
    shape.gathers_tokens =
        run.parallel.moe_token_dispatcher_type == parallel::DispatchKind::kAllGather;
    shape.keys_travel = travel;
    shape.quantised = quantised_bytes(run, types, tokens);
  }
  const auto by_token = [&](int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(tokens);
  };
  const nn::Parts parts = recomputation(run.train).parts;
  nn::Parts parts_of_mlp;
  for (const nn::Part part : {nn::Part::kMlp, nn::Part::kMlpActivation, nn::Part::kMoe,
                              nn::Part::kMoeActivation, nn::Part::kSharedExperts})
    if (parts.has(part)) parts_of_mlp.add(part);
  Anatomy anatomy;
  for (int64_t i = 0; i < spec.num_segments(); ++i) {
    const models::SegmentSpec& segment = spec.segments[static_cast<size_t>(i)];
    const nn::Cost cost = models::segment_cost(small, shapes, i);
    // What was freed is made again before it is used. Backward of the MLP comes first.
    const int64_t freed = cost.freed_bytes(parts), freed_by_mlp = cost.freed_bytes(parts_of_mlp),
                  kept_by_mlp =
                      cost.bytes_of(nn::Part::kMlp) + cost.bytes_of(nn::Part::kMoe) - freed_by_mlp;
    anatomy.kinds[segment.kind] = {
        .saved = by_token(cost.saved_bytes),
        .freed = by_token(freed),
        .working =
            by_token(std::max(cost.mlp_working_bytes + freed_by_mlp,
                              cost.attention_working_bytes + freed - freed_by_mlp - kept_by_mlp)),
        .weights = static_cast<double>(cost.mlp_weight_bytes),
        .parts_time = (cost.recomputed_flops(parts) +
                       kFlopsOfByte * static_cast<double>(cost.freed_bytes(parts))) /
                      static_cast<double>(tokens),
        .time = cost.forward_flops() / static_cast<double>(tokens),
        .mlp = by_token(kept_by_mlp),
        .is_layer = segment.recomputed};
  }
  const std::unique_ptr<models::Model> model =
      models::make_model(small, {.adapters = adapters_of_one_layer(small_run, run)});
  for (const nn::Param& param : model->params()) {
    const Parameters part = local_part(param, where, run);
    SharedParameter shared{.parameter = part, .kinds = {}};
    for (const int64_t segment : param.segments()) {
      shared.kinds.push_back(spec.segments[static_cast<size_t>(segment)].kind);
      anatomy.kinds[shared.kinds.back()].parameters.add(part, 1);
      if (param.adapter)
        anatomy.kinds[shared.kinds.back()].saved += types.element * saved_by_adapter(param, small);
    }
    Kind& first = anatomy.kinds[shared.kinds.front()];
    for (const auto& [elements, sizes] : {std::pair(&part.dense, &first.whole_dense),
                                          std::pair(&part.experts, &first.whole_experts)})
      if (elements->whole_count > 0) sizes->push_back(static_cast<int64_t>(elements->whole_count));
    if (shared.kinds.size() > 1) anatomy.shared.push_back(std::move(shared));
  }
  return anatomy;
}

Held held_by(const std::vector<SegmentRange>& stages, const models::ModelSpec& spec) {
  Held held;
  for (const SegmentRange& stage : stages)
    for (int64_t i = stage.begin; i < stage.end; ++i)
      held[spec.segments[static_cast<size_t>(i)].kind] += 1;
  return held;
}

Parameters parameters_of(const Anatomy& anatomy, const Held& held) {
  Parameters total;
  for (const auto& [kind, count] : held) total.add(anatomy.kinds.at(kind).parameters, count);
  for (const SharedParameter& shared : anatomy.shared) {
    const auto readers = std::ranges::count_if(
        shared.kinds, [&](int kind) { return held.contains(kind) && held.at(kind) > 0; });
    total.add(shared.parameter, -static_cast<double>(std::max<int64_t>(0, readers - 1)));
  }
  return total;
}

std::vector<Frozen> frozen_parts(const Config& config, const parallelize::PipelinePlan& plan,
                                 const nn::Coordinates& where) {
  const int ranks = *std::ranges::max_element(plan.rank_of_stage) + 1;
  std::vector<Frozen> frozen(static_cast<size_t>(ranks));
  if (config.train.freeze.empty() && !config.peft.on())
    return frozen; // there may be a million layers
  const std::unique_ptr<models::Model> model =
      models::make_model(config.model, {.adapters = plan_adapters(config)});
  const std::vector<models::SegmentSpec>& segments = model->spec().segments;
  std::vector<bool> trains(segments.size(), false);
  for (const nn::Param& param : model->params()) {
    if (pentatron::trainer::trains(config, param)) {
      for (const int64_t segment : param.segments()) trains[static_cast<size_t>(segment)] = true;
      continue;
    }
    const Parameters part = local_part(param, where, config);
    for (const int rank : plan.ranks_of(param.segments())) {
      Frozen& own = frozen[static_cast<size_t>(rank)];
      own.parameters.add(part, 1);
      if (!is_int8(config, param)) continue;
      const double elements = part.all().count;
      own.int8 += elements;
      const int64_t matrices = param.shape().size() == 3 ? param.shape()[0] : 1;
      own.densest = std::max(own.densest, elements / static_cast<double>(matrices));
    }
  }
  model->limit_backward(trains);
  for (int64_t i = 0; i < std::ssize(segments); ++i)
    if (!model->has_backward(i))
      frozen[static_cast<size_t>(plan.ranks_of({i}).front())]
          .idle[segments[static_cast<size_t>(i)].kind] += 1;
  return frozen;
}

} // namespace pentatron::trainer
