// The same configuration and seed train the same model in every layout: one rank is the oracle.
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "tests/trainer/layout_runs.h"

namespace pentatron::trainer {
namespace {

using test::Layout;

/// PENTATRON_MATRIX=processes takes each work once, on four ranks if it has such a layout.
std::vector<Layout> layouts_for_processes() {
  std::map<std::string, Layout> chosen;
  for (const Layout& layout : test::layouts()) {
    if (!layout.in_ci || layout.ranks > 4) continue;
    const auto [slot, first] = chosen.try_emplace(layout.work, layout);
    if (!first && slot->second.ranks < layout.ranks) slot->second = layout;
  }
  std::vector<Layout> layouts;
  for (const auto& [work, layout] : chosen) layouts.push_back(layout);
  return layouts;
}

std::vector<std::tuple<Layout, std::string>> chosen_runs() {
  std::vector<std::tuple<Layout, std::string>> runs;
  if (test::matrix() == "processes") {
    for (const Layout& layout : layouts_for_processes()) runs.emplace_back(layout, "fp64");
    return runs;
  }
  for (const Layout& layout : test::layouts()) {
    if (layout.in_ci || test::full_matrix()) runs.emplace_back(layout, "fp64");
    if (test::full_matrix() && !test::work_of(layout.work).jumps) runs.emplace_back(layout, "fp32");
  }
  return runs;
}

/// Twenty steps in full. What goes wrong in a layout shows in ten (and between processes in four),
/// but for works with a count of their own, or whose batch grows.
std::string keys_of(const std::string& work, const std::string& dtype) {
  if (dtype == "fp32" && test::takes_signs(work))
    return " dtype=fp32 train.train_iters=5 train.eval_interval=5";
  const std::string& own = test::work_of(work).keys;
  const bool whole = test::full_matrix() || own.find("train.train_iters=") != std::string::npos ||
                     own.find("train.rampup_batch_size=") != std::string::npos;
  const int steps = test::matrix() == "processes" ? 4 : 10;
  return " dtype=" + dtype +
         (whole ? "" : fmt::format(" train.train_iters={0} train.eval_interval={0}", steps));
}

/// The training of a work is worth comparing: weights move, and gradients are clipped.
void expect_movement(const std::string& work, const test::Trained& run) {
  double moved = 0, size = 0;
  const bool adapters = test::work_of(work).keys.find("peft.type") != std::string::npos;
  for (const auto& [name, weight] : run.start) {
    if (adapters && name.find(".lora_") == std::string::npos) continue;
    moved += (run.weights.at(name) - weight).square().sum().item<double>();
    size += weight.square().sum().item<double>();
  }
  EXPECT_GT(std::sqrt(moved / size), run.losses.size() > 10 ? 0.05 : 0.03) << work;
  EXPECT_GT(run.norms.front(), 0.5) << work << ": clipping must be active";
}

class LayoutMatrix : public testing::TestWithParam<std::tuple<Layout, std::string>> {};

TEST_P(LayoutMatrix, TrainsWhatOneRankTrains) {
  const auto& [layout, dtype] = GetParam();
  const std::string more = keys_of(layout.work, dtype);
  const test::Trained run = test::train_layout(layout.work, layout.ranks, layout.keys + more);
  if (!test::is_first_process() || IsSkipped()) return;
  const test::Trained& oracle = test::one_rank(layout.work, more);
  expect_same_training(run, oracle, test::bounds_of(dtype, test::work_of(layout.work).keys));
  static std::set<std::string> seen;
  if (test::matrix() != "processes" && seen.insert(layout.work).second)
    expect_movement(layout.work, oracle);
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutMatrix, testing::ValuesIn(chosen_runs()),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::get<1>(info.param);
                         });

TEST(LayoutMatrixSize, TheFullMatrixHasNearly400LayoutsOfUpTo16Ranks) {
  EXPECT_GE(test::layouts().size(), 390u);
  for (const Layout& layout : test::layouts()) EXPECT_LE(layout.ranks, 16) << layout.name;
}

TEST(LayoutWork, AccumulationAndRecomputationChangeNothing) {
  const test::Trained& oracle = test::one_rank("gpt2", " dtype=fp64");
  expect_same_training(test::train_layout("gpt2", 1, "train.micro_batch_size=8 dtype=fp64"), oracle,
                       {1e-10, 1e-10});
  expect_same_training(test::train_layout("gpt2", 1, "train.recompute=full dtype=fp64"), oracle,
                       {1e-12, 1e-12});
}

TEST(LayoutWork, KeysOfABiasMayBeNoiseOnlyInFp32AndWithoutAGradient) {
  const test::Scratch scratch;
  test::write_documents(scratch / "documents.jsonl", 400);
  test::write_stories(scratch / "stories.jsonl", 200);
  const auto noise = [&](const std::string& work, const std::string& dtype) {
    return test::key_noise_of(test::layout_config(work, "dtype=" + dtype, 1, scratch));
  };
  for (const char* work : {"gpt2", "bert"}) {
    EXPECT_EQ(noise(work, "fp32"), 1e-3) << work;
    EXPECT_EQ(noise(work, "bf16"), 1e-3) << work;
    EXPECT_EQ(noise(work, "fp64"), 0) << work;
  }
  EXPECT_EQ(noise("bert_pre", "fp32"), 0);
  for (const char* more : {" model.qk_layernorm=true", " model.softmax_type=learnable"})
    EXPECT_EQ(noise("gpt2", std::string("fp32") + more), 0) << more;
  // Eight queries, four keys and four values.
  const std::map<std::string, at::Tensor> oracle = {{"qkv.bias", at::ones({16}, at::kDouble)},
                                                    {"proj.weight", at::ones({8, 8}, at::kDouble)}};
  std::map<std::string, at::Tensor> run = oracle;
  run["qkv.bias"] = oracle.at("qkv.bias").clone();
  run["qkv.bias"].narrow(0, 8, 4).add_(1e-6);
  EXPECT_NONFATAL_FAILURE(test::expect_same_weights(run, oracle, 1e-10), "of keys");
  test::expect_same_weights(run, oracle, 1e-10, 1e-3);
}

TEST(LayoutErrors, ARankThatThrowsEndsTheOthersWithItsReason) {
  const test::Scratch scratch;
  test::write_documents(scratch / "documents.jsonl", 400);
  const Config config =
      test::layout_config("gpt2", "parallel.tensor_model_parallel_size=2", 2, scratch);
  const std::string message = test::error_of([&] {
    test::run_ranks(2, [&](const comm::Group& world) {
      if (world.rank() == 1) throw Error("the disk is on fire");
      Trainer(config, world).run();
    });
  });
  EXPECT_NE(message.find("rank 1 of 2: the disk is on fire"), std::string::npos) << message;
}

TEST(LayoutErrors, RanksWithDifferentConfigurationsDoNotTrain) {
  const test::Scratch scratch;
  test::write_documents(scratch / "documents.jsonl", 400);
  // The second would not even let the ranks form the same groups.
  for (const std::string key : {"optimizer.lr=0.002", "parallel.tensor_model_parallel_size=2"}) {
    const std::string message = test::error_of([&] {
      test::run_ranks(2, [&](const comm::Group& world) {
        Trainer trainer(test::layout_config("gpt2", world.rank() == 0 ? "" : key, 2, scratch),
                        world);
      });
    });
    EXPECT_NE(message.find("differs from rank 0: " + key), std::string::npos) << message;
  }
}

TEST(LayoutErrors, EverythingThatDoesNotFitIsToldAtOnceBeforeAnythingRuns) {
  const test::Scratch scratch;
  const std::string message = test::error_of([&] {
    test::layout_config("gpt2",
                        "parallel.tensor_model_parallel_size=3 parallel.context_parallel_size=2 "
                        "parallel.pipeline_model_parallel_size=5 "
                        "ddp.num_distributed_optimizer_instances=7",
                        8, scratch);
  });
  for (const char* part :
       {"model.num_attention_heads=4", "model.ffn_hidden_size=64", "context_parallel_size",
        "too few for 5 pipeline stages", "num_distributed_optimizer_instances", "--ranks 30"})
    EXPECT_NE(message.find(part), std::string::npos) << part << " is missing in: " << message;
}

TEST(LayoutErrors, WhatContextRanksCannotSplitIsRefusedByOneSentence) {
  const test::Scratch scratch;
  const auto refusal = [&](const std::string& work, const std::string& keys, int ranks) {
    return test::error_of([&] { test::layout_config(work, keys, ranks, scratch); });
  };
  const std::string two = "parallel.context_parallel_size=2 ";
  const std::vector<std::array<std::string, 3>> cases = {
      {"t5", two, "context_parallel_size=2 splits samples, which model.type=t5 does not support"},
      {"bert", two, "which model.binary_head=true does not support"},
      {"classes", two, "which model.type=bert with model.head=classification does not support"},
      {"gpt2", two + "train.seq_length=3", "cannot cut a sample of 3 tokens into 4 chunks"},
      {"gpt2", two + "parallel.cp_comm_type=[p2p,a2a]", "has 2 entries"},
      {"gpt2", two + "parallel.hierarchical_context_parallel_sizes=[2,2]", "has no effect without"},
      {"gpt2", two + "parallel.cp_comm_type=[a2a+p2p]", "needs groups of several ranks"},
      {"gpt2", "parallel.context_parallel_size=4 parallel.cp_comm_type=[a2a]",
       "the 2 key-value heads of a tensor-parallel rank cannot be divided evenly"},
      {"sft",
       two + "parallel.tensor_model_parallel_size=2 parallel.sequence_parallel=true "
             "train.remove_padding=true train.micro_batch_size=2 train.seq_length=12",
       "train.seq_length=12 is not a multiple of 8, as required by train.remove_padding=true"},
      {"gpt2",
       two + "parallel.tensor_model_parallel_size=2 parallel.sequence_parallel=true "
             "train.seq_length=14",
       "cannot divide the 7 tokens of a microbatch on a context-parallel rank evenly"},
  };
  for (const auto& [work, keys, part] : cases) {
    const std::string message = refusal(work, keys, 4);
    EXPECT_NE(message.find(part), std::string::npos) << part << " is missing in: " << message;
    EXPECT_EQ(message.find("problems in the configuration"), std::string::npos) << message;
    EXPECT_NE(message.find("\n  try: "), std::string::npos) << message;
  }
}

} // namespace
} // namespace pentatron::trainer
