#include "pentatron/trainer/memory_plan.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/models/model.h"
#include "pentatron/optim/rule.h"
#include "pentatron/parallel/context/zigzag.h"
#include "pentatron/parallel/pipeline/schedule/check.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/adapters.h"
#include "pentatron/trainer/families.h"
#include "pentatron/trainer/model_tokenizer.h"

namespace pentatron::trainer {

namespace {

/// LibTorch, its threads and tables, of each process: a round number.
constexpr double kProcessBytes = 300e6;
/// A refusal of what would run is worse than an allocator's message, so only what needs clearly
/// more than is free is refused; what is advised needs clearly less.
constexpr double kRefused = 1.2, kAdvised = 0.9;
/// As in parallel/tensor/vocab.cpp.
constexpr double kLogitsBytes = 128.0 * (1 << 20);

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

  void add(const Elements& more, double times) {
    count += times * more.count;
    state += times * more.state;
  }
};

/// A kind of segment on one tensor rank.
struct Kind {
  Elements parameters;   ///< that its segments read
  double saved = 0;      ///< bytes kept from forward to backward, by token of train.seq_length
  double activation = 0; ///< of these, what recompute=selective frees
  bool is_layer = false; ///< recompute=full keeps its input alone
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

/// Of a rank at `where`.
Elements local_elements(const nn::Param& param, const nn::Coordinates& where, const Config& run) {
  double count = 1;
  for (const int64_t n : nn::local_shape(param.spec(), where)) count *= static_cast<double>(n);
  return {.count = count,
          .state = count * optim::state_bytes(run.optimizer, param.spec(),
                                              types_of(run.dtype).dtype, where)};
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
  if (param.name().find(".lora_magnitude") != std::string::npos)
    return static_cast<double>(param.shape()[0]);
  return 0;
}

/// A model's segments by kind; of each kind one is looked at.
struct Anatomy {
  std::map<int, Kind> kinds;
  std::vector<SharedElements> shared;
};
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
  }
  const auto by_token = [&](int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(tokens);
  };
  Anatomy anatomy;
  for (int64_t i = 0; i < spec.num_segments(); ++i) {
    const models::SegmentSpec& segment = spec.segments[static_cast<size_t>(i)];
    const nn::Cost cost = models::segment_cost(small, shapes, i);
    anatomy.kinds[segment.kind] = {.saved = by_token(cost.saved_bytes),
                                   .activation = by_token(cost.activation_bytes),
                                   .is_layer = segment.recomputed};
  }
  const std::unique_ptr<models::Model> model =
      models::make_model(small, {.adapters = plan_adapters(small_run)});
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

class Planner {
 public:
  Planner(const Config& config, int world_size)
      : c_(config), types_(types_of(config.dtype)),
        tp_(static_cast<int>(config.parallel.tensor_model_parallel_size)),
        cp_(static_cast<double>(config.parallel.context_parallel_size)),
        dp_(parallelize::data_parallel_size(config.parallel, world_size)),
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

  double parameters(int rank) const { return elements_of(anatomy_, held(rank)).count; }

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
    double unit = 0; // the largest segment
    for (const auto& [kind, one] : anatomy_.kinds) unit = std::max(unit, one.parameters.count);
    const double bucket =
        replicas_ > 1 ? std::min(trained, std::max(static_cast<double>(c_.ddp.bucket_size), unit))
                      : 0;
    m.weights = types_.element * (share(own, 3) + (zero >= 3 ? std::min(own, 2 * unit) : 0));
    const Frozen& own8 = frozen_[static_cast<size_t>(rank)]; // one matrix is dense while it is used
    m.weights += nn::Int8Weight::kBytes * own8.int8 + types_.element * (own8.densest - own8.int8);
    m.gradients = types_.acc * (share(trained, 2) + bucket);
    m.optimizer = share(updated.state, 1);
    if (held(rank).contains(spec_.segments.back().kind)) {
      const double vocab = static_cast<double>(c_.model.vocab_size) / tp_;
      const double targets = tokens_ * targets_by_token(c_);
      const double rows = std::min(targets, kLogitsBytes / (types_.acc * vocab));
      m.loss = rows * vocab * (types_.acc + types_.element) + targets * types_.acc;
    }
    m.activations = activations(rank, m.loss);
    const double samples = static_cast<double>(c_.train.global_batch_size) / dp_;
    // Numbers, labels, positions, documents.
    const double bytes_of_token = 8 * (4 + static_cast<double>(spec_.shifted_fields.size()));
    m.data = bytes_of_token * samples * static_cast<double>(c_.train.seq_length) *
             static_cast<double>(c_.dataset.prefetch + 2);
    if (c_.checkpoint.async_save && !c_.checkpoint.save.empty())
      m.saving = std::min(static_cast<double>(c_.checkpoint.staging_limit) * (1 << 20),
                          m.weights + m.optimizer);
    return m;
  }

