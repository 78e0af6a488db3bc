// What is suggested to a run that does not fit: the gentlest settings with which it does.
#include "pentatron/trainer/memory_changes.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "pentatron/trainer/memory_plan.h"
#include "tests/trainer/memory_model.h"

namespace pentatron::trainer {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const OffloadFolder kDisk{.path = "/scratch", .free_bytes = 1e15};
const OffloadFolder kNoDisk{};

/// The smallest batch, so that no smaller microbatch helps.
std::vector<std::string> in_single_samples(std::vector<std::string> keys) {
  keys.insert(keys.begin(), {"train.micro_batch_size=1", "train.global_batch_size=4"});
  return keys;
}

double machine_bytes(const Config& config, int ranks = 1) {
  return plan_memory(config, ranks, {.ranks = ranks}).machine;
}

/// What is suggested where a little more is free than `enough` needs; follows it and checks that it
/// fits.
std::string followed_remedy(const std::vector<std::string>& keys,
                            const std::vector<std::string>& enough, const OffloadFolder& folder,
                            int ranks = 1) {
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = in_single_samples(keys);
    all.insert(all.end(), more.begin(), more.end());
    return small_model(all, ranks);
  };
  const double bytes = machine_bytes(with(enough), ranks) * 1.001 / 0.9;
  EXPECT_LT(bytes * 0.9, machine_bytes(with({}), ranks)) << "it fits as it is";
  const std::string text =
      memory_remedy(with({}), ranks, {.ranks = ranks}, static_cast<int64_t>(bytes), folder);
  std::vector<std::string> change;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    change.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  EXPECT_LE(machine_bytes(with(change), ranks), 0.9 * bytes) << text;
  return text;
}

TEST(MemoryRemedy, KeepsRemaindersOfBf16Models) {
  EXPECT_EQ(followed_remedy({"dtype=bf16"}, {"optimizer.store_param_remainders=true"}, kDisk),
            "optimizer.store_param_remainders=true");
}

TEST(MemoryRemedy, RecomputesBeforeItOffloads) {
  EXPECT_EQ(followed_remedy({"train.seq_length=128"}, {"train.recompute=selective"}, kDisk),
            "train.recompute=selective");
}

TEST(MemoryRemedy, RecomputesDeepModelsInGroups) {
  const std::vector<std::string> deep = {
      "model.num_layers=96",  "model.hidden_size=64",  "model.ffn_hidden_size=128",
      "model.vocab_size=512", "train.seq_length=1024", "model.max_position_embeddings=1024"};
  const auto groups = [](int64_t size) {
    return std::vector<std::string>{"train.recompute=full",
                                    fmt::format("train.recompute_num_layers={}", size)};
  };
  const auto bytes = [&](int64_t size) {
    std::vector<std::string> keys = in_single_samples(deep);
    for (const std::string& key : groups(size)) keys.push_back(key);
    return machine_bytes(small_model(keys));
  };
  int64_t best = 1;
  for (int64_t size = 2; size <= 96; ++size)
    if (bytes(size) < bytes(best)) best = size;
  ASSERT_GT(best, 1);
  ASSERT_LT(1.005 * bytes(best), bytes(1));
  const std::string size = fmt::format("train.recompute_num_layers={}", best);
  EXPECT_EQ(followed_remedy(deep, groups(best), kNoDisk), "train.recompute=full " + size);
  EXPECT_EQ(followed_remedy(deep, groups(1), kNoDisk), "train.recompute=full");
  std::vector<std::string> full = deep, block = deep;
  full.emplace_back("train.recompute=full");
  EXPECT_EQ(followed_remedy(full, groups(best), kNoDisk), size);
  block.insert(block.end(), {"train.recompute=full", "train.recompute_method=block"});
  EXPECT_EQ(followed_remedy(block, {"train.recompute_method=uniform", size}, kNoDisk),
            "train.recompute_method=uniform " + size);
}

TEST(MemoryRemedy, OffloadsTheOptimizersState) {
  const std::string away = "offload.optimizer=true offload.dir=/scratch";
  EXPECT_EQ(followed_remedy({}, {"offload.optimizer=true", "offload.dir=/scratch"}, kDisk), away);
  // A folder that is set is named by no remedy.
  const std::vector<std::string> set = {"offload.activations=true", "offload.dir=/var/tmp"};
  EXPECT_EQ(
      followed_remedy(set, {"offload.optimizer=true"}, {.path = "/var/tmp", .free_bytes = 1e15}),
      "offload.optimizer=true");
}

