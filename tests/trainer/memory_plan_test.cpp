// What a run is said to need: near what it takes, and what does not fit is refused with what would.
#include "pentatron/trainer/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <regex>
#include <sstream>

#include "pentatron/base/format.h"
#include "pentatron/base/free_disk.h"
#include "pentatron/checkpoint/tensor_io.h"
#include "pentatron/models/param_specs.h"
#include "pentatron/models/presets.h"
#include "pentatron/trainer/checkpoint_space.h"
#include "pentatron/trainer/metrics/hardware.h"
#include "pentatron/trainer/notices.h"
#include "pentatron/trainer/runtime.h"
#include "tests/support/ranks.h"
#include "tests/trainer/memory_model.h"

namespace pentatron::trainer {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(MemoryPlans, CountFrozenParametersAsValuesAlone) {
  const Config all = small_model({"dtype=bf16"}), half = small_model({"dtype=bf16", kFrozen});
  const MemoryPlan before = plan_memory(all, 1), plan = plan_memory(half, 1);
  double trained = 0;
  for (const auto& [name, spec] : models::param_specs(half.model))
    if (name.starts_with("layers.2") || name.starts_with("layers.3") || name == "output.weight")
      trained += static_cast<double>(spec.numel());
  ASSERT_GT(trained, 0);
  EXPECT_EQ(plan.parameters, before.parameters);
  EXPECT_EQ(plan.frozen_parameters, plan.parameters - trained);
  EXPECT_EQ(plan.rank.weights, before.rank.weights);
  EXPECT_EQ(plan.rank.gradients, 4 * trained);
  EXPECT_EQ(plan.rank.optimizer, 12 * trained);
  EXPECT_THAT(describe_limits(half, plan, kGiB),
              HasSubstr(", 4.20M of them frozen (6.29M on a rank)"));
  // Stages hold different shares of them: here the last one trains, the first one does not.
  const std::vector<std::string> pp2 = {kFrozen, "parallel.pipeline_model_parallel_size=2"};
  EXPECT_EQ(plan_memory(small_model(pp2, 2), 2).rank.gradients, 4 * trained);
  // Both stages hold the tied table once.
  EXPECT_EQ(plan_memory(small_model({"train.freeze=[embedding.word.weight]",
                                     "model.untie_embeddings_and_output_weights=false"},
                                    1),
                        1)
                .frozen_parameters,
            8192.0 * 256);
}

TEST(MemoryPlans, SplitWhatIsSplit) {
  const MemoryPlan one = plan_memory(small_model({}), 1);
  EXPECT_EQ(one.parameters, static_cast<double>(small_model({}).model.num_parameters()));
  EXPECT_EQ(one.rank_parameters, one.parameters);
  const auto with = [](int stage) {
    return plan_memory(small_model({fmt::format("ddp.zero_stage={}", stage)}, 2), 2).rank;
  };
  EXPECT_EQ(with(1).optimizer, with(0).optimizer / 2);
  const auto activations = [](const char* recompute) {
    return plan_memory(small_model({std::string("train.recompute=") + recompute}), 1)
        .rank.activations;
  };
  EXPECT_LT(activations("selective"), activations("none"));
  EXPECT_LT(activations("full"), activations("selective"));
  const auto context = [](int ranks, const char* stage) {
    return plan_memory(small_model({fmt::format("parallel.context_parallel_size={}", ranks), stage,
                                    "train.seq_length=1024", "model.max_position_embeddings=1024"},
                                   ranks),
                       ranks)
        .rank;
  };
  EXPECT_NEAR(context(4, "ddp.zero_stage=0").activations /
                  context(1, "ddp.zero_stage=0").activations,
              0.25, 0.06);
  EXPECT_EQ(context(4, "ddp.zero_stage=1").optimizer, context(1, "ddp.zero_stage=1").optimizer / 4);
  // Gathered layers count, so that a model needs some of them for it to win.
  const auto deep = [](int stage) {
    return plan_memory(
               small_model({fmt::format("ddp.zero_stage={}", stage), "model.num_layers=32"}, 2), 2)
        .rank;
  };
  EXPECT_LT(deep(2).gradients, deep(1).gradients);
  EXPECT_LT(deep(3).weights, deep(2).weights);
  const auto tp = plan_memory(small_model({"parallel.tensor_model_parallel_size=4"}, 4), 4);
  EXPECT_NEAR(tp.rank_parameters / (one.parameters / 4), 1, 0.02);
  // All of a machine's ranks count, and what each process needs for itself.
  const Config c = small_model({}, 2);
  EXPECT_NEAR(plan_memory(c, 2, {.ranks = 2, .processes = 1}).machine,
              2 * plan_memory(c, 2).rank.total() + 300e6, 1);
  EXPECT_NEAR(plan_memory(c, 2, {.ranks = 2, .processes = 2}).machine,
              2 * plan_memory(c, 2).rank.total() + 600e6, 1);
}

TEST(MemoryPlans, WhatCannotFitIsRefusedWithWhatWould) {
  struct Refusal {
    std::vector<std::string> keys;
    const char* tries;
    int ranks = 1;
  };
  const std::string gpt2 = "model.preset=gpt2_124m";
  for (const Refusal& refusal : std::vector<Refusal>{
           {{gpt2, "train.micro_batch_size=1000000", "train.global_batch_size=1000000"},
            "train.micro_batch_size="},
           {{gpt2, "train.micro_batch_size=1024", "train.global_batch_size=1024",
             "train.seq_length=1024"},
            "train.micro_batch_size="},
           {{"model.hidden_size=100000", "model.num_attention_heads=100"}, "model.hidden_size="},
           {{"model.preset=llama3.2_3b"}, "model.num_layers="},
           {{"model.preset=moonlight_16b"}, "model.hidden_size="}, // a list of layers with experts
           {{gpt2, "train.micro_batch_size=1", "train.global_batch_size=64"},
            "ddp.zero_stage=",
            64},
       }) {
    const auto base = [&](std::vector<std::string> more) {
      std::vector<std::string> all = refusal.keys;
      all.insert(all.end(), more.begin(), more.end());
      all.emplace_back("dataset.type=mock");
      return load_config(std::nullopt, all, {}, refusal.ranks);
    };
    const LocalRanks here{.ranks = refusal.ranks, .processes = 1};
    const int64_t free_bytes = refusal.ranks == 1 ? 24 * kGiB : 60 * kGiB;
    const std::string message =
        error_of([&] { require_memory(base({}), refusal.ranks, here, free_bytes); });
    EXPECT_THAT(message, AllOf(HasSubstr(" free\n  try: "), HasSubstr(refusal.tries),
                               HasSubstr("train.check_memory=false")));
    const std::string line = message.substr(message.find("try: ") + 5);
    std::vector<std::string> keys;
    const std::regex key(R"([a-z_]+\.[a-z_]+=[^ ,]+)");
    const std::string way = line.substr(0, line.find(", or"));
    for (std::sregex_iterator it(way.begin(), way.end(), key), end; it != end; ++it)
      keys.push_back(it->str());
    ASSERT_FALSE(keys.empty()) << message;
    EXPECT_NO_THROW(require_memory(base(keys), refusal.ranks, here, free_bytes)) << message;
  }
}

/// A smaller microbatch changes no result, a smaller batch does.
TEST(MemoryPlans, ASmallerMicrobatchIsSuggestedFirst) {
  const Config config = small_model(
      {"train.micro_batch_size=1000000", "train.global_batch_size=1000000", "train.seq_length=16"});
  EXPECT_THAT(memory_remedy(config, 1, {}, 40 * kGiB), StartsWith("train.micro_batch_size="));
}

TEST(MemoryPlans, OfWhatFitsNothingIsSaid) {
  const auto require = [](std::vector<std::string> keys, int64_t bytes) {
    keys.emplace_back("dataset.type=mock");
    require_memory(load_config(std::nullopt, keys), 1, {}, bytes);
  };
  EXPECT_NO_THROW(require({"model.preset=gpt2_124m"}, 4 * kGiB));
  EXPECT_NO_THROW(require({}, kGiB));
  EXPECT_THROW(require({"model.preset=gpt2_124m"}, kGiB), ConfigError);
}

TEST(MemoryPlans, WhatMayNotFitIsTold) {
  const Config config = load_config(std::nullopt, {"model.preset=gpt2_124m", "dataset.type=mock"});
  const double needed = plan_memory(config, 1).machine;
  const auto told = [&](double free) {
    testing::internal::CaptureStderr();
    require_memory(config, 1, {}, static_cast<int64_t>(free));
    return testing::internal::GetCapturedStderr();
  };
  for (const double share : {1.03, 0.97})
    EXPECT_THAT(told(share * needed), AllOf(HasSubstr(" free: it may not fit\n  try: "),
                                            HasSubstr("train.micro_batch_size=")));
  EXPECT_EQ(told(1.1 * needed), "");
  EXPECT_THROW(require_memory(config, 1, {}, static_cast<int64_t>(needed / 1.1)), ConfigError);
}

TEST(MemoryPlans, CountBeyond64Bits) {
  Config c;
  c.model.num_layers = int64_t{1} << 20;
  c.model.hidden_size = c.model.num_attention_heads * (int64_t{1} << 26);
  c.train.micro_batch_size = c.train.global_batch_size = int64_t{1} << 30;
  const MemoryPlan plan = plan_memory(c, 1);
  EXPECT_TRUE(std::isfinite(plan.machine));
  EXPECT_GT(plan.machine, 1e22);
  EXPECT_THAT(describe_limits(c, plan, kGiB), HasSubstr("which has 1.0 GiB free"));
}

TEST(MemoryPlans, CountTheOrderOfMegatronsSamples) {
  const auto data = [](const char* order, int ranks) {
    return plan_memory(small_model({"dataset.type=indexed", "dataset.path=none", order,
                                    "train.micro_batch_size=1", "train.train_iters=1000000"},
                                   ranks),
                       ranks)
        .rank.data;
  };
  const double samples = 1e6 * static_cast<double>(small_model({}).train.global_batch_size);
  const double more = data("dataset.order=megatron", 1) - data("dataset.order=stable", 1);
  EXPECT_DOUBLE_EQ(more, 12 * samples);
}

TEST(MemoryPlans, HaveOneOrderOfSamplesForAMachine) {
  const auto machine = [](const char* order, const LocalRanks& here) {
    return plan_memory(small_model({"dataset.type=indexed", "dataset.path=none", order,
                                    "train.micro_batch_size=1", "train.train_iters=1000000"},
                                   4),
                       4, here)
        .machine;
  };
  const double samples =
      1e6 *
      static_cast<double>(small_model({"train.micro_batch_size=1"}, 4).train.global_batch_size);
  for (const LocalRanks& here : {LocalRanks{.ranks = 1, .processes = 1},
                                 {.ranks = 2, .processes = 1},
                                 {.ranks = 2, .processes = 2},
                                 {.ranks = 4, .processes = 4}})
    EXPECT_NEAR(machine("dataset.order=megatron", here) - machine("dataset.order=stable", here),
                12 * samples, 1)
        << here.ranks << " of 4 ranks in " << here.processes;
}

TEST(MemoryPlans, FitIntoTheColumnsOfATerminal) {
  for (const char* preset : {"gpt2_124m", "llama3.1_405b"}) {
    Config c;
    c.model = models::preset(preset);
    c.checkpoint.save = "x";
    c.checkpoint.async_save = true;
    std::istringstream lines(describe_limits(c, plan_memory(c, 1), kGiB));
    int rows = 0;
    for (std::string line; std::getline(lines, line); ++rows) EXPECT_LE(line.size(), 120u) << line;
    EXPECT_EQ(rows, 5) << preset;
  }
  Config one;
  one.model.num_layers = one.train.train_iters = 1;
  const std::string table = describe_limits(one, plan_memory(one, 1), {});
  EXPECT_THAT(table, AllOf(HasSubstr(", 1 layer, "), HasSubstr(" 1 iteration, ")));
}

/// In MiB, in the order of the text.
std::vector<double> sizes_in(const std::string& text) {
  std::vector<double> sizes;
  const std::regex size(R"(([0-9.]+) (B|KiB|MiB|GiB)\b)");
  for (std::sregex_iterator it(text.begin(), text.end(), size), end; it != end; ++it) {
    const std::string unit = (*it)[2];
    sizes.push_back(std::stod((*it)[1]) * (unit == "B"     ? 1.0 / (1 << 20)
                                           : unit == "KiB" ? 1.0 / (1 << 10)
                                           : unit == "MiB" ? 1
                                                           : 1 << 10));
  }
  return sizes;
}

/// Rounded to tenths of a MiB, without what the other moment needs.
TEST(MemoryPlans, NameCategoriesThatAddUpToTheTotal) {
  const std::string away = "offload.optimizer=true", muon = "optimizer.optimizer=muon",
                    few = "model.vocab_size=512", brief = "train.seq_length=16";
  for (const auto& [keys, update] : {std::pair{std::vector<std::string>{few}, false},
                                     {{few, brief, muon}, true},
                                     {{few, away, "offload.dir=."}, false},
                                     {{few, brief, muon, away, "offload.dir=."}, true}}) {
    const Config c = small_model(keys);
    const MemoryPlan plan = plan_memory(c, 1);
    ASSERT_EQ(plan.rank.most_in_update(), update);
    const std::string text = describe_limits(c, plan, {});
    SCOPED_TRACE(text);
    const size_t begin = text.find("memory  ");
    const std::string memory = text.substr(begin, text.find("on this machine") - begin),
                      most = memory.substr(0, std::min(memory.find(';'), memory.rfind('\n')));
    EXPECT_EQ(memory.find(" per rank, during an update: ") != std::string::npos, update);
    EXPECT_EQ(memory.find("in the backward pass activations ") != std::string::npos, update);
    const std::vector<double> sizes = sizes_in(most);
    ASSERT_GT(sizes.size(), 4u);
    EXPECT_NEAR(std::accumulate(sizes.begin() + 1, sizes.end(), 0.0), sizes[0], 0.4);
  }
  // And so do the columns of a pipeline.
  for (const std::string& rule : {std::string("optimizer.optimizer=adam"), muon}) {
    const Config c = small_model({few, brief, rule, "parallel.pipeline_model_parallel_size=2"}, 2);
    std::istringstream lines(describe_limits(c, plan_memory(c, 2), {}));
    int rows = 0;
    bool table = false;
    for (std::string line; std::getline(lines, line);) {
      if (table && rows < 2) {
        const std::vector<double> sizes = sizes_in(line);
        ASSERT_GT(sizes.size(), 4u) << line;
        EXPECT_NEAR(std::accumulate(sizes.begin(), sizes.end() - 1, 0.0), sizes.back(), 0.4)
            << line;
        EXPECT_EQ(line.find(" - ") != std::string::npos, rule == muon) << line;
        ++rows;
      }
      table = table || line.find("pipeline rank") != std::string::npos;
    }
    EXPECT_EQ(rows, 2);
  }
}

TEST(MemoryPlans, CountParametersWithoutThePaddingOfTheVocabulary) {
  const Config c = small_model({"model.vocab_size=1000"});
  double parameters = 0;
  for (const auto& [name, spec] : models::param_specs(c.model))
    parameters += static_cast<double>(spec.numel());
  const MemoryPlan plan = plan_memory(c, 1);
  EXPECT_EQ(plan.parameters, parameters);
  EXPECT_EQ(plan.rank_parameters, parameters);
  EXPECT_GT(plan.rank.weights, 4 * parameters); // which the memory has
}

TEST(CheckpointSpace, IsWhatTheCheckpointsOfTheRunTake) {
  const test::Scratch scratch;
  const auto run = [&](std::vector<std::string> more) {
    more.push_back("checkpoint.save=" + (scratch / "new"));
    return small_model(std::move(more));
  };
  const auto told = [](const Config& c) { return describe_checkpoints(c, plan_memory(c, 1)); };
  const Config once = run({});
  const MemoryPlan plan = plan_memory(once, 1);
  EXPECT_EQ(plan.checkpoint, 12 * plan.parameters); // fp32 weights, two moments
  EXPECT_THAT(told(once), AllOf(HasSubstr("checkpoints  one of about " +
                                          format_bytes(plan.checkpoint) + " in "),
                                HasSubstr("new, which has "), HasSubstr(" free")));
  EXPECT_THAT(told(run({"train.train_iters=100", "checkpoint.save_interval=10"})),
              HasSubstr(format_bytes(plan.checkpoint) + " each, up to 3 at the same time: " +
                        format_bytes(3 * plan.checkpoint) + " in "));
  const auto most = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"train.train_iters=100", "checkpoint.save_interval=30"});
    const std::string text = told(run(std::move(more)));
    return text.substr(text.find("up to "), text.find(" at the same") - text.find("up to "));
  };
  EXPECT_EQ(most({"checkpoint.keep=0"}), "up to 4");
  EXPECT_EQ(most({"checkpoint.keep=100"}), "up to 4");
  EXPECT_EQ(most({"checkpoint.keep=1", "checkpoint.keep_every=60"}), "up to 3");
  EXPECT_THAT(told(small_model({})), IsEmpty());
  EXPECT_THAT(told(run({"train.train_iters=0"})), IsEmpty());
  // Adapters are saved without the model.
  EXPECT_LT(plan_memory(run({"peft.type=lora"}), 1).checkpoint, plan.checkpoint / 10);
  EXPECT_GT(plan_memory(run({"checkpoint.parity=1"}), 1).checkpoint, plan.checkpoint);
  EXPECT_EQ(plan_memory(run({"checkpoint.export_hf=true"}), 1).checkpoint, 16 * plan.parameters);
}

