// train.recompute=auto takes the least time that fits, and keys of recomputation that do nothing
// are refused.
#include "pentatron/trainer/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "pentatron/base/text.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "tests/support/ranks.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Config model_of(std::vector<std::string> more, int ranks = 1) {
  more.insert(more.begin(),
              {"model.num_layers=8", "model.hidden_size=64", "model.num_attention_heads=4",
               "model.vocab_size=300", "train.seq_length=128", "train.micro_batch_size=8",
               "train.global_batch_size=16", "model.max_position_embeddings=128",
               "dataset.type=mock"});
  return test::tiny("unused", std::move(more), ranks);
}

double bytes_of(const Config& config) {
  return plan_memory(config, 1).rank.total();
}

/// A limit that leaves room for a plan of so many bytes: 2 % are for the plan's error.
std::string limit_for(double bytes) {
  return fmt::format("train.recompute_memory_limit={}", bytes / 0.98 / (1 << 20));
}

TEST(ChooseRecomputation, TakesTheLeastTimeThatFits) {
  const Config none = model_of({});
  const double most = bytes_of(none), least = bytes_of(model_of({"train.recompute=full"}));
  ASSERT_LT(least, 0.6 * most);
  struct Other {
    std::string keys;
    double bytes, time;
  };
  std::vector<Other> others;
  const auto add = [&](const std::string& keys) {
    std::vector<std::string> list;
    for (const std::string_view word : split(keys, ' ')) list.emplace_back(word);
    const Config instead = model_of(list);
    others.push_back({keys, bytes_of(instead), plan_memory(instead, 1).recomputed});
  };
  add("train.recompute=none");
  for (int layers = 1; layers <= 8; ++layers)
    add(fmt::format("train.recompute=full train.recompute_method=block "
                    "train.recompute_num_layers={}",
                    layers));
  const char* const parts[] = {"mlp_act", "layernorm", "core_attn", "mlp"};
  for (unsigned set = 1; set < 16; ++set) {
    std::string names;
    for (unsigned i = 0; i < 4; ++i)
      if ((set >> i & 1U) != 0) names += (names.empty() ? "" : ",") + std::string(parts[i]);
    add("train.recompute=selective train.recompute_modules=[" + names + "]");
  }
  double time = 0;
  std::set<Recompute> chosen;
  std::set<std::vector<nn::Part>> chosen_parts;
  for (double share = 1.05; share > 0; share -= 0.05) {
    const double limit = least + share * (most - least);
    Config config = model_of({"train.recompute=auto", limit_for(limit)});
    const RecomputeChoice choice = choose_recomputation(config, 1, {}, std::nullopt);
    SCOPED_TRACE(choice.line);
    EXPECT_THAT(choice.warning, IsEmpty());
    EXPECT_NE(config.train.recompute, Recompute::kAuto);
    EXPECT_LE(bytes_of(config), limit);
    const double now = plan_memory(config, 1).recomputed;
    EXPECT_GE(now, time) << "less memory takes no less time";
    time = now;
    chosen.insert(config.train.recompute);
    chosen_parts.insert(config.train.recompute_modules);
    // Whatever takes less time does not fit.
    for (const Other& other : others)
      if (other.time < now) {
        EXPECT_GT(other.bytes, limit) << other.keys;
      }
  }
  EXPECT_EQ(chosen, (std::set{Recompute::kNone, Recompute::kSelective, Recompute::kFull}));
}

TEST(ChooseRecomputation, OfAllThatDoesNotFitTakesTheLeastMemory) {
  Config config = model_of({"train.recompute=auto", "train.recompute_memory_limit=1"});
  const RecomputeChoice choice = choose_recomputation(config, 1, {}, std::nullopt);
  EXPECT_THAT(choice.line, HasSubstr("full, of every layer"));
  EXPECT_EQ(bytes_of(config), bytes_of(model_of({"train.recompute=full"})));
  // Which is said, with a limit that is enough.
  const std::string key = "train.recompute_memory_limit=";
  EXPECT_THAT(choice.warning, HasSubstr("more than " + key + "1\n  try: " + key));
  Config enough =
      model_of({"train.recompute=auto", choice.warning.substr(choice.warning.rfind(key))});
  EXPECT_THAT(choose_recomputation(enough, 1, {}, std::nullopt).warning, IsEmpty());
  Config small = model_of({"train.recompute=auto"});
  EXPECT_THAT(choose_recomputation(small, 1, {}, 1 << 20).warning,
              HasSubstr("which has 1.0 MiB free"));
  // A part of the free memory is left to others; what needs it still fits.
  Config tight = model_of({"train.recompute=auto"});
  const double least = plan_memory(model_of({"train.recompute=full"}), 1).machine;
  EXPECT_THAT(choose_recomputation(tight, 1, {}, static_cast<int64_t>(least * 1.05)).warning,
              IsEmpty());
}

