#include "pentatron/trainer/memory_plan.h"

#include <algorithm>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/models/model.h"
#include "pentatron/models/parts.h"
#include "pentatron/optim/optimizer.h"
#include "pentatron/optim/rule.h"
#include "pentatron/parallel/context/zigzag.h"
#include "pentatron/parallel/pipeline/schedule/check.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/adapters.h"
#include "pentatron/trainer/families.h"
#include "pentatron/trainer/precision.h"
#include "pentatron/trainer/recompute.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

/// Gradients that the backward pass of a layer holds at a time, of the bytes that the layer kept.
constexpr double kGradients = 0.35;
/// What elementwise work takes as long for a byte of its result, roughly: time and memory bandwidth
/// of a layer's GEMMs.
constexpr double kFlopsOfByte = 32;
/// As in parallel/tensor/vocab.cpp.
constexpr double kLogitsBytes = 128.0 * (1 << 20), kLogitsBytesOnGpu = 1024.0 * (1 << 20);
/// Of a sample in Megatron's order: a place in the documents and in the shuffled order.
constexpr double kOrderBytes = 12;

struct Types {
  double element = 4, acc = 4; ///< bytes
  at::ScalarType dtype = at::kFloat;
};
Types types_of(Precision precision) {
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

/// Elements of parameters, and bytes that the optimizer keeps of them.
struct Elements {
  double count = 0, state = 0;
  double padding = 0; ///< of the count, rows of the vocabulary that are no parameters
  double vectors = 0; ///< bytes that offload.optimizer can move; of these
  double whole = 0;   ///< by rules that need whole parameters
  double whole_count = 0;
  double linear = 0; ///< of weights of linear layers

  double real() const { return count - padding; }
  void add(const Elements& more, double times) {
    count += times * more.count;
    padding += times * more.padding;
    state += times * more.state;
    vectors += times * more.vectors;
    whole += times * more.whole;
    whole_count += times * more.whole_count;
    linear += times * more.linear;
  }
};

/// A kind of segment on one tensor rank.
struct Kind {
  Elements parameters;   ///< that its segments read
  double saved = 0;      ///< bytes kept from forward to backward, by token of train.seq_length
  double freed = 0;      ///< of these, by the parts that are recomputed
  double parts_time = 0; ///< FLOPs of these parts by token, or what takes as long
  double time = 0;       ///< of forward
  double mlp = 0;        ///< of saved, what backward has freed when it comes to attention
  bool is_layer = false; ///< can be recomputed as a whole
};
/// Parameters that segments of several kinds read, and a rank has once.
struct SharedElements {
  Elements parameter;
  std::vector<int> kinds;
};

/// The first rank of the axes that split layers.
nn::Coordinates coordinates_of(const parallelize::ParallelConfig& parallel) {
  const auto axis = [](int64_t size) {
    return nn::AxisPosition{.rank = 0, .size = static_cast<int>(size)};
  };
  const int64_t tp = parallel.tensor_model_parallel_size;
  return {{"tp", axis(tp)},
          {"ep", axis(parallel.expert_model_parallel_size)},
          {"etp", axis(parallel.expert_tensor_parallel_size.value_or(tp))}};
}

/// As nn::local_numel(), for numbers beyond 64 bits.
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
Elements local_elements(const nn::Param& param, const nn::Coordinates& where, const Config& run) {
  double count = 1;
  for (const int64_t n : nn::local_shape(param.spec(), where)) count *= static_cast<double>(n);
  const at::ScalarType dtype = types_of(run.dtype).dtype;
  const double vectors = count * optim::vector_bytes(run.optimizer, param.spec(), dtype);
  const bool whole =
      optim::make_rule(run.optimizer, optim::rule_name(run.optimizer, param.spec()))->needs_whole();
  return {.count = count,
          .state = count * optim::state_bytes(run.optimizer, param.spec(), dtype, where),
          .padding = count - real_elements(param.spec(), where),
          .vectors = vectors,
          .whole = whole ? vectors : 0,
          .whole_count = whole ? count : 0,
          .linear = param.linear ? count : 0};
}

/// Tokens of train.seq_length that the rank with most of them has of a sample.
double own_length(const Config& config) {
  const auto cp = static_cast<int>(config.parallel.context_parallel_size);
  int64_t most = 0;
  for (int rank = 0; rank < std::min(cp, 2); ++rank)
    most = std::max(most, parallel::zigzag_tokens(config.train.seq_length, rank, cp));
  return static_cast<double>(most);
}

/// Of the stream that has the labels, for one token of train.seq_length.
double targets_by_token(const Config& config) {
  return static_cast<double>(stream_lengths(config).back()) /
         static_cast<double>(config.train.seq_length);
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

/// A model's segments by kind; of each kind one is looked at.
struct Anatomy {
  std::map<int, Kind> kinds;
  std::vector<SharedElements> shared;
};
/// Settings that name layers by number may match none of a model with one layer; the first of the
/// whole model stands for all then.
std::shared_ptr<const nn::AdapterPlan> adapters_of_one_layer(const Config& one, const Config& run) {
  try {
    return plan_adapters(one);
  } catch (const ConfigError&) {
    return plan_adapters(run);
  }
}

Anatomy anatomy_of(const Config& run, const nn::Coordinates& where) {
  const Types types = types_of(run.dtype);
  Config small_run = run;
  small_run.model = run.model.with_one_layer();
  const models::ModelConfig& small = small_run.model;
  const models::ModelSpec spec = models::model_spec(small);
  constexpr int64_t kEnough = 4096; // tokens; bytes of more might not be a number
  const int64_t tokens = std::min(kEnough, run.train.seq_length);
  std::vector<int64_t> lengths(spec.streams.size(), tokens);
  lengths.back() = std::max(
      int64_t{1}, static_cast<int64_t>(static_cast<double>(tokens) * targets_by_token(run)));
  std::vector<nn::LayerShape> shapes = models::stream_shapes(spec, 1, lengths);
  for (nn::LayerShape& shape : shapes) {
    shape.element_bytes = static_cast<int64_t>(types.element);
    shape.acc_bytes = static_cast<int64_t>(types.acc);
    shape.tp = where.at("tp").size;
    shape.sequence_parallel = run.parallel.sequence_parallel;
    shape.ep = where.at("ep").size;
    shape.etp = where.at("etp").size;
    shape.gathers_tokens =
        run.parallel.moe_token_dispatcher_type == parallel::DispatchKind::kAllGather;
  }
  const auto by_token = [&](int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(tokens);
  };
  const nn::Parts parts = recomputation(run.train).parts;
  Anatomy anatomy;
  for (int64_t i = 0; i < spec.num_segments(); ++i) {
    const models::SegmentSpec& segment = spec.segments[static_cast<size_t>(i)];
    const nn::Cost cost = models::segment_cost(small, shapes, i);
    anatomy.kinds[segment.kind] = {
        .saved = by_token(cost.saved_bytes),
        .freed = by_token(cost.freed_bytes(parts)),
        .parts_time = (cost.recomputed_flops(parts) +
                       kFlopsOfByte * static_cast<double>(cost.freed_bytes(parts))) /
                      static_cast<double>(tokens),
        .time = cost.forward_flops() / static_cast<double>(tokens),
        .mlp = by_token(cost.bytes_of(nn::Part::kMlp) + cost.bytes_of(nn::Part::kMoe)),
        .is_layer = segment.recomputed};
  }
  const std::unique_ptr<models::Model> model =
      models::make_model(small, {.adapters = adapters_of_one_layer(small_run, run)});
  for (const nn::Param& param : model->params()) {
    const Elements elements = local_elements(param, where, run);
    SharedElements shared{.parameter = elements, .kinds = {}};
    for (const int64_t unit : param.units()) {
      shared.kinds.push_back(spec.segments[static_cast<size_t>(unit)].kind);
      anatomy.kinds[shared.kinds.back()].parameters.add(elements, 1);
      if (param.adapter)
        anatomy.kinds[shared.kinds.back()].saved += types.element * saved_by_adapter(param, small);
    }
    if (shared.kinds.size() > 1) anatomy.shared.push_back(std::move(shared));
  }
  return anatomy;
}

/// How many segments of each kind.
using Held = std::map<int, double>;
Held held_by(const std::vector<SegmentRange>& stages, const models::ModelSpec& spec) {
  Held held;
  for (const SegmentRange& stage : stages)
    for (int64_t i = stage.begin; i < stage.end; ++i)
      held[spec.segments[static_cast<size_t>(i)].kind] += 1;
  return held;
}

Elements elements_of(const Anatomy& anatomy, const Held& held) {
  Elements total;
  for (const auto& [kind, count] : held) total.add(anatomy.kinds.at(kind).parameters, count);
  for (const SharedElements& shared : anatomy.shared) {
    const auto readers = std::ranges::count_if(
        shared.kinds, [&](int kind) { return held.contains(kind) && held.at(kind) > 0; });
    total.add(shared.parameter, -static_cast<double>(std::max<int64_t>(0, readers - 1)));
  }
  return total;
}

/// What a pipeline rank does not train.
struct Frozen {
  Elements parameters;
  Held idle;                    ///< segments without a backward pass
  double int8 = 0, densest = 0; ///< elements in 8 bits, and of the largest of their matrices
};
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
      for (const int64_t unit : param.units()) trains[static_cast<size_t>(unit)] = true;
      continue;
    }
    const Elements elements = local_elements(param, where, config);
    for (const int rank : plan.ranks_of(param.units())) {
      Frozen& own = frozen[static_cast<size_t>(rank)];
      own.parameters.add(elements, 1);
      if (!is_int8(config, param)) continue;
      own.int8 += elements.count;
      const int64_t matrices = param.shape().size() == 3 ? param.shape()[0] : 1;
      own.densest = std::max(own.densest, elements.count / static_cast<double>(matrices));
    }
  }
  model->limit_backward(trains);
  for (int64_t i = 0; i < std::ssize(segments); ++i)
    if (!model->has_backward(i))
      frozen[static_cast<size_t>(plan.ranks_of({i}).front())]
          .idle[segments[static_cast<size_t>(i)].kind] += 1;
  return frozen;
}

