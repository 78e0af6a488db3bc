// A GPU trains what the CPU trains, with every kernel that a model uses. Skipped where there is no
// GPU.
#include <ATen/Context.h>
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "pentatron/kernels/common/build.h"
#include "tests/trainer/key_effects.h"
#include "tests/trainer/key_files.h"
#include "tests/trainer/layout_runs.h"

namespace pentatron::trainer {
namespace {

bool no_gpu() {
  return !kernels::built_with_cuda() || !at::hasCUDA();
}

/// Why products as in these settings are not on this GPU; empty: they are.
std::string lacking(const std::string& settings) {
  const int capability = kernels::gpu_capability(0);
  const auto has = [&](const char* part) { return settings.find(part) != std::string::npos; };
  if (has("=blockwise") && capability / 10 != 9) return "needs compute capability 9.0";
  if ((has("mxfp8") || has("fp4=")) && capability < 100) return "needs compute capability 10.0";
  return "";
}

/// The works whose losses do not jump with rounding.
std::vector<std::string> cuda_works() {
  std::vector<std::string> names;
  for (const test::Work& work : test::works())
    if (!work.jumps) names.push_back(work.name);
  return names;
}

class CudaTraining : public testing::TestWithParam<std::string> {};

TEST_P(CudaTraining, EqualsTheCpu) {
  if (no_gpu()) GTEST_SKIP() << "no GPU";
  for (const std::string dtype : {"fp64", "fp32"}) {
    const test::Trained gpu = test::train_layout(GetParam(), 1, "device=cuda dtype=" + dtype);
    const test::Trained& cpu = test::one_rank(GetParam(), " dtype=" + dtype);
    expect_same_training(gpu, cpu,
                         dtype == "fp64" ? test::Bounds{1e-9, 1e-9, 1e-9}
                                         : test::Bounds{1e-4, 1e-3, 1e-4});
  }
}

/// In bf16 rounding differs from step to step, so only the course is compared.
TEST_P(CudaTraining, LearnsInBf16AndRepeatsItsBits) {
  if (no_gpu()) GTEST_SKIP() << "no GPU";
  const test::Trained gpu = test::train_layout(GetParam(), 1, "device=cuda dtype=bf16"),
                      again = test::train_layout(GetParam(), 1, "device=cuda dtype=bf16");
  EXPECT_EQ(gpu.losses, again.losses);
  const test::Trained& cpu = test::one_rank(GetParam(), " dtype=bf16");
  ASSERT_EQ(gpu.losses.size(), cpu.losses.size());
  for (size_t i = 0; i < gpu.losses.size(); ++i)
    EXPECT_NEAR(gpu.losses[i], cpu.losses[i], 0.02 * cpu.losses[i]) << "step " << i + 1;
}

INSTANTIATE_TEST_SUITE_P(Works, CudaTraining, testing::ValuesIn(cuda_works()),
                         [](const auto& info) { return info.param; });

/// Products in FP8. Their sums differ from the CPU's in the last bits, after which some numbers are
/// rounded to another code, so only the course is compared; without mistakes the first step has no
/// other codes.
class CudaTrainingInFp8 : public testing::TestWithParam<std::string> {};

TEST_P(CudaTrainingInFp8, FollowsTheCpuAndRepeatsItsBits) {
  if (no_gpu()) GTEST_SKIP() << "no GPU";
  for (const test::Work& work : test::works())
    if (work.name == GetParam())
      if (const std::string lack = lacking(work.keys); !lack.empty()) GTEST_SKIP() << lack;
  for (const std::string dtype : {"fp32", "bf16"}) {
    // Sizes of weights are multiples of 16.
    const bool experts = GetParam().find("moe") != std::string::npos;
    const std::string keys = (experts ? " model.moe_ffn_hidden_size=32 dtype=" : " dtype=") + dtype,
                      on_gpu = "device=cuda" + keys;
    const test::Trained gpu = test::train_layout(GetParam(), 1, on_gpu),
                        again = test::train_layout(GetParam(), 1, on_gpu);
    EXPECT_EQ(gpu.losses, again.losses);
    const test::Trained& cpu = test::one_rank(GetParam(), keys);
    ASSERT_EQ(gpu.losses.size(), cpu.losses.size());
    for (size_t i = 0; i < gpu.losses.size(); ++i)
      EXPECT_NEAR(gpu.losses[i], cpu.losses[i],
                  (i == 0 && dtype == "fp32" ? 1e-3 : 0.03) * cpu.losses[i])
          << dtype << " step " << i + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Works, CudaTrainingInFp8,
                         testing::Values("fp8_blocks", "fp8_delayed", "fp8_delayed_moe", "mxfp8",
                                         "nvfp4"),
                         [](const auto& info) { return info.param; });

/// The same steps with the layers as CUDA graphs, of several microbatches a step, with evaluations
/// between them.
class CudaTrainingInGraphs : public testing::TestWithParam<std::string> {};

TEST_P(CudaTrainingInGraphs, IsTheSameTraining) {
  if (no_gpu()) GTEST_SKIP() << "no GPU";
  if (const std::string lack = lacking(GetParam()); !lack.empty()) GTEST_SKIP() << lack;
  const std::string keys = " device=cuda dataset.reset_attention_mask=false model.hidden_dropout=0 "
                           "model.attention_dropout=0 train.eval_interval=5 " +
                           GetParam();
  const test::Trained plain = test::train_layout("gpt2", 1, keys),
                      graphs = test::train_layout("gpt2", 1, keys + " train.cuda_graphs=true"),
                      again = test::train_layout("gpt2", 1, keys + " train.cuda_graphs=true");
  EXPECT_EQ(graphs.losses, again.losses);
  const bool narrow = GetParam().find("bf16") != std::string::npos;
  // The graph adds the first microbatch's gradients to zeros.
  expect_same_training(graphs, plain,
                       narrow ? test::Bounds{2e-3, 1e-2, 1e-3} : test::Bounds{2e-5, 2e-5, 2e-5});
}

INSTANTIATE_TEST_SUITE_P(Types, CudaTrainingInGraphs,
                         testing::Values("dtype=fp64", "dtype=fp32", "dtype=bf16",
                                         "dtype=bf16 ddp.zero_stage=1 model.activation_func=swiglu "
                                         "model.position_embedding_type=rope "
                                         "model.normalization=rmsnorm",
                                         "dtype=bf16 mixed_precision.fp8=hybrid",
                                         "dtype=bf16 mixed_precision.fp8=e4m3 "
                                         "mixed_precision.fp8_recipe=blockwise",
                                         "dtype=bf16 mixed_precision.fp8=e4m3 "
                                         "mixed_precision.fp8_recipe=mxfp8",
                                         "dtype=fp16",
                                         "dtype=fp32 model.qk_layernorm=true "
                                         "model.softmax_type=learnable model.window_size=3 "
                                         "train.freeze=[\"layers.1.*\"]"),
                         [](const auto& info) { return std::to_string(info.index); });

std::vector<std::string> keys_with_effect() {
  std::vector<std::string> names;
  for (const auto& [key, effect] : kEffects) names.push_back(key);
  return names;
}

/// Losses and gradient norms of a run on `device`, in fp64 unless the settings name a type.
std::vector<double> course(const KeyFiles& files, std::vector<std::string> settings,
                           const std::string& device) {
  settings.insert(settings.begin(), {"dtype=fp64", "device=" + device});
  std::vector<double> course;
  testing::internal::CaptureStderr();
  std::string error;
  try {
    for (const Json& step : test::run(files.config(files.fresh(settings))).steps)
      for (const char* number : {"loss", "grad_norm"})
        course.push_back(step[number].is_number() ? step[number].get<double>() : -1);
  } catch (const Error& raised) {
    error = raised.what();
  }
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(error, "") << device;
  return course;
}

/// Every key of the configuration that changes what a run computes.
class CudaKeys : public testing::TestWithParam<std::string> {};

TEST_P(CudaKeys, TrainAsOnTheCpu) {
  if (no_gpu()) GTEST_SKIP() << "no GPU";
  if (GetParam() == "offload.dir") GTEST_SKIP() << "files are for ranks on CPUs";
  if (GetParam() == "train.max_skipped_iterations" || GetParam() == "dataset.on_bad_input" ||
      GetParam() == "dataset.max_line_bytes" || GetParam() == "train.on_nan")
    GTEST_SKIP() << "ends in an error";
  const Effect& effect = kEffects.at(GetParam());
  std::vector<std::string> settings = effect.with;
  settings.emplace_back(effect.change);
  double bound = 1e-8;
  for (const std::string& setting : std::vector<std::string>(settings)) {
    if (setting.find("fp8_param_gather") != std::string::npos)
      GTEST_SKIP() << setting << " needs device=cpu";
    if (const std::string lack = lacking(setting); !lack.empty())
      GTEST_SKIP() << setting << ' ' << lack;
    const bool fp4 = setting.find("fp4=") != std::string::npos;
    if (!fp4 && setting.find("mxfp8") == std::string::npos) continue;
    // Sizes are multiples of 32.
    settings.insert(settings.end(),
                    {fp4 ? "dtype=fp32" : "dtype=bf16", "model.ffn_hidden_size=64"});
    bound = 0.05;
  }
  const auto in_fp8 = [](const std::string& setting) {
    return setting.find("precision.fp8=") != std::string::npos;
  };
  const bool fp8 = std::ranges::any_of(settings, in_fp8);
  if (fp8) {
    settings.emplace_back("dtype=fp32");
    bound = 0.02; // sums of the tensor cores, and what is rounded to another code after them
  }
  for (const std::string& setting : std::vector<std::string>(settings)) {
    if (fp8) break;
    if (setting.find("{}/earlier") != std::string::npos) {
      settings.emplace_back("dtype=fp32"); // that of this checkpoint
      bound = 1e-4;
      break;
    }
    if (setting == "dtype=fp32") bound = std::max(bound, 1e-4);
    for (const char* narrow : {"fp16", "bf16", "fp8"})
      if (setting.find(narrow) != std::string::npos) bound = 0.05;
  }
  const KeyFiles files;
  const std::vector<double> gpu = course(files, settings, "cuda"),
                            cpu = course(files, settings, "cpu");
  ASSERT_EQ(gpu.size(), cpu.size());
  ASSERT_TRUE(std::ranges::any_of(cpu, [](double number) { return number > 0; }));
  for (size_t i = 0; i < cpu.size(); ++i) EXPECT_NEAR(gpu[i], cpu[i], bound * std::abs(cpu[i]));
}

INSTANTIATE_TEST_SUITE_P(Keys, CudaKeys, testing::ValuesIn(keys_with_effect()),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

} // namespace
} // namespace pentatron::trainer
