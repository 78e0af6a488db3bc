// What layers keep goes to a file and comes back in the same bits; memory holds about two layers.
#include "pentatron/nn/offload.h"

#include <atomic>
#include <csignal>
#include <filesystem>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "pentatron/base/error.h"
#include "pentatron/nn/ops/ops.h"
#include "tests/nn/chain.h"
#include "tests/nn/op_fixture.h"
#include "tests/nn/saved_fixture.h"
#include "tests/support/few_descriptors.h"
#include "tests/support/files.h"
#include "tests/support/ranks.h"

namespace {
std::atomic<useconds_t> disk_takes = 0; ///< microseconds for each write
}

/// In the place of the C library's, so that a disk can be slow.
extern "C" ssize_t pwrite(int file, const void* data, size_t bytes, off_t offset) {
  if (const useconds_t time = disk_takes; time != 0) ::usleep(time);
  return ::syscall(SYS_pwrite64, file, data, bytes, offset);
}

namespace pentatron::nn {
namespace {

using test::Params;
using test::Pass;
using test::randn;

constexpr int64_t kRows = 96, kWidth = 64, kWide = 512, kLayers = 6;
constexpr int64_t kLayerBytes = kRows * (2 * kWide) * 8; // inputs of gelu and of the second product

/// x + gelu(x A^T) B^T
class WideSegment final : public Segment {
 public:
  WideSegment(Param& a, Param& b) : a_(&a), b_(&b) {}
  std::string name() const override { return "wide"; }
  bool recomputable() const override { return true; }
  Output forward(const std::vector<at::Tensor>& taken, const ForwardContext& ctx) const override {
    const at::Tensor up = linear(taken[0], *a_, nullptr, ctx);
    const at::Tensor active = activation(up, kernels::Activation::kGelu, false);
    return {.flows = {taken[0] + linear(active, *b_, nullptr, ctx)}, .loss = {}};
  }

 private:
  Param *a_, *b_;
};

struct Resident final : ParamStore {
  void acquire(int64_t, nn::Pass) override {}
  void release(int64_t, nn::Pass) override {}
};

struct Offloaded {
  std::vector<at::Tensor> results; ///< dx of each microbatch, gradients of parameters
  int64_t peak = 0;                ///< of activations
};

std::vector<std::unique_ptr<Segment>> layers(Param& a, Param& b) {
  std::vector<std::unique_ptr<Segment>> all;
  for (int64_t i = 0; i < kLayers; ++i) all.push_back(std::make_unique<WideSegment>(a, b));
  return all;
}

/// Two microbatches that are alive at the same time, as in a pipeline.
Offloaded train(const ChunkOptions& options) {
  install_counting_allocator();
  Params params;
  Param &a = params.add("a", randn({kWide, kWidth}, 1)),
        &b = params.add("b", randn({kWidth, kWide}, 2));
  const Chunk chunk = test::chain(layers(a, b), options, /*takes=*/true, /*gives=*/true);
  Resident store;
  Pass first(kRows), second(kRows);
  const MemoryScope memory(MemoryCategory::kActivations);
  const int64_t before = test::held_bytes();
  reset_memory_peak(0);
  Offloaded out;
  Tape tapes[2];
  chunk.forward({randn({kRows, kWidth}, 3)}, first.ctx, store, &tapes[0]);
  chunk.forward({randn({kRows, kWidth}, 4)}, second.ctx, store, &tapes[1]);
  out.results.push_back(chunk.backward({randn({kRows, kWidth}, 5)}, first.ctx, store, tapes[0])[0]);
  out.results.push_back(
      chunk.backward({randn({kRows, kWidth}, 6)}, second.ctx, store, tapes[1])[0]);
  out.peak = test::peak_bytes() - before;
  for (const Param* param : {&a, &b}) out.results.push_back(param->main_grad());
  return out;
}

TEST(Offload, ChangesNoBitAndHoldsTwoLayers) {
  const TemporaryFolder scratch;
  const Offloaded plain = train({});
  EXPECT_GT(plain.peak, 2 * kLayers * kLayerBytes);
  for (const ChunkOptions& options :
       {ChunkOptions{.offload = offload_to_file(scratch.path())},
        {.offload = offload_to_file(scratch.path() / "made"), .offloaded = kLayers},
        {.offload = offload_to_file(scratch.path()), .offloaded = 2},
        {.recompute = {.layers = true}, .offload = offload_to_file(scratch.path())},
        {.recompute = {.layers = true, .group = 2}, .offload = offload_to_file(scratch.path())}}) {
    const Offloaded away = train(options);
    ASSERT_EQ(away.results.size(), plain.results.size());
    for (size_t i = 0; i < plain.results.size(); ++i)
      EXPECT_TRUE(test::same_bits(away.results[i], plain.results[i])) << i;
    if (options.recompute.layers) continue;
    // Two layers, their gradients, inputs of all layers; of those that stay, everything. Layers of
    // the other microbatch have been written before, also by a slow disk.
    const int64_t stay = options.offloaded == 0 ? 1 : kLayers - options.offloaded;
    EXPECT_LT(away.peak, (2 * stay + 5) * kLayerBytes) << options.offloaded;
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path() / "made")) << "files have no names";
}

TEST(Offload, ForwardHoldsTwoLayersBeforeASlowDisk) {
  install_counting_allocator();
  const TemporaryFolder scratch;
  Params params;
  Param &a = params.add("a", randn({kWide, kWidth}, 1)),
        &b = params.add("b", randn({kWidth, kWide}, 2));
  Resident store;
  const MemoryScope memory(MemoryCategory::kActivations);
  for (const int64_t away : {kLayers - 1, int64_t{3}}) {
    const Chunk chunk = test::chain(
        layers(a, b), {.offload = offload_to_file(scratch.path()), .offloaded = away}, true, true);
    Pass pass(kRows);
    const at::Tensor x = randn({kRows, kWidth}, 3);
    const int64_t before = test::held_bytes();
    reset_memory_peak(0);
    Tape tape;
    disk_takes = 10'000;
    chunk.forward({x}, pass.ctx, store, &tape);
    disk_takes = 0;
    // Of layers that stay everything, before them one that has not left yet; inputs of all layers.
    const int64_t stay = kLayers - away;
    EXPECT_LT(test::peak_bytes() - before, (stay + 1) * kLayerBytes + kLayerBytes * 3 / 4) << away;
    chunk.backward({x}, pass.ctx, store, tape);
  }
}

TEST(Offload, AFolderThatCannotBeWrittenIsNamed) {
  const TemporaryFolder scratch;
  EXPECT_NE(test::error_of([&] { offload_to_file("/proc/version/x"); }).find("/proc/version/x"),
            std::string::npos);
  std::string without_descriptors;
  {
    const test::FewDescriptors none(0);
    without_descriptors = test::error_of([&] { offload_to_file(scratch.path()); });
  }
  EXPECT_NE(without_descriptors.find("try: ulimit -n"), std::string::npos) << without_descriptors;
  // Files end at 64 KiB, as on a disk that is full.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 65536, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message =
      test::error_of([&] { train({.offload = offload_to_file(scratch.path())}); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(message.find("offload.dir=" + scratch.path().string()), std::string::npos) << message;
}

} // namespace
} // namespace pentatron::nn