 private:
  Held held(int rank) const { return held_by(plan_.stages_of(rank), spec_); }

  /// The memory of the loss is free again when the layers' backward begins.
  double activations(int rank, double loss) const {
    const double hidden = types_.element * static_cast<double>(c_.model.hidden_size);
    const bool recomputes = c_.train.recompute == Recompute::kFull,
               selective = c_.train.recompute == Recompute::kSelective;
    Held active = held(rank);
    for (const auto& [kind, count] : frozen_[static_cast<size_t>(rank)].idle) active[kind] -= count;
    double kept = 0, largest = 0;
    for (const auto& [kind, count] : active) {
      const Kind& one = anatomy_.kinds.at(kind);
      double saved = one.saved, input = hidden;
      if (one.is_layer && c_.parallel.sequence_parallel && tp_ > 1) {
        saved -= 2 * hidden * (1 - 1.0 / tp_); // norms and their inputs are split
        input /= tp_;
      }
      if (one.is_layer) largest = std::max(largest, saved);
      if (selective) saved -= one.activation; // made again, for one layer after the other
      kept += count * (recomputes && one.is_layer ? input : saved);
    }
    const double stages = static_cast<double>(plan_.stages_of(rank).size());
    // Backward of a layer makes a gradient of about everything that it has kept.
    const double working = largest * (recomputes ? 2 : 1) + 2 * hidden + exchanged();
    return tokens_ * kept * live_[static_cast<size_t>(rank)] / stages +
           std::max(0.0, tokens_ * working - loss);
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
  int tp_;
  double cp_;
  int dp_, replicas_; ///< ranks that hold the same parameters, over dp and cp
  models::ModelSpec spec_;
  parallelize::PipelinePlan plan_;
  Anatomy anatomy_;
  std::vector<Frozen> frozen_; // by pipeline rank
  double tokens_;
  std::vector<int> live_;
};

bool fits(const Config& config, int world_size, const LocalRanks& here, double bytes) {
  return plan_memory(config, world_size, here).machine <= bytes;
}

} // namespace

MemoryPlan plan_memory(const Config& config, int world_size, const LocalRanks& here) {
  const Planner planner(config, world_size);
  MemoryPlan plan;
  double all = 0;
  for (int rank = 0; rank < planner.pipeline_ranks(); ++rank) {
    const RankMemory memory = planner.memory(rank);
    all += memory.total();
    if (memory.total() > plan.rank.total()) plan.rank = memory;
    plan.rank_parameters = std::max(plan.rank_parameters, planner.parameters(rank));
  }
  const models::ModelSpec spec = models::model_spec(config.model);
  const parallelize::PipelinePlan whole{.stages = {{0, spec.num_segments()}}};
  plan.parameters =
      elements_of(anatomy_of(config, coordinates_of({})), held_by({{0, spec.num_segments()}}, spec))
          .count;
  plan.frozen_parameters = frozen_parts(config, whole, coordinates_of({})).front().parameters.count;
  // All ranks are here, or as many of the most expensive ones as are.
  const double ranks = here.ranks;
  plan.machine =
      here.ranks >= world_size ? all / planner.pipeline_ranks() * ranks : plan.rank.total() * ranks;
  plan.machine += kProcessBytes * here.processes;
  return plan;
}