/// Passes of the rank's stages whose activations are kept at the same time.
std::vector<int> live_passes(const parallelize::PipelinePlan& plan, double microbatches) {
  const int ranks = *std::ranges::max_element(plan.rank_of_stage) + 1;
  if (ranks == 1 && plan.rank_of_stage.size() == 1) return {1};
  const auto enough = static_cast<double>(4 * plan.rank_of_stage.size());
  const auto verdict =
      pipeline::check(plan.make(static_cast<int>(std::clamp(microbatches, 1.0, enough))));
  std::vector<int> live(static_cast<size_t>(ranks), 1);
  for (size_t r = 0; r < live.size() && r < verdict.peaks.size(); ++r)
    live[r] = std::max(1, verdict.peaks[r].live);
  return live;
}

/// What the adapter of an output layer adds to the loss.
struct OutputAdapter {
  double logits = 1; ///< how often a chunk of tokens has them
  double values = 0; ///< of each word: DoRA's norms and factors, and B in the accumulate type
};
OutputAdapter output_adapter_of(const Config& config, const Types& types) {
  if (!config.peft.on()) return {};
  const auto plan = plan_adapters(config);
  const auto found = plan->weights.find(models::kOutputWeight);
  if (found == plan->weights.end()) return {};
  const auto rank = static_cast<double>(found->second.front().rank);
  return {.logits = plan->dora ? 2.0 : 1.0,
          .values = (types.element < types.acc ? rank : 0) + (plan->dora ? 2 : 0)};
}

