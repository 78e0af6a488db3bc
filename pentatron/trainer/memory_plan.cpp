#include "pentatron/trainer/memory_plan.h"

#include <algorithm>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/models/parts.h"
#include "pentatron/optim/optimizer.h"
#include "pentatron/parallel/context/zigzag.h"
#include "pentatron/parallel/pipeline/schedule/check.h"
#include "pentatron/trainer/adapters.h"
#include "pentatron/trainer/model_anatomy.h"
#include "pentatron/trainer/recompute.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

/// As in parallel/tensor/vocab.cpp.
constexpr double kLogitsBytes = 128.0 * (1 << 20), kLogitsBytesOnGpu = 1024.0 * (1 << 20);
/// Of a sample in Megatron's order: a place in the documents and in the shuffled order.
constexpr double kOrderBytes = 12;

/// Tokens of train.seq_length that the rank with most of them has of a sample.
double own_length(const Config& config) {
  const auto cp = static_cast<int>(config.parallel.context_parallel_size);
  int64_t most = 0;
  for (int rank = 0; rank < std::min(cp, 2); ++rank)
    most = std::max(most, parallel::zigzag_tokens(config.train.seq_length, rank, cp));
  return static_cast<double>(most);
}

/// Passes of the rank's stages whose activations are kept at the same time.
std::vector<pipeline::Peak> peaks_of(const parallelize::PipelinePlan& plan, double microbatches) {
  const int ranks = *std::ranges::max_element(plan.rank_of_stage) + 1;
  if (ranks == 1 && plan.rank_of_stage.size() == 1) return {{.live = 1}};
  const auto enough = static_cast<double>(4 * plan.rank_of_stage.size());
  std::vector<pipeline::Peak> peaks =
      pipeline::check(plan.make(static_cast<int>(std::clamp(microbatches, 1.0, enough)))).peaks;
  peaks.resize(static_cast<size_t>(ranks));
  for (pipeline::Peak& peak : peaks) peak.live = std::max(1, peak.live);
  return peaks;
}