TEST(ChooseRecomputation, GroupsTheLayersOfDeepModels) {
  for (const int stages : {1, 2}) {
    const auto deep = [&](std::vector<std::string> keys) {
      keys.insert(keys.begin(), {"model.num_layers=96", "model.ffn_hidden_size=128",
                                 "train.seq_length=1024", "model.max_position_embeddings=1024",
                                 fmt::format("parallel.pipeline_model_parallel_size={}", stages)});
      return model_of(keys, stages);
    };
    std::vector<double> bytes; // by size
    for (int size = 1; size <= 96 / stages; ++size)
      bytes.push_back(plan_memory(deep({"train.recompute=full",
                                        fmt::format("train.recompute_num_layers={}", size)}),
                                  stages)
                          .rank.total());
    const auto least = std::ranges::min_element(bytes);
    ASSERT_LT(1.1 * *least, bytes[0]);
    const auto chosen = [&](double limit) {
      Config config = deep({"train.recompute=auto", limit_for(limit)});
      const RecomputeChoice choice = choose_recomputation(config, stages, {}, std::nullopt);
      EXPECT_EQ(config.train.recompute_method, RecomputeMethod::kUniform) << choice.line;
      const int64_t size = config.train.recompute_num_layers;
      if (size > 1) {
        EXPECT_THAT(choice.line, HasSubstr(fmt::format("in groups of {}: ", size)));
      }
      return std::pair(size, choice.warning);
    };
    const int64_t best = least - bytes.begin() + 1;
    EXPECT_THAT(chosen(1.001 * *least), testing::Pair(best, IsEmpty()));
    // Where nothing fits, the least; where several sizes do, the smallest.
    EXPECT_THAT(chosen(0.9 * *least), testing::Pair(best, HasSubstr("the least memory")));
    ASSERT_LT(bytes[1], bytes[0]);
    EXPECT_THAT(chosen(1.001 * bytes[1]), testing::Pair(2, IsEmpty()));
  }
}

TEST(GroupSizes, AreTheSmallestOfEachNumberOfGroups) {
  for (int64_t layers = 1; layers <= 100; ++layers) {
    std::set<int64_t> sizes;
    for (int64_t groups = 1; groups <= layers; ++groups)
      sizes.insert((layers + groups - 1) / groups);
    EXPECT_THAT(group_sizes(layers), testing::ElementsAreArray(sizes)) << layers;
  }
}

TEST(ChooseRecomputation, LeavesOtherSettingsAlone) {
  Config config = model_of({"train.recompute=selective"});
  EXPECT_THAT(choose_recomputation(config, 1, {}, 1).line, IsEmpty());
  EXPECT_EQ(config.train.recompute, Recompute::kSelective);
}

TEST(ChooseRecomputation, IsTheSameOnAllRanksAndTrainsTheSame) {
  const test::Scratch scratch;
  test::write_documents(scratch / "text.jsonl", 100);
  const auto loss = [&](const std::string& recompute) {
    double result = 0;
    const Config config =
        test::tiny(scratch / "text.jsonl", {recompute, "parallel.tensor_model_parallel_size=2"}, 2);
    test::run_ranks(2, [&](const comm::Group& world) {
      Trainer trainer(config, world);
      const TrainReport report = trainer.run();
      if (world.rank() == 0) result = *report.last_loss;
    });
    return result;
  };
  EXPECT_EQ(loss("train.recompute=auto"), loss("train.recompute=none"));
}

TEST(OffloadedActivations, LeaveMemory) {
  nn::install_counting_allocator();
  const test::Scratch scratch;
  const auto peak = [&](std::vector<std::string> keys) {
    keys.insert(keys.begin(), {"model.hidden_size=128", "model.ffn_hidden_size=1024"});
    const Config config = model_of(keys);
    at::set_num_threads(1);
    nn::reset_memory_peak(0);
    Trainer trainer(config, {});
    trainer.run();
    const auto measured =
        static_cast<double>(nn::memory_snapshot(0)[nn::MemoryCategory::kActivations].peak_bytes);
    const double planned = plan_memory(config, 1).rank.activations;
    EXPECT_NEAR(measured / planned, 1, 0.35);
    return measured;
  };
  const std::string dir = "offload.dir=" + (scratch / "away");
  const double all = peak({}), none = peak({"offload.activations=true", dir}),
               some = peak({"offload.activations=true", dir, "offload.num_layers=3"});
  EXPECT_LT(none, 0.5 * all);
  EXPECT_LT(none, some);
  EXPECT_LT(some, all);
}