TEST(CheckpointSpace, IsMissedOnASmallDisk) {
  const test::Scratch scratch;
  Config c = small_model({"train.train_iters=100", "checkpoint.save_interval=10",
                          "checkpoint.save=" + (scratch / "new")});
  MemoryPlan plan = plan_memory(c, 1);
  EXPECT_THAT(checkpoint_space_warning(c, plan), IsEmpty());
  const double free = *free_disk(scratch.path);
  plan.checkpoint = 0.4 * free; // three do not fit, two do
  EXPECT_THAT(checkpoint_space_warning(c, plan),
              AllOf(HasSubstr("the checkpoints of this run need about "), HasSubstr(" free\n"),
                    HasSubstr("a larger disk, or checkpoint.keep=1")));
  plan.checkpoint = 0.6 * free;
  EXPECT_THAT(checkpoint_space_warning(c, plan), Not(HasSubstr("keep=1")));
  // Those of the run that is resumed are there already.
  for (const char* step : {"step_00000010", "step_00000020"}) {
    std::filesystem::create_directories(scratch.path / "new" / step);
    std::ofstream(scratch.path / "new" / step / "manifest.json") << "{}";
  }
  EXPECT_THAT(checkpoint_space_warning(c, plan), IsEmpty());
}

TEST(MemoryPlans, OfPreparedBatchesHaveTheLengthOfTheFile) {
  const test::Scratch scratch;
  const std::string file = scratch / "batches.safetensors";
  checkpoint::write_tensors(file, {{"tokens", at::zeros({2, 8, 129}, at::kLong)}});
  const Config config =
      small_model({"train.seq_length=16", "dataset.type=batches", "dataset.path=" + file});
  const MemoryPlan plan = plan_memory(config, 1);
  EXPECT_EQ(plan.rank.total(), plan_memory(small_model({}), 1).rank.total());
  EXPECT_THAT(describe_limits(config, plan, {}), HasSubstr("2 iterations, 2.05K tokens"));
}