/// What the adapter of an output layer adds to the loss.
struct OutputAdapter {
  double logits = 1; ///< how often a chunk of tokens has them
  double values = 0; ///< of each word: DoRA's norms and factors, and B in the accumulate type
};
OutputAdapter output_adapter_of(const Config& config, const ElementTypes& types) {
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
        expert_replicas_(parallelize::expert_data_size(config.parallel, world_size)),
        spec_(models::model_spec(config.model)),
        plan_(parallelize::plan_pipeline(config.parallel, config.model, stream_lengths(config))),
        anatomy_(anatomy_of(config, coordinates_of(config.parallel))),
        frozen_(frozen_parts(config, plan_, coordinates_of(config.parallel))),
        tokens_(static_cast<double>(config.train.micro_batch_size) * own_length(config)) {
    const double microbatches = static_cast<double>(config.train.global_batch_size) /
                                static_cast<double>(config.train.micro_batch_size) / dp_;
    peaks_ = peaks_of(plan_, microbatches);
    deferred_ = pipeline::defers_weight_gradients(
        plan_.make(static_cast<int>(std::clamp(microbatches, 1.0, 4.0))));
  }

  int pipeline_ranks() const { return static_cast<int>(peaks_.size()); }

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
    const double own_experts = sends_codes(c_) ? 0 : updated.expert_count;
    updated.add(frozen_[static_cast<size_t>(rank)].parameters, -1);
    const double trained = updated.count;
    const auto shards_of = [&](int replicas) {
      return std::max(1.0, static_cast<double>(replicas) /
                               static_cast<double>(c_.ddp.num_distributed_optimizer_instances));
    };
    const double shards = shards_of(replicas_), expert_shards = shards_of(expert_replicas_);
    const int64_t zero = shards > 1 ? c_.ddp.zero_stage : 0,
                  expert_zero = expert_shards > 1 ? c_.ddp.zero_stage : 0;
    const auto share = [&](double all, double of_experts, int64_t from_stage) {
      return (all - of_experts) / (zero >= from_stage ? shards : 1) +
             of_experts / (expert_zero >= from_stage ? expert_shards : 1);
    };
    // Where ranks share gradients or values, those of one unit are whole at a time, with overlap
    // also those of the next. Gradients that several units share are whole until the last of them;
    // where they are deferred, those of a stage are. Memory of shared values serves layers, too.
    const auto from = [&](int64_t stage, double all, double of_experts) {
      return (zero >= stage ? all - of_experts : 0) + (expert_zero >= stage ? of_experts : 0);
    };
    const double overlap = c_.ddp.overlap_grad_reduce ? 1 : 0,
                 split = from(2, trained, updated.expert_count),
                 passes = c_.comm_overlap.moe_expert_parallel ? 2 : 1; // that hold units
    const auto whole_gradients = [&](const Units& of) {
      return of.largest + of.shared + overlap * of.layer;
    };
    const auto whole_values = [&](const Units& of) {
      return std::max(passes * of.largest, of.shared) + of.shared +
             (c_.ddp.overlap_param_gather ? passes * of.layer : 0);
    };
    // Memory of experts and of the others is apart.
    const auto of_both = [&](int64_t stage, const auto& whole, const auto& size) {
      return whole(units(rank,
                         [&](const Elements& e) {
                           return from(stage,
                                       size(e.count - e.expert_count, e.linear - e.expert_linear),
                                       0);
                         })) +
             whole(units(rank, [&](const Elements& e) {
               const double experts = size(e.expert_count, e.expert_linear);
               return from(stage, experts, experts);
             }));
    };
    const double whole = of_both(2, whole_gradients, [](double count, double) { return count; }),
                 bucket = deferred_ ? split * largest_stage(rank) * (1 + overlap)
                                    : std::min(split, whole),
                 gathered = of_both(3, whole_values, [&](double count, double linear) {
                   const double codes = sends_codes(c_) ? linear : 0;
                   return types_.element * (count - codes) + codes;
                 });
    const double codes = zero > 0 ? coded_elements(rank) : 0; // a byte each, beside own values
    m.weights = types_.element * (share(own - codes, own_experts, 3) + share(codes, 0, 1)) +
                share(codes, 0, 3) + std::min(types_.element * own, gathered);
    const Frozen& own8 = frozen_[static_cast<size_t>(rank)]; // one matrix is dense while it is used
    m.weights += nn::Int8Weight::kBytes * own8.int8 + types_.element * (own8.densest - own8.int8);
    m.gradients = types_.acc * (share(trained, updated.expert_count, 2) + bucket);
    if (c_.offload.optimizer) {
      const double away = c_.offload.optimizer_fraction;
      m.disk = away * share(updated.vectors, updated.expert_vectors, 1);
      m.window = std::min(
          m.disk,
          3 * std::max(part_of(updated.vectors - updated.whole, updated.count - updated.whole_count,
                               optim::AwayState::kPart, away * share(1, 0, 1)),
                       part_of(updated.whole, updated.whole_count, optim::AwayState::kWholePart,
                               away * share(1, 0, 1))));
    }
    m.optimizer = share(updated.state, updated.expert_state, 1) - m.disk + m.window;
    if (held(rank).contains(spec_.segments.back().kind)) {
      const double vocab = static_cast<double>(c_.model.vocab_size) / tp_;
      const double targets = tokens_ * targets_by_token(c_);
      const double logits = types_.acc * output_adapter_.logits;
      const double most = on_cpu(c_.device) ? kLogitsBytes : kLogitsBytesOnGpu;
      const double rows = std::min(targets, most / (logits * vocab));
      // On GPUs a gradient in 16 bits lies beside the logits, all others take their place.
      const bool apart = types_.element < types_.acc && !on_cpu(c_.device);
      const double gradient = apart ? types_.element : 0;
      // Under sequence parallelism the loss reads all tokens, and makes their gradients.
      const double gathered_rows =
          c_.parallel.sequence_parallel
              ? 2 * targets * types_.element * static_cast<double>(c_.model.hidden_size)
              : 0;
      m.loss = rows * vocab * (logits + gradient) + targets * types_.acc + gathered_rows +
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

  /// What several units of the rank read, and the largest of the others and of the layers.
  struct Units {
    double shared = 0, largest = 0, layer = 0;
  };
  Units units(int rank, const auto& size) const {
    Units units;
    const Held here = held(rank);
    for (const auto& [kind, count] : here) {
      if (count <= 0) continue;
      Elements own = anatomy_.kinds.at(kind).parameters;
      for (const SharedElements& one : anatomy_.shared)
        own.add(one.parameter, -static_cast<double>(std::ranges::count(one.kinds, kind)));
      units.largest = std::max(units.largest, size(own));
      if (anatomy_.kinds.at(kind).is_layer) units.layer = std::max(units.layer, size(own));
    }
    for (const SharedElements& one : anatomy_.shared)
      if (std::ranges::any_of(one.kinds, [&](int kind) { return here.contains(kind); }))
        units.shared += size(one.parameter);
    return units;
  }

  /// Of the rank's elements.
  double largest_stage(int rank) const {
    double most = 0;
    for (const SegmentRange& stage : plan_.stages_of(rank))
      most = std::max(most, elements_of(anatomy_, held_by({stage}, spec_)).count);
    return most / elements_of(anatomy_, held(rank)).count;
  }

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

  /// What happens to a segment's activations.
  struct Treatment {
    int kind = 0;
    bool again = false, away = false; ///< runs again as a whole; what it keeps is offloaded
    auto operator<=>(const Treatment&) const = default;
  };
  /// How many segments have each.
  std::map<Treatment, double> treatments(int rank) const {
    const nn::Recomputation again = recomputation(c_.train);
    Held idle = frozen_[static_cast<size_t>(rank)].idle;
    std::map<Treatment, double> all;
    for (const SegmentRange& stage : plan_.stages_of(rank)) {
      int64_t layers = 0, layer = 0;
      for (int64_t i = stage.begin; i < stage.end; ++i)
        layers += spec_.segments[static_cast<size_t>(i)].recomputed;
      const int64_t away = !c_.offload.activations     ? 0
                           : c_.offload.num_layers > 0 ? c_.offload.num_layers
                                                       : layers - 1;
      for (int64_t i = stage.begin; i < stage.end; ++i) {
        const models::SegmentSpec& segment = spec_.segments[static_cast<size_t>(i)];
        Treatment treatment{.kind = segment.kind};
        if (segment.recomputed) {
          treatment.again = again.layers && (again.count == 0 || layer < again.count);
          treatment.away = layer < away;
          ++layer;
        }
        if (idle[segment.kind] > 0)
          idle[segment.kind] -= 1; // keeps nothing
        else
          all[treatment] += 1;
      }
    }
    return all;
  }

  /// The most of three: at the loss, in backward of layers that have all they need, and in that of
  /// layers that run again or come back, when the others are free. The memory of the loss is
  /// counted apart, and free when the layers' backward begins.
  double activations(int rank, double loss) const {
    const double hidden = types_.element * static_cast<double>(c_.model.hidden_size);
    const nn::Recomputation again = recomputation(c_.train);
    const double group = static_cast<double>(again.group);
    const double input = c_.parallel.sequence_parallel ? hidden / tp_ : hidden;
    double kept = 0, whole = 0, working = 0, staying = 0, returning = 0, of_loss = 0;
    for (const auto& [treatment, count] : treatments(rank)) {
      const Kind& one = anatomy_.kinds.at(treatment.kind);
      const double saved = one.saved - one.freed;
      // Of an offloaded layer the input stays, unless it runs again.
      double stays = saved;
      if (treatment.again)
        stays = treatment.away ? 0 : input / group;
      else if (treatment.away)
        stays = input;
      kept += count * stays;
      whole += count * one.saved;
      if (treatment.kind == spec_.segments.back().kind) of_loss = count * stays;
      if (!one.is_layer) continue;
      if (!treatment.again && !treatment.away) staying += count * stays;
      // What context ranks exchange takes the place of what the MLP has kept.
      const double backward = std::max(one.working, exchanged() - one.mlp);
      working = std::max(working, backward);
      // The next input or layer comes while this one works.
      if (treatment.again)
        returning =
            std::max(returning, backward + one.saved * group + (treatment.away ? input : -input));
      else if (treatment.away)
        returning = std::max(returning, backward + 2 * (saved - input));
    }
    const double stages = static_cast<double>(plan_.stages_of(rank).size());
    // A pass whose weight gradients are deferred holds the inputs and output gradients of its
    // products: about as much as it kept, also what ran again, which stays.
    const auto [live, deferred] = peaks_[static_cast<size_t>(rank)];
    if (deferred == 0) working = std::max(working, returning - staying / stages);
    return tokens_ * (kept * (live - deferred) + whole * deferred) / stages +
           std::max(0.0, tokens_ * (working - of_loss) - loss);
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
  ElementTypes types_;
  OutputAdapter output_adapter_;
  int tp_;
  double cp_;
  int dp_;
  double ranks_;
  int replicas_; ///< ranks that hold the same parameters, over dp and cp
  int expert_replicas_;
  models::ModelSpec spec_;
  parallelize::PipelinePlan plan_;
  Anatomy anatomy_;
  std::vector<Frozen> frozen_; // by pipeline rank
  double tokens_;
  std::vector<pipeline::Peak> peaks_; // by pipeline rank
  bool deferred_ = false;             ///< weight gradients
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