TEST(RecomputeKeys, ThatDoNothingAreRefused) {
  for (const auto& [keys, expected] :
       {std::pair{std::vector<std::string>{"train.recompute_modules=[mlp]"},
                  "has no effect with train.recompute=none"},
        {{"train.recompute=full", "train.recompute_modules=[mlp]"},
         "train.recompute_modules=[mlp] has no effect with train.recompute=full"},
        {{"train.recompute=selective", "train.recompute_modules=[mlp,moe]"},
         "includes moe, which no layer of the model has\n  try: train.recompute_modules=[mlp]"},
        {{"train.recompute=selective", "train.recompute_modules=[mla_up_proj]"},
         "try: train.recompute_modules=[mlp_act,moe_act]"},
        {{"train.recompute=selective", "train.recompute_modules=[mlp,mlp_act,moe]",
          "model.num_moe_experts=2"},
         "includes mlp, mlp_act, which no layer of the model has\n"
         "  try: train.recompute_modules=[moe]"},
        {{"train.recompute=selective", "train.recompute_modules=[mlp]", "model.num_moe_experts=2",
          "model.moe_shared_expert_intermediate_size=32"},
         "includes mlp, which"},
        {{"train.recompute=selective", "train.recompute_modules=[moe]", "model.num_moe_experts=2",
          "model.moe_layer_freq=[0]*8"},
         "includes moe, which"},
        {{"train.recompute=selective", "train.recompute_modules=[]"}, "is empty"},
        {{"train.recompute_method=block"}, "train.recompute=full"},
        {{"train.recompute=selective", "train.recompute_num_layers=2"},
         "with train.recompute=selective\n  try: train.recompute_num_layers=1"},
        {{"train.recompute_memory_limit=5"}, "train.recompute=auto"},
        {{"offload.dir=/var/tmp"}, "has no effect without offload.activations=true"},
        {{"offload.num_layers=2"}, "has no effect without offload.activations=true"},
        {{"offload.activations=true", "device=cpu"}, "try: offload.dir=/var/tmp"}})
    EXPECT_THAT(test::error_of([&] { model_of(keys); }), HasSubstr(expected));
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"train.recompute_modules=[mlp,moe]", "model.moe_layer_freq=2"},
        {"train.recompute_modules=[mlp_act]", "model.moe_shared_expert_intermediate_size=32"}}) {
    std::vector<std::string> keys = {"train.recompute=selective", "model.num_moe_experts=2"};
    keys.insert(keys.end(), more.begin(), more.end());
    EXPECT_NO_THROW(model_of(keys)) << more.front();
  }
}

TEST(OffloadedActivations, OfStagesOfOneLayerAreRefused) {
  const auto run = [](std::vector<std::string> keys, int ranks = 1) {
    keys.insert(keys.end(), {"offload.activations=true", "offload.dir=unused"});
    model_of(keys, ranks);
  };
  const auto told = [&](const std::vector<std::string>& keys, int ranks = 1) {
    return test::error_of([&] { run(keys, ranks); });
  };
  const std::string one = "model.num_layers=1", halves = "parallel.pipeline_model_parallel_size=2",
                    turns = "parallel.pipeline_schedule=zb_v";
  EXPECT_THAT(told({one}), HasSubstr("offload.activations=true has no effect with "
                                     "offload.num_layers=0: each pipeline stage has one layer"));
  EXPECT_THAT(told({one}), HasSubstr("try: offload.num_layers=1"));
  EXPECT_THAT(told({"model.num_layers=2", halves}, 2), HasSubstr("has no effect"));
  EXPECT_THAT(told({"model.num_layers=4", halves, turns}, 2), HasSubstr("has no effect"));
  EXPECT_NO_THROW(run({"model.num_layers=4", halves}, 2));
  EXPECT_NO_THROW(run({one, "offload.num_layers=1"}));
}

TEST(OffloadedActivations, NeedAFolderThatCanBeWritten) {
  const Config config = model_of({"offload.activations=true", "offload.dir=/proc/x"});
  EXPECT_THAT(test::error_of([&] { Trainer(config, {}); }),
              ::testing::AllOf(HasSubstr("offload.dir=/proc/x cannot be written: "),
                               HasSubstr("try: offload.dir=/var/tmp")));
}

} // namespace
} // namespace pentatron::trainer