TEST(MemoryRemedy, OffloadsActivations) {
  const std::vector<std::string> long_texts = {
      "train.seq_length=2048", "model.max_position_embeddings=2048", "train.recompute=full",
      "model.num_layers=32", "model.vocab_size=512"};
  EXPECT_THAT(
      followed_remedy(long_texts, {"offload.activations=true", "offload.dir=/scratch"}, kDisk),
      StartsWith("offload."));
}

TEST(MemoryRemedy, CombinesWhatAloneIsTooLittle) {
  const std::string text = followed_remedy(
      {"dtype=bf16", "train.seq_length=1024", "model.max_position_embeddings=1024"},
      {"train.recompute=full", "offload.optimizer=true", "offload.dir=/scratch"}, kDisk);
  EXPECT_THAT(text, AllOf(HasSubstr("train.recompute="), HasSubstr("offload.optimizer=true"),
                          HasSubstr("offload.dir=/scratch"), Not(HasSubstr("model."))));
  EXPECT_THAT(
      followed_remedy({}, {"train.recompute=full", "ddp.zero_stage=3"}, kNoDisk, 4),
      AllOf(HasSubstr("ddp.zero_stage="), Not(HasSubstr("offload")), Not(HasSubstr("optimizer."))));
}

TEST(MemoryRemedy, ChangesTheOptimizerWhereNothingElseHelps) {
  const std::string means = "optimizer.exp_avg_dtype=bf16";
  const std::vector<std::string> least = {"train.recompute=full", "model.vocab_size=257",
                                          "model.num_layers=64"};
  EXPECT_THAT(followed_remedy(least, {means}, kNoDisk), StartsWith(means));
  EXPECT_THAT(followed_remedy(least, {means, "optimizer.exp_avg_sq_dtype=bf16"}, kNoDisk),
              StartsWith(means + " optimizer.exp_avg_sq_dtype=bf16"));
  EXPECT_THAT(followed_remedy({least},
                              {"optimizer.exp_avg_dtype=fp8", "optimizer.exp_avg_sq_dtype=fp8"},
                              kNoDisk),
              StartsWith("optimizer.exp_avg_dtype=fp8 optimizer.exp_avg_sq_dtype=fp8"));
  EXPECT_THAT(
      followed_remedy(least, {"optimizer.optimizer=lion", "optimizer.exp_avg_dtype=fp8"}, kNoDisk),
      StartsWith("optimizer.optimizer=lion optimizer.lr=0.00333 optimizer.min_lr=0.000333 "
                 "optimizer.weight_decay=0.3 optimizer.exp_avg_dtype=fp8"));
  EXPECT_THAT(
      followed_remedy(least, {"optimizer.optimizer=adafactor"}, kNoDisk),
      StartsWith("optimizer.optimizer=adafactor optimizer.adafactor_scale_parameter=false"));
}

TEST(MemoryRemedy, NeedsADiskForOffload) {
  for (const OffloadFolder& small :
       {kNoDisk, OffloadFolder{.path = "/scratch", .free_bytes = 1 << 20}})
    EXPECT_THAT(followed_remedy({}, {"offload.optimizer=true", "offload.dir=/scratch"}, small),
                Not(HasSubstr("offload")));
}

TEST(MemoryRemedy, KeepsTheOptimizerOfARunThatResumes) {
  Config c = small_model({});
  const auto kinds = [&] {
    std::string all;
    for (const MemoryChange& change : leaner_optimizers(c))
      for (const std::string& key : change) all += key + " ";
    return all;
  };
  EXPECT_THAT(kinds(), AllOf(HasSubstr("=lion"), HasSubstr("=adafactor")));
  c.checkpoint.load = "runs/earlier";
  EXPECT_THAT(kinds(), AllOf(HasSubstr("exp_avg_dtype=bf16"), Not(HasSubstr("=lion")),
                             Not(HasSubstr("=adafactor"))));
  c.checkpoint.load = "auto"; // where there is none yet
  c.checkpoint.save = "runs/none";
  EXPECT_THAT(kinds(), HasSubstr("=lion"));
}

TEST(MemoryRemedy, TriesFewSettingsFirst) {
  size_t before = 0;
  const std::vector<MemoryChange> all =
      changes_of_memory_alone(small_model({"dtype=bf16"}, 2), 2, 1, kNoDisk);
  for (const MemoryChange& change : all) {
    EXPECT_GE(change.size(), before);
    before = change.size();
  }
  EXPECT_EQ(before, 3u); // remainders, recomputation, ZeRO
}

TEST(OffloadFolder, IsOneOnADisk) {
  Config c;
  EXPECT_THAT(offload_folder(c).path, AnyOf("", "/var/tmp"));
  c.offload.dir = "/dev/shm"; // memory, where it is mounted
  EXPECT_THAT(offload_folder(c).path, AnyOf("", "/dev/shm"));
}

} // namespace
} // namespace pentatron::trainer