class Planner {
 public:
  Planner(const Config& config, int world_size)
      : c_(config), types_(types_of(config.dtype)),
        output_adapter_(output_adapter_of(config, types_)),
        tp_(static_cast<int>(config.parallel.tensor_model_parallel_size)),
        cp_(static_cast<double>(config.parallel.context_parallel_size)),
        dp_(parallelize::data_parallel_size(config.parallel, world_size)), ranks_(world_size),
        replicas_(dp_ * static_cast<int>(config.parallel.context_parallel_size)),
        spec_(models::model_spec(config.model)),
        plan_(parallelize::plan_pipeline(config.parallel, config.model, stream_lengths(config))),
        anatomy_(anatomy_of(config, coordinates_of(config.parallel))),
        frozen_(frozen_parts(config, plan_, coordinates_of(config.parallel))),
        tokens_(static_cast<double>(config.train.micro_batch_size) * own_length(config)) {
    const double microbatches = static_cast<double>(config.train.global_batch_size) /
                                static_cast<double>(config.train.micro_batch_size) / dp_;
    live_ = live_passes(plan_, microbatches);
  }

  int pipeline_ranks() const { return static_cast<int>(live_.size()); }

  /// FLOPs of a microbatch that the rank computes again, or what takes as long.
  double recomputed(int rank) const {
    Held whole = recomputed_layers(rank);
    double time = 0;
    for (const auto& [kind, count] : held(rank)) {
      const Kind& one = anatomy_.kinds.at(kind);
      time += whole[kind] * (one.time + kFlopsOfByte * one.saved) +
              (count - whole[kind]) * one.parts_time;
    }
    return tokens_ * time;
  }