std::string describe_limits(const Config& config, const MemoryPlan& plan,
                            std::optional<int64_t> free_bytes) {
  const RankMemory& r = plan.rank;
  constexpr size_t kColumns = 120;
  std::string memory = fmt::format("memory       about {} a rank:", format_bytes(r.total()));
  size_t line = memory.size();
  for (const auto& [name, bytes] : {std::pair{"weights", r.weights},
                                    {"gradients", r.gradients},
                                    {"optimizer", r.optimizer},
                                    {"activations", r.activations},
                                    {"loss", r.loss},
                                    {"data", r.data},
                                    {"saving", r.saving}})
    if (bytes > 0) {
      const std::string part = fmt::format(" {} {},", name, format_bytes(bytes));
      if (line + part.size() > kColumns) {
        memory += "\n            ";
        line = 12;
      }
      memory += part;
      line += part.size();
    }
  if (memory.ends_with(',')) memory.pop_back();
  const int64_t steps = total_iterations(config.train);
  const double tokens = static_cast<double>(batch_schedule(config.train).samples_after(steps)) *
                        static_cast<double>(config.train.seq_length);
  return fmt::format("model        {} parameters{} ({} on a rank), {}, hidden size {}\n"
                     "{}\n"
                     "             about {} on this machine{}\n"
                     "length       {} {}, {} tokens",
                     format_count(plan.parameters),
                     plan.frozen_parameters > 0
                         ? fmt::format(", {} of them frozen", format_count(plan.frozen_parameters))
                         : "",
                     format_count(plan.rank_parameters), counted(config.model.num_layers, "layer"),
                     config.model.hidden_size, memory, format_bytes(plan.machine),
                     free_bytes ? fmt::format(", which has {} free",
                                              format_bytes(static_cast<double>(*free_bytes)))
                                : "",
                     format_grouped(steps), noun_for(steps, "iteration"), format_count(tokens));
}

namespace {

/// The largest n in [1, limit] for which `works`, of a property that small numbers have; 0 if none.
int64_t largest(int64_t limit, const std::function<bool(int64_t)>& works) {
  if (limit < 1 || !works(1)) return 0;
  int64_t low = 1, high = limit;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    (works(middle) ? low : high) = works(middle) ? middle : middle - 1;
  }
  return low;
}

/// The longest sequence that is enough of a change; a table of positions becomes as long.
std::optional<std::string> shorter_sequence(const Config& from,
                                            const std::function<bool(const Config&)>& enough) {
  if (from.dataset.type == data::DatasetType::kBatches) return std::nullopt; // theirs is fixed
  const bool table =
      from.model.position_embedding_type == models::PositionEmbedding::kLearnedAbsolute &&
      from.checkpoint.load.empty();
  const auto with_length = [&](int64_t n) {
    Config c = from;
    c.train.seq_length = n;
    if (table) c.model.max_position_embeddings = n + from.model.position_offset;
    return c;
  };
  const int64_t n =
      largest(from.train.seq_length - 1, [&](int64_t k) { return enough(with_length(k)); });
  if (n == 0) return std::nullopt;
  std::string keys = fmt::format("train.seq_length={}", n);
  if (table)
    keys += fmt::format(" model.max_position_embeddings={}", n + from.model.position_offset);
  return keys;
}

