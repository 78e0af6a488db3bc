#include "pentatron/trainer/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <ranges>
#include <set>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/checkpoint/staging.h"
#include "pentatron/kernels/common/build.h"
#include "pentatron/models/parts.h"
#include "pentatron/optim/optimizer.h"
#include "pentatron/parallel/context/zigzag.h"
#include "pentatron/parallel/ddp/bucket.h"
#include "pentatron/parallel/ddp/reduction.h"
#include "pentatron/parallel/tensor/vocab.h"
#include "pentatron/trainer/adapters.h"
#include "pentatron/trainer/live_microbatches.h"
#include "pentatron/trainer/model_anatomy.h"
#include "pentatron/trainer/precision.h"
#include "pentatron/trainer/recompute.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

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
  Planner(const Config& config, int world_size, const LocalRanks& here)
      : c_(config), types_(types_of(config.dtype)),
        output_adapter_(output_adapter_of(config, types_)),
        tp_(static_cast<int>(config.parallel.tensor_model_parallel_size)),
        cp_(static_cast<double>(config.parallel.context_parallel_size)),
        dp_(parallelize::data_parallel_size(config.parallel, world_size)),
        sharing_order_(here.ranks),
        replicas_(dp_ * static_cast<int>(config.parallel.context_parallel_size)),
        expert_replicas_(parallelize::expert_data_size(config.parallel, world_size)),
        spec_(models::model_spec(config.model)), plan_(pipeline_plan(config)),
        anatomy_(anatomy_of(config, coordinates_of(config.parallel))),
        frozen_(frozen_parts(config, plan_, coordinates_of(config.parallel))),
        tokens_(static_cast<double>(config.train.micro_batch_size) * own_length(config)) {
    const double microbatches = static_cast<double>(config.train.global_batch_size) /
                                static_cast<double>(config.train.micro_batch_size) / dp_;
    moments_ = moments_of(plan_, microbatches);
  }

  int pipeline_ranks() const { return static_cast<int>(moments_.size()); }

  /// FLOPs of a microbatch that the rank computes again, or what takes as long.
  double recomputed(int rank) const {
    double time = 0;
    for (const auto& stage : treatments(rank))
      for (const auto& [treatment, count] : stage) {
        const Kind& one = anatomy_.kinds.at(treatment.kind);
        time += count * (treatment.again ? one.time + kFlopsOfByte * one.saved : one.parts_time);
      }
    return tokens_ * time;
  }

  double parameters(int rank) const { return parameters_of(anatomy_, held(rank)).all().real(); }

  RankMemory memory(int rank) const {
    RankMemory m;
    const Parameters own = parameters_of(anatomy_, held(rank));
    Parameters trained = own;
    trained.add(frozen_[static_cast<size_t>(rank)].parameters, -1);
    add_family(m, rank, &Parameters::dense, own, trained, replicas_);
    add_family(m, rank, &Parameters::experts, own, trained, expert_replicas_);
    const Frozen& own8 = frozen_[static_cast<size_t>(rank)]; // one matrix is dense while it is used
    m.weights += nn::Int8Weight::kBytes * own8.int8 + types_.element * (own8.densest - own8.int8);
    if (c_.offload.optimizer) {
      const Elements moved = trained.all();
      const double share = moved.vectors > 0 ? m.disk / moved.vectors : 0;
      const auto parts = [&](double number, double bytes, double count, int64_t elements) {
        return std::min(bytes * share, number * part_of(bytes, count, elements, share));
      };
      const auto cut_parts = [&](double number) {
        return parts(number, moved.vectors - moved.whole, moved.count - moved.whole_count,
                     optim::AwayState::kPart);
      };
      // Also of both kinds, where rules that need whole parameters have fewer.
      constexpr auto kMost = static_cast<double>(optim::AwayState::kWholePart);
      const double most =
          std::max({1.0, whole_batch(rank, &Parameters::dense, trained.dense, replicas_),
                    whole_batch(rank, &Parameters::experts, trained.experts, expert_replicas_)});
      // Where a part is a segment's, one of its vectors comes between two of its matrices.
      const double in_a_row = c_.ddp.zero_stage >= 2 && most < kMost ? 2 : 3;
      const double whole_parts = std::min(in_a_row, std::ceil(moved.whole_count * share / most));
      const auto window = [&](double number) {
        return std::max(cut_parts(number), parts(std::min(number, whole_parts), moved.whole,
                                                 moved.whole_count, static_cast<int64_t>(most)) +
                                               cut_parts(std::max(0.0, number - whole_parts)));
      };
      // Three at once; but two while the first or the last is updated, which hold the tables.
      const double of_tables = moved.update.working - working_of_layers(rank);
      m.window = std::max(window(2), window(3) - std::max(0.0, of_tables));
    }
    m.optimizer += m.window - m.disk;
    if (held(rank).contains(spec_.segments.back().kind)) {
      const double vocab = static_cast<double>(c_.model.vocab_size) / tp_;
      const double targets = tokens_ * targets_by_token(c_);
      const double slopes = c_.model.final_logit_softcapping.value_or(0) > 0 ? 1 : 0;
      const double logits = types_.acc * (output_adapter_.logits + slopes);
      const int64_t most = on_cpu(c_.device)
                               ? parallel::logits_bytes_on_cpu()
                               : parallel::logits_bytes_on_gpu(kernels::gpu_memory(0));
      const double rows = std::min(targets, static_cast<double>(most) / (logits * vocab));
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
          kOrderBytes / sharing_order_ *
          static_cast<double>(batch_schedule(c_.train).samples_after(total_iterations(c_.train)));
    if (c_.checkpoint.async_save && !c_.checkpoint.save.empty())
      m.saving = static_cast<double>(checkpoint::staging_bytes(
          static_cast<uint64_t>(m.weights + m.optimizer - m.window + m.disk),
          static_cast<uint64_t>(c_.checkpoint.staging_limit) << 20));
    return m;
  }

 private:
  /// Bytes of a part of so many elements, of a rank's share of vectors.
  static double part_of(double bytes, double count, int64_t elements, double share) {
    return count > 0 ? std::min(bytes * share, bytes / count * static_cast<double>(elements)) : 0;
  }

  Held held(int rank) const { return held_by(plan_.stages_of(rank), spec_); }

  using Family = Elements Parameters::*;

  /// Adds what the rank keeps of a family that so many ranks hold: a share from the stage of ZeRO
  /// on that splits it, and what is whole for a while. Values and gradients of a segment are whole
  /// while they are used, with overlap beside those of the next one. Gradients of a parameter that
  /// several segments read are whole until the last of them; where weight gradients are deferred,
  /// those of a stage are.
  void add_family(RankMemory& m, int rank, Family family, const Parameters& all_own,
                  const Parameters& all_trained, int replicas) const {
    const Elements &own = all_own.*family, &trained = all_trained.*family;
    const double shards = shards_of(replicas);
    const int64_t zero = shards > 1 ? c_.ddp.zero_stage : 0;
    const double whole_share = whole_share_of(rank, family, trained, replicas);
    const auto share = [&](double all, double whole, int64_t from_stage) {
      return zero >= from_stage ? (all - whole) / shards + whole * whole_share : all;
    };
    const double codes =
        zero > 0 ? coded_elements(rank, family) : 0; // a byte each, beside own values
    const double whole_codes = std::min(codes, trained.whole_count);
    m.weights += types_.element * (share(own.count - codes, trained.whole_count - whole_codes, 3) +
                                   share(codes, whole_codes, 1)) +
                 share(codes, whole_codes, 3);
    m.gradients += types_.acc * share(trained.count, trained.whole_count, 2);
    m.optimizer += share(trained.state, trained.whole_state, 1);
    m.update =
        std::max(m.update, whole_batch(rank, family, trained, replicas) * trained.update.batch +
                               trained.update.working);
    // Copies of gradients that are summed in 16 bits, of two buckets at a time.
    const double wire = replicas > 1 && !c_.ddp.grad_reduce_in_fp32 && types_.element < types_.acc
                            ? types_.element
                            : 0;
    if (zero < 2)
      m.gradients +=
          wire *
          std::min(trained.count, parallel::Reducer::kCopiesUnderWay *
                                      (static_cast<double>(c_.ddp.bucket_size) + trained.longest));
    if (c_.offload.optimizer)
      m.disk += c_.offload.optimizer_fraction * share(trained.vectors, trained.whole, 1);
    if (zero >= 2) {
      const Whole gradients =
          whole_at_once(rank, family, [](const Elements& e, double) { return e.count; });
      const double two = c_.ddp.overlap_grad_reduce ? 1 : 0;
      const double whole = defers() ? trained.count * std::min(1.0, largest_stage(rank) * (1 + two))
                                    : std::min(trained.count, gradients.largest + gradients.shared +
                                                                  two * gradients.layer);
      m.gradients += types_.acc * whole +
                     wire * std::min(whole, parallel::Reducer::kCopiesUnderWay *
                                                std::max(gradients.largest, gradients.shared));
    }
    if (zero < 3) return;
    const Whole values = whole_at_once(rank, family, [&](const Elements& e, double coded) {
      return types_.element * (e.count - coded);
    });
    const Whole codes_at_once = // of a byte, beside these
        whole_at_once(rank, family, [](const Elements&, double coded) { return coded; });
    // The memory of a shared parameter serves layers, too. Passes that take turns have segments
    // each.
    const double passes = c_.comm_overlap.moe_expert_parallel ? 2 : 1;
    m.weights += std::min(types_.element * own.count + values.shared,
                          std::max(passes * values.largest, values.shared) + values.shared +
                              (c_.ddp.overlap_param_gather ? passes * values.layer : 0)) +
                 passes * codes_at_once.largest +
                 (c_.ddp.overlap_param_gather ? passes * codes_at_once.layer : 0);
  }

  double shards_of(int replicas) const {
    return std::max(1.0, static_cast<double>(replicas) /
                             static_cast<double>(c_.ddp.num_distributed_optimizer_instances));
  }

  /// At least that of the largest, also where others are frozen or several stages share it.
  double whole_share_of(int rank, Family family, const Elements& trained, int replicas) const {
    const double shards = shards_of(replicas);
    if (shards == 1 || c_.ddp.zero_stage == 0 || trained.whole_count == 0) return 1;
    return std::max(
        largest_share_of_whole(rank, family, static_cast<int64_t>(shards), c_.ddp.zero_stage),
        std::min(1.0, trained.largest / trained.whole_count));
  }

  /// Of what rules need whole, which no two ranks share: the part that the rank with most owns. In
  /// buckets as parallel::make_buckets has them: the last parameters first, and from ZeRO-2 on
  /// never of two segments.
  double largest_share_of_whole(int rank, Family family, int64_t shards, int64_t zero) const {
    constexpr int64_t kEnough = 1000; // of a kind; shares of more differ by less than a thousandth
    std::vector<int64_t> filled(static_cast<size_t>(shards), 0), bucket;
    int64_t elements = 0;
    const auto close = [&] {
      parallel::share_out(bucket, filled);
      bucket.clear();
      elements = 0;
    };
    std::map<int, int64_t> seen;
    for (const SegmentRange& stage : plan_.stages_of(rank) | std::views::reverse)
      for (int64_t i = stage.end - 1; i >= stage.begin; --i) {
        const int kind = spec_.segments[static_cast<size_t>(i)].kind;
        if (seen[kind]++ >= kEnough) continue;
        const Kind& one = anatomy_.kinds.at(kind);
        for (const int64_t size :
             family == &Parameters::dense ? one.whole_dense : one.whole_experts) {
          bucket.push_back(size);
          elements += size;
          if (elements >= c_.ddp.bucket_size) close();
        }
        if (zero >= 2) close();
      }
    close();
    const int64_t all = std::accumulate(filled.begin(), filled.end(), int64_t{0});
    return all > 0 ? static_cast<double>(std::ranges::max(filled)) / static_cast<double>(all)
                   : 1 / static_cast<double>(shards);
  }

  /// Elements of the largest batch of parameters that a rule which needs them whole updates.
  double whole_batch(int rank, Family family, const Elements& trained, int replicas) const {
    if (trained.largest == 0) return 0;
    const double whole_share = whole_share_of(rank, family, trained, replicas);
    double all = trained.whole_count * whole_share;
    if (shards_of(replicas) > 1 && c_.ddp.zero_stage >= 2) { // whose buckets are of one segment
      double segment = 0;
      for (const auto& [kind, count] : held(rank))
        if (count > 0)
          segment = std::max(segment, (anatomy_.kinds.at(kind).parameters.*family).whole_count);
      all = std::min(all, segment * whole_share);
    }
    return std::max(trained.largest,
                    std::min(all, static_cast<double>(optim::AwayState::kWholePart)));
  }

  /// Of rules that need whole parameters, in the layers of the rank.
  double working_of_layers(int rank) const {
    double most = 0;
    for (const auto& [kind, count] : held(rank)) {
      const Kind& one = anatomy_.kinds.at(kind);
      if (count > 0 && one.is_layer) most = std::max(most, one.parameters.all().update.working);
    }
    return most;
  }

  /// What several segments of the rank read, and the largest of the others and of the layers.
  struct Whole {
    double shared = 0, largest = 0, layer = 0;
  };
  /// `size` of a segment's elements and of those among them that are sent as codes.
  Whole whole_at_once(int rank, Family family, const auto& size) const {
    Whole most;
    const Held here = held(rank);
    std::set<int> coded;
    if (sends_codes(c_)) {
      const std::vector<bool> quantised = quantised_segments(c_);
      for (size_t i = 0; i < quantised.size(); ++i)
        if (quantised[i]) coded.insert(spec_.segments[i].kind);
    }
    for (const auto& [kind, count] : here) {
      if (count <= 0) continue;
      Parameters own = anatomy_.kinds.at(kind).parameters;
      for (const SharedParameter& one : anatomy_.shared)
        own.add(one.parameter, -static_cast<double>(std::ranges::count(one.kinds, kind)));
      const Elements& elements = own.*family;
      const double all = size(elements, coded.contains(kind) ? elements.linear : 0);
      most.largest = std::max(most.largest, all);
      if (anatomy_.kinds.at(kind).is_layer) most.layer = std::max(most.layer, all);
    }
    for (const SharedParameter& one : anatomy_.shared)
      if (std::ranges::any_of(one.kinds, [&](int kind) { return here.contains(kind); }))
        most.shared += size(one.parameter.*family, 0);
    return most;
  }

  /// Of the rank's elements.
  double largest_stage(int rank) const {
    double most = 0;
    for (const SegmentRange& stage : plan_.stages_of(rank))
      most = std::max(most, parameters_of(anatomy_, held_by({stage}, spec_)).all().count);
    return most / parameters_of(anatomy_, held(rank)).all().count;
  }

  /// Whether weight gradients have passes of their own.
  bool defers() const {
    return std::ranges::any_of(moments_, [](const std::vector<Moment>& rank) {
      return std::ranges::any_of(rank, [](const Moment& moment) {
        return std::ranges::any_of(moment, [](const Live& live) { return live.deferred > 0; });
      });
    });
  }

  /// Elements that ranks send as codes in FP8.
  double coded_elements(int rank, Family family) const {
    if (!sends_codes(c_)) return 0;
    const std::vector<bool> quantised = quantised_segments(c_);
    double count = 0;
    for (const SegmentRange& stage : plan_.stages_of(rank))
      for (int64_t i = stage.begin; i < stage.end; ++i)
        if (quantised[static_cast<size_t>(i)]) {
          const int kind = spec_.segments[static_cast<size_t>(i)].kind;
          count += (anatomy_.kinds.at(kind).parameters.*family).linear;
        }
    return count;
  }

  /// What happens to a segment's activations.
  struct Treatment {
    int kind = 0;
    bool again = false, away = false; ///< runs again as a whole; what it keeps is offloaded
    auto operator<=>(const Treatment&) const = default;
  };
  /// How many segments of each stage have each.
  std::vector<std::map<Treatment, double>> treatments(int rank) const {
    const nn::Recomputation again = recomputation(c_.train);
    Held idle = frozen_[static_cast<size_t>(rank)].idle;
    std::vector<std::map<Treatment, double>> of_stages;
    for (const SegmentRange& stage : plan_.stages_of(rank)) {
      std::map<Treatment, double>& all = of_stages.emplace_back();
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
    return of_stages;
  }

  /// The most of three: at the loss, in backward of layers that have all they need, and in that of
  /// layers that run again or come back, when the others are free. The memory of the loss is
  /// counted apart, and free when the layers' backward begins.
  double activations(int rank, double loss) const {
    const double hidden = types_.element * static_cast<double>(c_.model.hidden_size);
    const nn::Recomputation again = recomputation(c_.train);
    const double group = static_cast<double>(again.group);
    const double input = c_.parallel.sequence_parallel ? hidden / tp_ : hidden;
    double working = 0, staying = 0, returning = 0, of_loss = 0, weights = 0;
    std::vector<double> kept, whole; // of a microbatch, by stage
    const auto of_stages = treatments(rank);
    for (const auto& stage : of_stages) {
      kept.push_back(0);
      whole.push_back(0);
      for (const auto& [treatment, count] : stage) {
        const Kind& one = anatomy_.kinds.at(treatment.kind);
        const double saved = one.saved - one.freed;
        // Of an offloaded layer the input stays, unless it runs again.
        double stays = saved;
        if (treatment.again)
          stays = treatment.away ? 0 : input / group;
        else if (treatment.away)
          stays = input;
        kept.back() += count * stays;
        whole.back() += count * one.saved;
        if (treatment.kind == spec_.segments.back().kind) of_loss = count * stays;
        if (!one.is_layer) continue;
        if (!treatment.again && !treatment.away) staying += count * stays;
        // What context ranks exchange takes the place of what the MLP has kept.
        const double backward = std::max(one.working, exchanged() - one.mlp);
        working = std::max(working, backward);
        weights = std::max(weights, one.weights);
        // The next input or layer comes while this one works.
        if (treatment.again)
          returning =
              std::max(returning, backward + one.saved * group + (treatment.away ? input : -input));
        else if (treatment.away)
          returning = std::max(returning, backward + 2 * (saved - input));
      }
    }
    // A pass whose weight gradients are deferred holds the inputs and output gradients of its
    // products: about as much as it kept, also what ran again, which stays.
    double held = 0;
    bool deferred = false;
    for (const Moment& moment : moments_[static_cast<size_t>(rank)]) {
      double now = 0;
      for (size_t stage = 0; stage < kept.size(); ++stage) {
        now += kept[stage] * moment[stage].ahead + whole[stage] * moment[stage].deferred;
        deferred = deferred || moment[stage].deferred > 0;
      }
      held = std::max(held, now);
    }
    if (!deferred)
      working = std::max(working, returning - staying / static_cast<double>(kept.size()));
    return tokens_ * held + std::max(0.0, tokens_ * (working - of_loss) + weights - loss);
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
  /// Ranks of this machine, which has one order of samples.
  double sharing_order_;
  int replicas_; ///< ranks that hold the same parameters, over dp and cp
  int expert_replicas_;
  models::ModelSpec spec_;
  parallelize::PipelinePlan plan_;
  Anatomy anatomy_;
  std::vector<Frozen> frozen_; // by pipeline rank
  double tokens_;
  std::vector<std::vector<Moment>> moments_; // by pipeline rank
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
  const Planner planner(config, world_size, here);
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
  const Elements all_parameters = parameters_of(anatomy_of(config, coordinates_of({})),
                                                held_by({{0, spec.num_segments()}}, spec))
                                      .all();
  const Elements frozen = frozen_parts(config, whole, coordinates_of({})).front().parameters.all();
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
