/// What a run of so many ranks would stumble over.
#include "pentatron/parallelize/parallelize.h"

#include <algorithm>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/comm/rank_groups.h"
#include "pentatron/parallel/context/zigzag.h"

namespace pentatron::parallelize {

namespace {

constexpr const char *kContextKey = "parallel.context_parallel_size",
                     *kContextComm = "parallel.cp_comm_type";

/// Whether experts and dense layers have the same pipeline ranks.
void check_order(const ParallelConfig& parallel, int world_size, config::Violations& violations) {
  const auto tp = static_cast<int>(parallel.tensor_model_parallel_size),
             cp = static_cast<int>(parallel.context_parallel_size),
             pp = static_cast<int>(parallel.pipeline_model_parallel_size);
  const comm::AxisSizes sizes = {
      {"tp", tp}, {"cp", cp}, {"pp", pp}, {"dp", world_size / (tp * cp * pp)}};
  try {
    comm::expert_axes(sizes, rank_order(parallel),
                      static_cast<int>(parallel.expert_model_parallel_size),
                      static_cast<int>(expert_tensor_size(parallel)));
  } catch (const ConfigError&) {
    violations.add(
        "parallel.use_tp_pp_dp_mapping",
        fmt::format("parallel.use_tp_pp_dp_mapping=true with "
                    "parallel.context_parallel_size={} and "
                    "parallel.expert_model_parallel_size={} would give experts and dense "
                    "layers different pipeline ranks",
                    cp, parallel.expert_model_parallel_size),
        "parallel.use_tp_pp_dp_mapping=false");
  }
}

void check_experts(const ParallelConfig& parallel, const parallel::DdpConfig& ddp,
                   const models::ModelConfig& model, int world_size,
                   config::Violations& violations) {
  const std::string ep_key = "parallel.expert_model_parallel_size",
                    etp_key = "parallel.expert_tensor_parallel_size";
  const int64_t ep = parallel.expert_model_parallel_size, etp = expert_tensor_size(parallel),
                pp = parallel.pipeline_model_parallel_size;
  if (!model.num_moe_experts) {
    if (ep > 1)
      violations.add(ep_key,
                     fmt::format("{}={} has no effect on a model without experts", ep_key, ep),
                     fmt::format("{}=1", ep_key));
    if (parallel.expert_tensor_parallel_size && etp != parallel.tensor_model_parallel_size)
      violations.add(etp_key,
                     fmt::format("{}={} has no effect on a model without experts", etp_key, etp),
                     fmt::format("{}=null", etp_key));
    return;
  }
  const int64_t experts = *model.num_moe_experts;
  if (experts % ep != 0)
    violations.add(
        ep_key, fmt::format("{}={} does not divide model.num_moe_experts={}", ep_key, ep, experts),
        fmt::format("{} in {{{}}}", ep_key, config::divisors(experts)));
  if (const int64_t ffn = model.expert_ffn_size(); ffn % etp != 0)
    violations.add(
        etp_key,
        fmt::format("{}={} does not divide the experts' hidden size of {}", etp_key, etp, ffn),
        fmt::format("{} in {{{}}}", etp_key, config::divisors(ffn)));
  if (world_size % (etp * ep * pp) != 0)
    violations.add(
        ep_key,
        fmt::format(
            "{}={} x {}={} x {} pipeline ranks needs a multiple of {} ranks, but the run has {}",
            ep_key, ep, etp_key, etp, pp, etp * ep * pp, world_size),
        fmt::format("--ranks {}", (world_size / (etp * ep * pp) + 1) * etp * ep * pp));
  else if (const int64_t model_ranks =
               parallel.tensor_model_parallel_size * parallel.context_parallel_size * pp;
           world_size % model_ranks == 0)
    check_order(parallel, world_size, violations);
  const int edp = expert_data_size(parallel, world_size);
  if (const int64_t n = ddp.num_distributed_optimizer_instances; edp % n != 0)
    violations.add(
        "ddp.num_distributed_optimizer_instances",
        fmt::format("ddp.num_distributed_optimizer_instances={} does not divide the {} "
                    "ranks that hold the same experts",
                    n, edp),
        fmt::format("ddp.num_distributed_optimizer_instances in {{{}}}", config::divisors(edp)));
}

/// Tokens of a microbatch on each context rank, in each stream.
std::vector<int64_t> tokens_of_ranks(const MicroBatch& micro_batch, int cp) {
  std::vector<int64_t> tokens;
  for (const int64_t length : micro_batch.lengths)
    for (int rank = 0; rank < cp; ++rank)
      tokens.push_back(micro_batch.samples * parallel::zigzag_tokens(length, rank, cp));
  return tokens;
}

/// Heads that ranks exchange for tokens.
void check_context_heads(const ParallelConfig& parallel, const models::ModelConfig& model,
                         int64_t ranks, config::Violations& violations) {
  const int64_t tp = parallel.tensor_model_parallel_size, heads = model.num_attention_heads / tp,
                kv_heads = std::max<int64_t>(1, model.query_groups() / tp);
  for (const auto& [what, n] : {std::pair{"query", heads}, {"key-value", kv_heads}}) {
    if (n % ranks == 0) continue;
    violations.add(kContextComm,
                   fmt::format("{} exchanges heads among {} ranks, but the {} {} head{} of a "
                               "tensor-parallel rank cannot be divided evenly among them",
                               kContextComm, ranks, n, what, n == 1 ? "" : "s"),
                   fmt::format("{}=[p2p]", kContextComm));
    return;
  }
}

/// The most context ranks, of a run of so many ranks, that can cut samples of this length.
int64_t most_context_ranks(const ParallelConfig& parallel, int world_size, int64_t length) {
  const int64_t others =
      parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size;
  int64_t ranks = std::max<int64_t>(1, std::min(parallel.context_parallel_size, length / 2));
  while (ranks > 1 && world_size % (others * ranks) != 0) --ranks;
  return ranks;
}

void check_context(const ParallelConfig& parallel, const models::ModelConfig& model, int world_size,
                   const MicroBatch& micro_batch, config::Violations& violations) {
  using parallel::ContextComm;
  const int64_t cp = parallel.context_parallel_size;
  if (cp == 1) return;
  const std::string size = fmt::format("{}={}", kContextKey, cp),
                    one = fmt::format("{}=1", kContextKey);
  if (const std::string reason = models::model_spec(model.with_one_layer()).whole_samples;
      !reason.empty())
    violations.add(kContextKey,
                   fmt::format("{} splits samples, which {} does not support", size, reason), one);
  for (const int64_t length : micro_batch.lengths)
    if (length < 2 * cp)
      violations.add(
          kContextKey,
          fmt::format("{} cannot cut a sample of {} tokens into {} chunks", size, length, 2 * cp),
          fmt::format("{}={}", kContextKey, most_context_ranks(parallel, world_size, length)));
  const std::vector<ContextComm>& comm = parallel.cp_comm_type;
  if (comm.size() != 1 && std::ssize(comm) != model.num_layers)
    violations.add(
        kContextComm,
        fmt::format("{} has {} entries, but needs one entry, or one for each of the {} layers",
                    kContextComm, comm.size(), model.num_layers),
        fmt::format("{}=[p2p]", kContextComm));
  const auto uses = [&](ContextComm kind) { return std::ranges::find(comm, kind) != comm.end(); };
  if (uses(ContextComm::kA2a)) check_context_heads(parallel, model, cp, violations);
  const std::vector<int64_t>& sizes = parallel.hierarchical_context_parallel_sizes;
  const std::string sizes_key = "parallel.hierarchical_context_parallel_sizes";
  if (!uses(ContextComm::kA2aP2p)) {
    if (!sizes.empty())
      violations.add(sizes_key,
                     fmt::format("{} has no effect without {}=[a2a+p2p]", sizes_key, kContextComm),
                     fmt::format("{}=[]", sizes_key));
    return;
  }
  if (sizes.size() != 2 || sizes[0] * sizes[1] != cp) {
    int64_t inner = 2;
    while (inner < cp && cp % inner != 0) ++inner;
    if (inner == cp)
      violations.add(kContextComm,
                     fmt::format("{}=[a2a+p2p] needs groups of several ranks, but the ranks of {} "
                                 "cannot be divided into such groups",
                                 kContextComm, size),
                     fmt::format("{}=[p2p]{}", kContextComm,
                                 sizes.empty() ? "" : fmt::format(" and {}=[]", sizes_key)));
    else
      violations.add(sizes_key,
                     fmt::format("{}=[a2a+p2p] needs {} with two numbers whose product is {}",
                                 kContextComm, sizes_key, size),
                     fmt::format("{}=[{},{}]", sizes_key, inner, cp / inner));
    return;
  }
  check_context_heads(parallel, model, sizes[0], violations);
}

} // namespace

void check_parallel(const ParallelConfig& parallel, const parallel::DdpConfig& ddp,
                    const models::ModelConfig& model, int world_size, const MicroBatch& micro_batch,
                    config::Violations& violations) {
  const int64_t tp = parallel.tensor_model_parallel_size,
                pp = parallel.pipeline_model_parallel_size, cp = parallel.context_parallel_size,
                model_ranks = tp * cp * pp;
  const std::string tp_key = "parallel.tensor_model_parallel_size",
                    pp_key = "parallel.pipeline_model_parallel_size";
  if (world_size % model_ranks != 0) {
    const std::string context = cp > 1 ? fmt::format(" x {}={}", kContextKey, cp) : "";
    violations.add(tp_key,
                   fmt::format("{}={}{} x {}={} needs a multiple of {} ranks, but the run has {}",
                               tp_key, tp, context, pp_key, pp, model_ranks, world_size),
                   fmt::format("--ranks {}", (world_size / model_ranks + 1) * model_ranks));
  }
  const auto divides = [&](const char* what, int64_t n) {
    if (n % tp == 0) return;
    violations.add(tp_key, fmt::format("{}={} does not divide {}={}", tp_key, tp, what, n),
                   fmt::format("{} in {{{}}}", tp_key, config::divisors(n)));
  };
  divides("model.num_attention_heads", model.num_attention_heads);
  divides("model.ffn_hidden_size", model.ffn_size());
  if (const int64_t kv = model.query_groups(); kv % tp != 0 && tp % kv != 0) {
    violations.add(
        tp_key,
        fmt::format("{}={} neither divides model.num_query_groups={} nor is a multiple of "
                    "it",
                    tp_key, tp, kv),
        fmt::format("{} in {{{}}}", tp_key, config::divisors(kv)));
  }
  const std::vector<int64_t> tokens = tokens_of_ranks(micro_batch, static_cast<int>(cp));
  const auto odd = std::ranges::find_if(tokens, [&](int64_t n) { return n % tp != 0; });
  if (parallel.sequence_parallel && odd != tokens.end()) {
    violations.add("parallel.sequence_parallel",
                   fmt::format("parallel.sequence_parallel cannot divide the {} tokens of a "
                               "microbatch{} evenly among {}={} ranks",
                               *odd, cp > 1 ? " on a context-parallel rank" : "", tp_key, tp),
                   "parallel.sequence_parallel=false");
  }
  try {
    plan_pipeline(parallel, model);
  } catch (const ConfigError& error) {
    violations.add(pp_key, error.what());
  }
  check_experts(parallel, ddp, model, world_size, violations);
  check_context(parallel, model, world_size, micro_batch, violations);
  const int dp = static_cast<int>(cp) * data_parallel_size(parallel, world_size);
  if (const int64_t n = ddp.num_distributed_optimizer_instances; dp % n != 0) {
    violations.add(
        "ddp.num_distributed_optimizer_instances",
        fmt::format("ddp.num_distributed_optimizer_instances={} does not divide the {} "
                    "data-parallel{} ranks",
                    n, dp, cp > 1 ? " and context-parallel" : ""),
        fmt::format("ddp.num_distributed_optimizer_instances in {{{}}}", config::divisors(dp)));
  }
}

} // namespace pentatron::parallelize
