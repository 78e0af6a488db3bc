// What a run says about the memory that it has used, and when an allocation fails.
#include "pentatron/trainer/memory_report.h"

#include <fstream>
#include <new>
#include <stdexcept>
#include <string>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>

#include "pentatron/base/format.h"
#include "pentatron/trainer/runtime.h"
#include "tests/support/memory_limit.h"
#include "tests/support/ranks.h"
#include "tests/trainer/memory_model.h"

namespace pentatron::trainer {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kGigabyte = int64_t{1} << 30;
const at::Device kGpu(at::kCUDA, 1);

TEST(MemoryReport, KnowsWhoseMemoryHasRunOut) {
  const auto of = [](const auto& error) { return out_of_memory(error, kGpu); };
  EXPECT_EQ(of(std::bad_alloc()), at::kCPU);
  EXPECT_EQ(of(std::runtime_error("DefaultCPUAllocator: can't allocate memory: you tried ...")),
            at::kCPU);
  EXPECT_EQ(of(c10::OutOfMemoryError({"f", "f.cpp", 1}, "CUDA out of memory. Tried to ...")), kGpu);
  EXPECT_EQ(of(std::runtime_error("CUDA error: out of memory")), kGpu);
  EXPECT_EQ(of(std::runtime_error("other")), std::nullopt);
  // Pinned memory, where the GPU has enough.
  EXPECT_EQ(out_of_memory(std::runtime_error("CUDA error: out of memory"), kGpu, 20 * kGigabyte),
            at::kCPU);
  EXPECT_EQ(out_of_memory(c10::OutOfMemoryError({"f", "f.cpp", 1}, "CUDA out of memory."), kGpu,
                          20 * kGigabyte),
            kGpu);
}

/// A rank on a GPU, which has tensors on both sides.
HeldMemory on_a_gpu() {
  HeldMemory held;
  held.host.categories[static_cast<size_t>(nn::MemoryCategory::kData)].peak_bytes = 7 * kGigabyte;
  held.host.total.peak_bytes = 7 * kGigabyte;
  held.device = nn::DeviceMemory{.allocated = 60 * kGigabyte,
                                 .peak_allocated = 65 * kGigabyte,
                                 .reserved = 78 * kGigabyte,
                                 .peak_reserved = 79 * kGigabyte};
  return held;
}

TEST(MemoryReport, NamesWhatIsOnTheGpuThatHasRunOut) {
  const Config c = small_model({"parallel.pipeline_model_parallel_size=2"}, 2);
  const auto text = [&](int rank) {
    return out_of_memory_text(c, {.rank = rank, .world_size = 2}, kGpu, on_a_gpu());
  };
  const MemoryPlan plan = plan_memory(c, 2);
  EXPECT_THAT(text(1),
              AllOf(StartsWith("out of memory on cuda:1: the tensors of this rank used 60.0 GiB "
                               "there (65.0 GiB at most), and the allocator had reserved 78.0 GiB; "
                               "estimated for this rank: "),
                    HasSubstr("activations " + format_bytes(plan.pipeline[1].activations)),
                    HasSubstr("temporaries " + format_bytes(plan.pipeline[1].loss)),
                    HasSubstr("\n  try: "),
                    HasSubstr(", or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
                    Not(HasSubstr("7.0 GiB"))));
  EXPECT_THAT(text(0), AllOf(HasSubstr("activations " + format_bytes(plan.pipeline[0].activations)),
                             Not(HasSubstr("temporaries "))));
  HeldMemory full = on_a_gpu();
  full.device->reserved = 61 * kGigabyte;
  EXPECT_THAT(out_of_memory_text(c, {.rank = 1, .world_size = 2}, kGpu, full),
              Not(HasSubstr("PYTORCH_CUDA_ALLOC_CONF")));
}

TEST(MemoryReport, NamesWhatIsOnTheHostThatHasRunOut) {
  Config c = small_model({});
  c.offload.optimizer = true;
  const std::string text = out_of_memory_text(c, {}, at::kCPU, on_a_gpu());
  EXPECT_EQ(text, "out of memory on the host: this rank used 7.0 GiB, most of it for data 7.0 GiB\n"
                  "  try: offload.optimizer=false, or fewer ranks on this machine");
  HeldMemory cpu = on_a_gpu();
  cpu.device.reset();
  EXPECT_THAT(out_of_memory_text(small_model({}), {}, at::kCPU, cpu),
              AllOf(StartsWith("out of memory: this rank used 7.0 GiB, most of it for data"),
                    HasSubstr("\n  try: ")));
}

/// Lines of the log that begin with "memory peak".
std::vector<std::string> peaks_of(const Config& config) {
  testing::internal::CaptureStderr();
  Trainer(config, {}).run();
  std::istringstream log(testing::internal::GetCapturedStderr());
  std::vector<std::string> lines;
  for (std::string line; std::getline(log, line);)
    if (line.find("memory peak") != std::string::npos) lines.push_back(line);
  return lines;
}

TEST(MemoryReport, TellsThePeakAfterTheFirstStep) {
  nn::install_counting_allocator();
  for (const char* steps : {"train.train_iters=1", "train.train_iters=4"}) {
    nn::reset_memory_peak(0);
    EXPECT_THAT(peaks_of(small_model({steps})),
                testing::ElementsAre(HasSubstr("memory peak  at most ")))
        << steps;
  }
}

/// The first steps are skipped, because their loss scale is too large.
TEST(MemoryReport, TellsThePeakAgainWhenALaterStepNeedsMore) {
  nn::install_counting_allocator();
  nn::reset_memory_peak(0);
  const std::vector<std::string> told = peaks_of(small_model(
      {"train.train_iters=32", "dtype=fp16", "optimizer.optimizer=muon", "model.num_layers=4",
       "model.hidden_size=256", "train.seq_length=16", "train.micro_batch_size=1",
       "train.global_batch_size=1", "optimizer.store_param_remainders=false"}));
  EXPECT_EQ(told.size(), 2u);
}

TEST(MemoryReport, NamesTheLargestHoldersAndWhatWouldFit) {
  nn::install_counting_allocator();
  const Config c = small_model({"train.micro_batch_size=64", "train.global_batch_size=64",
                                "model.num_layers=12", "train.check_memory=false"});
  // No more than about a third of what the run needs.
  std::ifstream sizes("/proc/self/statm");
  rlim_t pages = 0;
  sizes >> pages;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  Trainer trainer(c, {});
  nn::reset_memory_peak(0);
  const rlimit small{.rlim_cur = pages * 4096 + (rlim_t{400} << 20), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &small), 0);
  const std::string message = error_of([&] { trainer.run(); });
  ::setrlimit(RLIMIT_AS, &before);
  EXPECT_THAT(message, AllOf(HasSubstr("out of memory: this rank used "), HasSubstr("activations "),
                             HasSubstr("\n  try: "), HasSubstr("train.micro_batch_size=")));
}

TEST(MemoryReport, NamesTheLargestHoldersUnderTheLimitOfAControlGroup) {
  nn::install_counting_allocator();
  const test::MemoryLimit group;
  const Config c = small_model({"train.micro_batch_size=64", "train.global_batch_size=64",
                                "model.num_layers=12", "train.check_memory=false"});
  Trainer trainer(c, {});
  nn::reset_memory_peak(0);
  group.set(kGigabyte, kGigabyte);
  group.watch();
  EXPECT_THAT(error_of([&] { trainer.run(); }),
              AllOf(HasSubstr("out of memory: this rank used "), HasSubstr(", most of it for "),
                    HasSubstr("\n  try: ")));
}

TEST(MemoryReport, SaysWhatWasMeasuredBesideTheEstimate) {
  nn::install_counting_allocator();
  const Config c = small_model({"ddp.zero_stage=1"}, 2);
  std::string text;
  test::run_ranks(2, [&](const comm::Group& world) {
    nn::reset_memory_peak(world.rank());
    Trainer(c, world).run();
    const std::string all = measured_peak(c, world, at::kCPU).line;
    if (world.rank() == 0) text = all;
  });
  EXPECT_THAT(text, AllOf(HasSubstr("memory peak  "), HasSubstr(" per rank (estimated "),
                          HasSubstr("gradients "), HasSubstr("optimizer ")));
}

/// What ZeRO-3 gathers and reduces counts with weights and gradients on both sides.
TEST(MemoryReport, CountsWhatIsWholeForAWhileAsTheEstimateDoes) {
  nn::install_counting_allocator();
  const Config c = small_model({"ddp.zero_stage=3", "model.num_layers=8", "model.hidden_size=512",
                                "model.ffn_hidden_size=2048"},
                               2);
  const RankMemory plan = plan_memory(c, 2).rank;
  test::run_ranks(2, [&](const comm::Group& world) {
    nn::reset_memory_peak(world.rank());
    Trainer(c, world).run();
    const nn::MemorySnapshot held = nn::memory_snapshot(world.rank());
    const auto part = [&](nn::MemoryCategory category, double planned) {
      EXPECT_NEAR(static_cast<double>(held[category].peak_bytes) / planned, 1, 0.05)
          << nn::name(category);
    };
    part(nn::MemoryCategory::kParameters, plan.weights);
    part(nn::MemoryCategory::kGradients, plan.gradients);
    part(nn::MemoryCategory::kWorkspace, plan.loss);
  });
}

TEST(MemoryReport, KnowsNothingOfTheMatricesThatMeasureThePeak) {
  nn::install_counting_allocator();
  Config c = small_model({}, 1);
  c.logger.peak_tflops.reset();
  nn::reset_memory_peak(0);
  const int64_t before = nn::memory_snapshot(0).total.current_bytes;
  ASSERT_GT(find_peak(c, at::kCPU)->flops, 0);
  EXPECT_LT(nn::memory_snapshot(0).total.peak_bytes - before, 1 << 20);
}

} // namespace
} // namespace pentatron::trainer