/// DoRA holds the logits twice, and what a word has beside them.
TEST(MemoryPlans, KnowDoraOfTheOutputLayer) {
  const auto loss = [](const char* type) {
    const Config c = small_model({type, "peft.target_modules=[lm_head]", "dtype=fp32",
                                  "model.untie_embeddings_and_output_weights=true"});
    return plan_memory(c, 1).rank.loss;
  };
  constexpr double kLogits = 512 * 8192 * 4, kVectors = 2 * 8192 * 4;
  EXPECT_DOUBLE_EQ(loss("peft.type=dora") - loss("peft.type=lora"), kLogits + kVectors);
}

TEST(MemoryPlans, TakeAdaptersOfSomeLayers) {
  const auto adapters = [](const char* modules) {
    return plan_memory(small_model({"peft.type=lora", modules}), 1).rank.total();
  };
  EXPECT_NEAR(adapters("peft.target_modules=[q,\"layers.3.mlp.*\"]") /
                  adapters("peft.target_modules=[q]"),
              1, 0.02);
}

TEST(MemoryPlans, ShowEveryPipelineRank) {
  const Config c = small_model({"parallel.pipeline_model_parallel_size=4"}, 4);
  const MemoryPlan plan = plan_memory(c, 4);
  ASSERT_EQ(plan.pipeline.size(), 4u);
  EXPECT_GT(plan.pipeline.front().activations, plan.pipeline.back().activations);
  const std::string table = describe_limits(c, plan, kGiB);
  EXPECT_THAT(table, AllOf(HasSubstr("pipeline rank      weights"),
                           HasSubstr("\n                         3 ")));
}