  double parameters(int rank) const { return elements_of(anatomy_, held(rank)).real(); }

  RankMemory memory(int rank) const {
    RankMemory m;
    Elements updated = elements_of(anatomy_, held(rank));
    const double own = updated.count;
    updated.add(frozen_[static_cast<size_t>(rank)].parameters, -1);
    const double trained = updated.count;
    const int64_t zero = replicas_ > 1 ? c_.ddp.zero_stage : 0;
    const double shards =
        std::max(1.0, static_cast<double>(replicas_) /
                          static_cast<double>(c_.ddp.num_distributed_optimizer_instances));
    const auto share = [&](double elements, int64_t from_stage) {
      return zero >= from_stage ? elements / shards : elements;
    };
    double unit = 0, gathered = 0; // the largest segment, and its bytes where others use it
    for (const auto& [kind, one] : anatomy_.kinds) {
      unit = std::max(unit, one.parameters.count);
      const double codes = zero > 0 && sends_codes(c_) ? one.parameters.linear : 0;
      gathered = std::max(gathered, types_.element * (one.parameters.count - codes) + codes);
    }
    // Resident gradients are summed where they are.
    const double bucket =
        zero >= 2 ? std::min(trained, std::max(static_cast<double>(c_.ddp.bucket_size), unit)) : 0;
    const double codes = zero > 0 ? coded_elements(rank) : 0; // a byte each, beside own values
    m.weights = types_.element * (share(own - codes, 3) + share(codes, 1)) + share(codes, 3) +
                (zero >= 3 ? std::min(types_.element * own, 2 * gathered) : 0);
    const Frozen& own8 = frozen_[static_cast<size_t>(rank)]; // one matrix is dense while it is used
    m.weights += nn::Int8Weight::kBytes * own8.int8 + types_.element * (own8.densest - own8.int8);
    m.gradients = types_.acc * (share(trained, 2) + bucket);
    if (c_.offload.optimizer) {
      const double away = c_.offload.optimizer_fraction;
      m.disk = away * share(updated.vectors, 1);
      m.window =
          std::min(m.disk, 3 * std::max(part_of(updated.vectors - updated.whole,
                                                updated.count - updated.whole_count,
                                                optim::AwayState::kPart, away * share(1, 1)),
                                        part_of(updated.whole, updated.whole_count,
                                                optim::AwayState::kWholePart, away * share(1, 1))));
    }
    m.optimizer = share(updated.state, 1) - m.disk + m.window;
    if (held(rank).contains(spec_.segments.back().kind)) {
      const double vocab = static_cast<double>(c_.model.vocab_size) / tp_;
      const double targets = tokens_ * targets_by_token(c_);
      const double logits = types_.acc * output_adapter_.logits;
      const double most = on_cpu(c_.device) ? kLogitsBytes : kLogitsBytesOnGpu;
      const double rows = std::min(targets, most / (logits * vocab));
      // On GPUs a gradient in 16 bits lies beside the logits, all others take their place.
      const bool apart = types_.element < types_.acc && !on_cpu(c_.device);
      const double gradient = apart ? types_.element : 0;
      m.loss = rows * vocab * (logits + gradient) + targets * types_.acc +
               output_adapter_.values * vocab * types_.acc;
    }
    m.activations = activations(rank, m.loss);
    const double samples = static_cast<double>(c_.train.global_batch_size) / dp_;
    // Numbers, labels, positions, documents.
    const double bytes_of_token = 8 * (4 + static_cast<double>(spec_.shifted_fields.size()));
    m.data = bytes_of_token * samples * static_cast<double>(c_.train.seq_length) *
             static_cast<double>(c_.dataset.prefetch + 2);
    if (c_.dataset.type == data::DatasetType::kIndexed &&
        c_.dataset.order == data::SampleOrder::kMegatron)
      m.data +=
          kOrderBytes / ranks_ * // which share it
          static_cast<double>(batch_schedule(c_.train).samples_after(total_iterations(c_.train)));
    if (c_.checkpoint.async_save && !c_.checkpoint.save.empty())
      m.saving = std::min(static_cast<double>(c_.checkpoint.staging_limit) * (1 << 20),
                          m.weights + m.optimizer - m.window + m.disk);
    return m;
  }