/// What to change, one thing after the other until it fits; the smallest change first.
std::string remedy(Config config, int world_size, const LocalRanks& here, int64_t free_bytes) {
  std::vector<std::string> changes;
  const auto enough = [&](const Config& c) {
    return fits(c, world_size, here, kAdvised * static_cast<double>(free_bytes));
  };
  const auto list = [&] { return fmt::format("{}", fmt::join(changes, " ")); };
  const int dp = parallelize::data_parallel_size(config.parallel, world_size);
  // Microbatches of which whole numbers make every batch.
  const auto smaller_micro_batch = [&](const Config& from) -> std::optional<Config> {
    const int64_t before = from.train.micro_batch_size;
    for (int64_t n = before - 1; n >= 1; n = std::min(n - 1, n > 4096 ? n / 2 : n)) {
      Config to = from;
      to.train.micro_batch_size = n;
      config::Violations violations;
      batch_schedule(to.train).check(n, dp, violations, "train.global_batch_size");
      if (violations.empty() && enough(to)) return to;
    }
    return std::nullopt;
  };
  const auto try_micro_batch = [&](const Config& from) {
    const auto to = smaller_micro_batch(from);
    if (to) changes.push_back(fmt::format("train.micro_batch_size={}", to->train.micro_batch_size));
    return to.has_value();
  };
  // Batches that are prepared ahead take memory, too.
  const double data = plan_memory(config, world_size, here).rank.data * here.ranks;
  const double room = 0.1 * static_cast<double>(free_bytes);
  if (data > room && config.train.step_batch_size_schedule.empty() &&
      config.train.rampup_batch_size.empty()) {
    const double each = static_cast<double>(config.train.global_batch_size) / dp * room / data;
    const auto samples = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(each) | 1));
    config.train.global_batch_size = samples * dp;
    config.train.micro_batch_size = std::min(config.train.micro_batch_size, samples + 1);
    changes.push_back(fmt::format("train.global_batch_size={}", config.train.global_batch_size));
  }
  if (try_micro_batch(config)) return list();
  const Recompute recompute = config.train.recompute;
  for (const auto& [more, change] : {std::pair{Recompute::kSelective, "train.recompute=selective"},
                                     {Recompute::kFull, "train.recompute=full"}}) {
    if (more <= recompute) continue;
    config.train.recompute = more;
    changes.emplace_back(change);
    if (enough(config) || try_micro_batch(config)) return list();
    changes.pop_back();
  }
  config.train.recompute = recompute;
  if (dp * config.parallel.context_parallel_size > 1 && config.ddp.zero_stage < 3) {
    const int64_t before = config.ddp.zero_stage;
    for (int64_t stage = before + 1; stage <= 3; ++stage) {
      config.ddp.zero_stage = stage;
      changes.push_back(fmt::format("ddp.zero_stage={}", stage));
      if (enough(config) || try_micro_batch(config)) return list();
      changes.pop_back();
    }
    config.ddp.zero_stage = before;
  }
  // Only as many tokens as the text has; those of a loaded model and of a corpus are what they are.
  if (config.checkpoint.load.empty()) {
    const int64_t vocabulary = config.dataset.type == data::DatasetType::kMock
                                   ? models::ModelConfig{}.vocab_size
                                   : tokenizer_vocabulary(config).value_or(config.model.vocab_size);
    Config to = config;
    to.model.vocab_size = std::min(vocabulary, config.model.vocab_size);
    if (to.model.vocab_size < config.model.vocab_size) {
      changes.push_back(fmt::format("model.vocab_size={}", to.model.vocab_size));
      if (enough(to) || try_micro_batch(to)) return list();
      changes.pop_back();
    }
  }
  // A smaller model, for the smallest microbatch that makes whole batches.
  Config small = config;
  for (int64_t n = 1; n < config.train.micro_batch_size; ++n) {
    config::Violations violations;
    batch_schedule(config.train).check(n, dp, violations, "train.global_batch_size");
    if (!violations.empty()) continue;
    small.train.micro_batch_size = n;
    changes.push_back(fmt::format("train.micro_batch_size={}", n));
    break;
  }
  const auto with_layers = [&](int64_t n) {
    Config c = small;
    c.model.num_layers = n * config.parallel.pipeline_model_parallel_size;
    return c;
  };
  // A list says which layers have experts, and would have to be cut, too.
  const bool listed = config.model.moe_layer_freq.starts_with('[');
  const int64_t layers =
      listed ? 0
             : largest(config.model.num_layers / config.parallel.pipeline_model_parallel_size,
                       [&](int64_t n) { return enough(with_layers(n)); });
  if (layers > 0) {
    changes.push_back(fmt::format("model.num_layers={}", with_layers(layers).model.num_layers));
    return list();
  }
  // Heads of a size that rotary positions and kernels take.
  const int64_t step = 8 * config.model.num_attention_heads;
  const auto with_hidden = [&](int64_t n) {
    Config c = small;
    c.model.hidden_size = n * step;
    return c;
  };
  const int64_t hidden =
      largest(config.model.hidden_size / step, [&](int64_t n) { return enough(with_hidden(n)); });
  if (hidden > 0) {
    changes.push_back(fmt::format("model.hidden_size={}", with_hidden(hidden).model.hidden_size));
    return list();
  }
  if (const auto length = shorter_sequence(small, enough)) {
    changes.push_back(*length);
    return list();
  }
  return "a smaller model, or more machines";
}

} // namespace

void require_memory(const Config& config, int world_size, const LocalRanks& here,
                    int64_t free_bytes) {
  if (fits(config, world_size, here, kRefused * static_cast<double>(free_bytes))) return;
  const MemoryPlan plan = plan_memory(config, world_size, here);
  raise<ConfigError>("the run needs about {} of memory on this machine ({} a rank), which has {} "
                     "free\n  try: {}, or train.check_memory=false to start it nevertheless",
                     format_bytes(plan.machine), format_bytes(plan.rank.total()),
                     format_bytes(static_cast<double>(free_bytes)),
                     remedy(config, world_size, here, free_bytes));
}

} // namespace pentatron::trainer