/// The model of benchmarks/memory/options.py, whose table of words is larger than any matrix of its
/// layers, and lies in the first of three parts; docs/memory.md has the measured peak.
TEST(MemoryPlans, OfStateOnDiskHasTwoPartsBesideTheUpdateOfATable) {
  const Config c = small_model(
      {"model.num_layers=12", "model.hidden_size=512", "model.num_attention_heads=8",
       "model.num_query_groups=4", "model.ffn_hidden_size=1408", "model.vocab_size=8192",
       "model.max_position_embeddings=512", "train.seq_length=512", "train.micro_batch_size=2",
       "train.global_batch_size=2", "dtype=bf16", "optimizer.optimizer=adafactor",
       "offload.optimizer=true", "offload.dir=/tmp"});
  EXPECT_NEAR(plan_memory(c, 1).rank.total() / (446.6 * 0x1p20), 1, 0.02);
}

TEST(Notices, AreGivenForWhatChangesNothing) {
  const auto of = [](std::vector<std::string> keys, int ranks = 1, bool validation = true) {
    keys.insert(keys.begin(), "checkpoint.save=x");
    return notices(small_model(keys, ranks), ranks, validation, {.avx512_bf16 = true});
  };
  EXPECT_THAT(of({}), IsEmpty());
  EXPECT_THAT(of({"train.eval_interval=1"}, 1, true), IsEmpty());
  EXPECT_THAT(of({"train.eval_interval=1"}, 1, false),
              ElementsAre(HasSubstr("train.eval_interval=1 has no effect")));
  EXPECT_THAT(of({"train.eval_interval=1", "checkpoint.keep_best=2"}, 1, false),
              testing::Contains(HasSubstr("checkpoint.keep_best=2 has no effect")));
  EXPECT_THAT(of({"checkpoint.save="}), ElementsAre(HasSubstr("will not be saved")));
  EXPECT_THAT(of({"train.train_iters=0"}),
              ElementsAre(HasSubstr("checkpoint.save=x has no effect: the run has no iterations")));
  EXPECT_THAT(of({"train.train_iters=0", "checkpoint.load=auto"}), IsEmpty());
  EXPECT_THAT(of({"train.train_iters=0", "checkpoint.save="}), IsEmpty());
  EXPECT_THAT(of({"ddp.zero_stage=2"}), ElementsAre(HasSubstr("ddp.zero_stage=2 has no effect")));
  for (const std::string key :
       {"optimizer.sgd_momentum=0.5", "optimizer.lion_beta1=0.5", "optimizer.muon_momentum=0.5",
        "optimizer.muon_tp_mode=blockwise", "optimizer.adaptive_muon_beta2=0.5",
        "optimizer.adafactor_beta1=0.9", "scheduler.lr_wsd_decay_style=linear",
        "logger.sample_tokens=7", "eval.limit=5", "checkpoint.staging_limit=64",
        "mixed_precision.num_layers_at_end_in_bf16=2", "parallel.pipeline_schedule=zb_h1",
        "comm_overlap.tp=true"})
    EXPECT_THAT(of({key}), ElementsAre(HasSubstr(key + " has no effect: "))) << key;
  EXPECT_THAT(of({"optimizer.optimizer=muon", "optimizer.muon_momentum=0.5"}), IsEmpty());
  EXPECT_THAT(of({"ddp.zero_stage=2"}, 2), IsEmpty());
  const std::string muon = "optimizer.optimizer=muon";
  EXPECT_THAT(of({muon, "optimizer.muon_tp_mode=blockwise"}),
              ElementsAre(HasSubstr("optimizer.muon_tp_mode=blockwise has no effect")));
  EXPECT_THAT(
      of({muon, "optimizer.muon_tp_mode=blockwise", "parallel.tensor_model_parallel_size=2"}, 2),
      IsEmpty());
  EXPECT_THAT(of({"parallel.sequence_parallel=true"}),
              ElementsAre(HasSubstr("sequence_parallel=true has no effect")));
  EXPECT_THAT(of({"parallel.sequence_parallel=true", "parallel.tensor_model_parallel_size=2"}, 2),
              IsEmpty());
}

