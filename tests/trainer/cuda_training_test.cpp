// A GPU trains what the CPU trains, with every kernel that a model uses. Skipped where there is no
// GPU.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "pentatron/kernels/common/build.h"
#include "tests/trainer/layout_runs.h"

namespace pentatron::trainer {
namespace {

bool no_gpu() {
  return !kernels::built_with_cuda() || !at::hasCUDA();
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
                         dtype == "fp64" ? test::Bounds{1e-9, 1e-9} : test::Bounds{1e-4, 1e-3});
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

} // namespace
} // namespace pentatron::trainer