 private:
  /// Bytes of a part of so many elements, of a rank's share of vectors.
  static double part_of(double bytes, double count, int64_t elements, double share) {
    return count > 0 ? std::min(bytes * share, bytes / count * static_cast<double>(elements)) : 0;
  }

  Held held(int rank) const { return held_by(plan_.stages_of(rank), spec_); }

  /// Elements that ranks send as codes in FP8.
  double coded_elements(int rank) const {
    if (!sends_codes(c_)) return 0;
    const std::vector<bool> quantised = quantised_segments(c_);
    double count = 0;
    for (const SegmentRange& stage : plan_.stages_of(rank))
      for (int64_t i = stage.begin; i < stage.end; ++i)
        if (quantised[static_cast<size_t>(i)])
          count += anatomy_.kinds.at(spec_.segments[static_cast<size_t>(i)].kind).parameters.linear;
    return count;
  }

  /// How many layers of each kind are recomputed as a whole.
  Held recomputed_layers(int rank) const {
    const nn::Recomputation again = recomputation(c_.train);
    Held whole;
    if (!again.layers) return whole;
    for (const SegmentRange& stage : plan_.stages_of(rank)) {
      int64_t layers = 0;
      for (int64_t i = stage.begin; i < stage.end; ++i) {
        const models::SegmentSpec& segment = spec_.segments[static_cast<size_t>(i)];
        if (!segment.recomputed) continue;
        if (again.count == 0 || layers++ < again.count) whole[segment.kind] += 1;
      }
    }
    return whole;
  }

  /// Of the rank's layers.
  double offloaded_share(int rank) const {
    if (!c_.offload.activations) return 0;
    double all = 0, gone = 0;
    for (const SegmentRange& stage : plan_.stages_of(rank)) {
      double layers = 0;
      for (int64_t i = stage.begin; i < stage.end; ++i)
        layers += spec_.segments[static_cast<size_t>(i)].recomputed;
      const auto wanted = static_cast<double>(c_.offload.num_layers);
      all += layers;
      gone += wanted > 0 ? std::min(wanted, layers) : std::max(0.0, layers - 1);
    }
    return all > 0 ? gone / all : 0;
  }

  /// The memory of the loss is free again when the layers' backward begins.
  double activations(int rank, double loss) const {
    const double hidden = types_.element * static_cast<double>(c_.model.hidden_size);
    const nn::Recomputation again = recomputation(c_.train);
    Held active = held(rank), whole = recomputed_layers(rank);
    for (const auto& [kind, count] : frozen_[static_cast<size_t>(rank)].idle) active[kind] -= count;
    const double away = offloaded_share(rank);
    double kept = 0, working = 0;
    for (const auto& [kind, count] : active) {
      const Kind& one = anatomy_.kinds.at(kind);
      double saved = one.saved, input = hidden;
      if (one.is_layer && c_.parallel.sequence_parallel && tp_ > 1) {
        saved -= 2 * hidden * (1 - 1.0 / tp_); // norms and their inputs are split
        input /= tp_;
      }
      // Backward of a layer frees what it has used, so its gradients need less than it has kept,
      // and what context ranks exchange takes the place of what the MLP has kept.
      if (one.is_layer)
        working = std::max(working, saved * (kGradients +
                                             (again.layers ? static_cast<double>(again.group) : 0) +
                                             (away > 0 ? 1 : 0)) +
                                        std::max(0.0, exchanged() - one.mlp));
      const double layers = std::min(count, whole[kind]), stays = one.is_layer ? 1 - away : 1;
      // The parts are made again for one layer after the other. Inputs of layers that do not run
      // again never leave.
      kept += (count - layers) * (stays * (saved - one.freed) + (1 - stays) * input) +
              layers * stays * input / static_cast<double>(again.group);
    }
    const double stages = static_cast<double>(plan_.stages_of(rank).size());
    return tokens_ * kept * live_[static_cast<size_t>(rank)] / stages +
           std::max(0.0, tokens_ * (working + 2 * hidden) - loss);
  }