TEST(Notices, OfProcessorsWithoutBf16AreGivenForIt) {
  const auto of = [](const std::string& dtype, const kernels::CpuFeatures& cpu) {
    return notices(small_model({"checkpoint.save=x", "dtype=" + dtype}, 1), 1, true, cpu);
  };
  EXPECT_THAT(of("bf16", {.avx2 = true, .avx512 = true}),
              ElementsAre(HasSubstr("has no bf16 instructions\n  try: dtype=fp32")));
  EXPECT_THAT(of("fp32", {.avx2 = true}), IsEmpty());
  EXPECT_THAT(of("bf16", {.avx512_bf16 = true}), IsEmpty());
  EXPECT_THAT(of("bf16", {.amx_bf16 = true}), IsEmpty());
}

TEST(Notices, AreGivenForMoreLayersThanThereAre) {
  const auto of = [](std::vector<std::string> keys, int ranks = 1) {
    keys.insert(keys.begin(), {"checkpoint.save=x", "model.num_layers=4"});
    return notices(small_model(keys, ranks), ranks, true, {.avx512_bf16 = true});
  };
  const std::string kept = "mixed_precision.first_last_layers_bf16=true",
                    fp8 = "mixed_precision.fp8",
                    at_start = "mixed_precision.num_layers_at_start_in_bf16=";
  EXPECT_THAT(of({"mixed_precision.recipe=bf16_with_nvfp4_mixed", "model.num_layers=2"}),
              ElementsAre(AllOf(HasSubstr("mixed_precision.fp4=e2m1 has no effect: " + kept +
                                          " computes all 2 layers in bf16"),
                                HasSubstr("try: mixed_precision.first_last_layers_bf16=false"))));
  const std::string fp4 = "mixed_precision.fp4=e2m1";
  EXPECT_THAT(of({fp4}), ElementsAre(AllOf(HasSubstr("the first and the last layer in FP4"),
                                           HasSubstr("try: " + kept))));
  EXPECT_THAT(of({fp4, "model.num_layers=2"}), IsEmpty()) << "without them no layer is in FP4";
  EXPECT_THAT(of({fp4, kept}), IsEmpty());
  EXPECT_THAT(of({"mixed_precision.recipe=bf16_with_nvfp4_mixed",
                  "mixed_precision.first_last_layers_bf16=false"}),
              IsEmpty());
  EXPECT_THAT(of({fp8 + "=hybrid", kept, at_start + "5"}),
              ElementsAre(HasSubstr(fp8 + "=hybrid has no effect: ")));
  EXPECT_THAT(of({fp8 + "=hybrid", kept, "model.num_layers=1"}),
              ElementsAre(HasSubstr("computes the only layer in fp32")));
  EXPECT_THAT(of({fp8 + "=hybrid", kept, at_start + "2"}), IsEmpty());
  EXPECT_THAT(of({fp8 + "=hybrid", kept, "model.num_layers=2", "model.mtp_num_layers=1"}),
              IsEmpty());

  const std::string halves = "parallel.pipeline_model_parallel_size=2";
  const std::vector<std::string> away = {"offload.activations=true", "offload.dir=."};
  for (const auto& [more, key] :
       {std::pair{away, std::string("offload.num_layers")},
        {{"train.recompute=full", "train.recompute_method=block"}, "train.recompute_num_layers"},
        {{"train.recompute=full"}, "train.recompute_num_layers"}}) {
    const auto with = [&](int layers, int ranks) {
      std::vector<std::string> keys = more;
      keys.push_back(fmt::format("{}={}", key, layers));
      if (ranks > 1) keys.push_back(halves);
      return of(keys, ranks);
    };
    EXPECT_THAT(with(9, 1),
                ElementsAre(AllOf(HasSubstr(key + "=9 has the same effect as " + key + "=4: "),
                                  HasSubstr("try: " + key + "=4"))));
    EXPECT_THAT(with(4, 1), IsEmpty());
    EXPECT_THAT(with(4, 2), ElementsAre(HasSubstr("try: " + key + "=2")));
    EXPECT_THAT(with(2, 2), IsEmpty());
  }
}

/// A table that rules need whole is all on one rank, frozen layers or not, on either end of a
/// pipeline.
TEST(MemoryPlans, CountTheRankThatOwnsTheLargestParameter) {
  const std::vector<std::string> keys = {"model.vocab_size=100000",
                                         "model.hidden_size=256",
                                         "model.num_layers=4",
                                         "dtype=bf16",
                                         "train.global_batch_size=32",
                                         "optimizer.optimizer=adafactor",
                                         "ddp.zero_stage=2"};
  const double masters = 4.0 * 100'000 * 256;
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), keys.begin(), keys.end());
    return plan_memory(small_model(more, 8), 8);
  };
  EXPECT_GT(with({"train.freeze=[\"layers.*\"]"}).rank.optimizer, masters);
  for (const RankMemory& rank : with({"parallel.pipeline_model_parallel_size=2",
                                      "model.untie_embeddings_and_output_weights=false"})
                                    .pipeline)
    EXPECT_GT(rank.optimizer, masters);
}

} // namespace
} // namespace pentatron::trainer
