// What a configuration says that experts' ranks send, against what a run's trace counts.
#include "pentatron/trainer/exchange_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/quiet_log.h"
#include "tests/support/ranks.h"
#include "tests/trainer/layout_runs.h"

namespace pentatron::trainer {
namespace {

struct Case {
  int ranks;
  const char* work;
  const char* keys;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.work << " on " << c.ranks << " with " << c.keys;
}

Config config_of(const Case& c, const test::Scratch& scratch) {
  return test::layout_config(
      c.work,
      std::string("train.train_iters=3 train.eval_interval=0 profiling.trace=true "
                  "model.moe_router_force_load_balancing=true ") +
          c.keys,
      c.ranks, scratch);
}

class Exchanged : public testing::TestWithParam<Case> {};

TEST_P(Exchanged, IsWhatATraceCounts) {
  const test::QuietLog quiet;
  const test::Scratch scratch;
  test::write_documents(scratch / "documents.jsonl", 400);
  const Config config = config_of(GetParam(), scratch);
  test::run_ranks(GetParam().ranks,
                  [&](const comm::Group& world) { Trainer(config, world).run(); });
  std::map<int, ExchangePlan> of_rank;
  const Json trace = read_json(scratch / "logs/trace.json");
  for (const Json& event : trace.at("traceEvents")) {
    if (event["ph"] != "X" || event["cat"] != "communication") continue;
    const std::string name = event["name"];
    // Without sequence parallelism, results and gradients of tensor ranks are gathered, nothing
    // else is.
    if (!name.starts_with("etp-ep ") &&
        (config.parallel.sequence_parallel || name != "tp all_gather"))
      continue;
    ExchangePlan& rank = of_rank[event["pid"].get<int>()];
    rank.bytes += event["args"]["sent_bytes"].get<double>();
    rank.operations += 1;
  }
  ExchangePlan most;
  for (const auto& [rank, sent] : of_rank)
    if (sent.bytes > most.bytes) most = sent;
  const ExchangePlan plan = plan_exchange(config, GetParam().ranks);
  EXPECT_GT(plan.bytes, 0);
  EXPECT_EQ(plan.bytes, most.bytes);
  EXPECT_EQ(plan.operations, most.operations);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Exchanged,
    testing::Values(
        Case{2, "moe", "parallel.expert_model_parallel_size=2"},
        Case{2, "moe_latent",
             "parallel.expert_model_parallel_size=2 parallel.moe_token_dispatcher_type=allgather "
             "dtype=bf16"},
        Case{2, "moe", "parallel.tensor_model_parallel_size=2"}, // which splits experts
        Case{4, "moe_latent",
             "parallel.tensor_model_parallel_size=2 parallel.sequence_parallel=true "
             "parallel.expert_model_parallel_size=2 dtype=bf16"},
        Case{4, "moe_shared",
             "parallel.tensor_model_parallel_size=2 parallel.expert_tensor_parallel_size=1 "
             "parallel.expert_model_parallel_size=2 parallel.pipeline_model_parallel_size=2 "
             "train.recompute=full train.recompute_method=block train.recompute_num_layers=1"},
        Case{2, "moe",
             "parallel.context_parallel_size=2 parallel.expert_model_parallel_size=2 dtype=fp64 "
             "train.recompute=selective train.recompute_modules=[moe]"},
        Case{2, "moe",
             "parallel.expert_model_parallel_size=2 "
             "train.freeze=[\"embedding.*\",\"layers.0.*\",\"layers.1.*\"]"}));

TEST(ExchangePlan, IsALineOnlyWhereExpertsAreOnSeveralRanks) {
  const test::Scratch scratch;
  test::write_documents(scratch / "documents.jsonl", 400);
  const auto line = [&](const Case& c) {
    return describe_exchange(config_of(c, scratch), c.ranks);
  };
  EXPECT_EQ(line({1, "moe", ""}), "");
  EXPECT_EQ(line({2, "moe", ""}), "") << "each rank has all experts";
  EXPECT_THAT(line({2, "moe", "parallel.expert_model_parallel_size=2"}),
              testing::ContainsRegex("^experts      about [0-9.]+ [KM]iB sent per rank and step in "
                                     "[0-9]+ collectives: [0-9.e-]+ s at 10 GB/s and 20 us each$"));
}

} // namespace
} // namespace pentatron::trainer