  /// What attention over context ranks holds for a token beside what it keeps: in a ring keys and
  /// values of two ranks and three sums of their gradients, else those of all ranks; and sums of
  /// outputs and of gradients of queries.
  double exchanged() const {
    if (cp_ == 1) return 0;
    const double size = static_cast<double>(c_.model.head_size()) / tp_,
                 values =
                     2 * size * std::max<double>(tp_, static_cast<double>(c_.model.query_groups())),
                 queries = size * static_cast<double>(c_.model.num_attention_heads);
    const bool gathers =
        std::ranges::find(c_.parallel.cp_comm_type, parallel::ContextComm::kAllGather) !=
        c_.parallel.cp_comm_type.end();
    return queries * 2 * types_.acc + values * (gathers ? cp_ * (types_.element + 2 * types_.acc)
                                                        : 2 * types_.element + 3 * types_.acc);
  }

  const Config& c_;
  Types types_;
  OutputAdapter output_adapter_;
  int tp_;
  double cp_;
  int dp_;
  double ranks_;
  int replicas_; ///< ranks that hold the same parameters, over dp and cp
  models::ModelSpec spec_;
  parallelize::PipelinePlan plan_;
  Anatomy anatomy_;
  std::vector<Frozen> frozen_; // by pipeline rank
  double tokens_;
  std::vector<int> live_;
};

/// Of all ranks: weights, the optimizer's state, parity files and exported weights.
double checkpoint_bytes(const Config& config, const Elements& all, const Elements& frozen,
                        int world_size) {
  const CheckpointConfig& c = config.checkpoint;
  const double element = types_of(config.dtype).element;
  const double values = element * (config.peft.on() ? all.real() - frozen.real() : all.real());
  const double state = all.state - frozen.state;
  // A parity file is as large as the largest of the ranks' files.
  const double parity = static_cast<double>(c.parity) * std::max(values, state) / world_size;
  return values + state + parity + (c.export_hf && !config.peft.on() ? values : 0);
}

} // namespace

MemoryPlan plan_memory(const Config& config, int world_size, const LocalRanks& here) {
  // Prepared batches have a length of their own.
  if (const int64_t length = stream_lengths(config).front(); length != config.train.seq_length) {
    Config sized = config;
    sized.train.seq_length = length;
    return plan_memory(sized, world_size, here);
  }
  const Planner planner(config, world_size);
  MemoryPlan plan;
  double all = 0, away = 0;
  for (int rank = 0; rank < planner.pipeline_ranks(); ++rank) {
    const RankMemory memory = planner.memory(rank);
    all += memory.total();
    away += memory.disk;
    plan.pipeline.push_back(memory);
    if (memory.total() > plan.rank.total()) plan.rank = memory;
    plan.rank_parameters = std::max(plan.rank_parameters, planner.parameters(rank));
    plan.recomputed = std::max(plan.recomputed, planner.recomputed(rank));
  }
  const models::ModelSpec spec = models::model_spec(config.model);
  const parallelize::PipelinePlan whole{.stages = {{0, spec.num_segments()}}};
  const Elements all_parameters = elements_of(anatomy_of(config, coordinates_of({})),
                                              held_by({{0, spec.num_segments()}}, spec));
  const Elements frozen = frozen_parts(config, whole, coordinates_of({})).front().parameters;
  plan.parameters = all_parameters.real();
  plan.frozen_parameters = frozen.real();
  plan.checkpoint = checkpoint_bytes(config, all_parameters, frozen, world_size);
  if (config.checkpoint.node_local)
    plan.checkpoint *= std::min(1.0, static_cast<double>(here.ranks) / world_size);
  // All ranks are here, or as many of the most expensive ones as are.
  const double ranks = here.ranks;
  plan.machine =
      here.ranks >= world_size ? all / planner.pipeline_ranks() * ranks : plan.rank.total() * ranks;
  plan.machine += kProcessBytes * here.processes;
  plan.disk =
      here.ranks >= world_size ? away / planner.pipeline_ranks() * ranks : plan.rank.disk * ranks;
  return plan;
}

} // namespace pentatron::trainer
