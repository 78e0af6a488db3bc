// What a rank holds under every policy, counted.
#include "pentatron/parallel/ddp/data_parallel.h"

#include <ATen/ATen.h>

#include <gtest/gtest.h>

#include "pentatron/comm/rank_threads.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/module.h"
#include "pentatron/optim/optimizer.h"
#include "tests/support/ranks.h"

namespace pentatron::parallel {
namespace {

using nn::MemoryCategory;
using nn::Pass;

constexpr int64_t kSegments = 5, kSegmentSize = 64 * 12, kModel = kSegments * kSegmentSize;

/// A step in which every parameter gets a gradient from each of two microbatches.
void train_step(nn::ParamList& params, DataParallel& store, optim::Optimizer& optimizer) {
  store.begin_step();
  for (int m = 0; m < 2; ++m) {
    for (nn::Param& param : params) {
      store.acquire(param.segments().front(), Pass::kForward);
      param.add_use();
      store.release(param.segments().front(), Pass::kForward);
    }
    if (m == 1) store.forwards_done();
    for (int64_t segment = kSegments - 1; segment >= 0; --segment) {
      nn::Param& param = params.find(std::to_string(segment));
      store.acquire(segment, Pass::kBackward);
      param.accumulate(at::ones({kSegmentSize}));
      store.release(segment, Pass::kBackward);
    }
  }
  store.finish_gradients();
  optimizer.step(0.1, 0, 1);
  store.publish_values();
  store.wait_values();
}

/// Bytes of a bf16 model with fp32 gradients, master weights and Adam's two moments.
class Memory : public testing::TestWithParam<int64_t> {};

TEST_P(Memory, IsWhatThePolicyKeeps) {
  nn::install_counting_allocator();
  const int64_t stage = GetParam();
  for (const int ranks : {2, 3, 4}) {
    for (const bool overlap : {true, false}) {
      test::run_ranks(ranks, [&](const comm::Group& dp) {
        const int me = comm::current_rank();
        const nn::MemorySnapshot before = nn::memory_snapshot(me);
        const auto held = [&](MemoryCategory category) {
          return nn::memory_snapshot(me)[category].current_bytes - before[category].current_bytes;
        };
        nn::ParamList params;
        const nn::Scope scope(params, at::kBFloat16, {});
        for (int64_t segment = 0; segment < kSegments; ++segment)
          scope.of_segment(segment).vector(std::to_string(segment), kSegmentSize, {});
        const DdpConfig config{.zero_stage = stage,
                               .bucket_size = 1,
                               .overlap_grad_reduce = overlap,
                               .overlap_param_gather = overlap};
        DataParallel store(params, at::kCPU, config,
                           comm::ParallelGroups(dp, {}, data_parallel_groups("dp", ranks, config)));
        store.write_values([](nn::Param& param) { param.initialize(1); });
        optim::Optimizer optimizer({}, store.shards());
        // With scratch for the values and gradients of so many segments.
        const auto expect_kept = [&](int64_t values, int64_t gradients) {
          EXPECT_EQ(held(MemoryCategory::kParameters),
                    2 * (stage >= 3 ? kModel / ranks + values * kSegmentSize : kModel));
          EXPECT_EQ(held(MemoryCategory::kGradients),
                    4 * (stage >= 2 ? kModel / ranks + gradients * kSegmentSize : kModel));
          EXPECT_EQ(held(MemoryCategory::kOptimizer), 12 * kModel / (stage >= 1 ? ranks : 1));
        };
        expect_kept(1, 0); // values are written segment by segment
        // Scratch of the segment at work and, overlapped, of the one under way.
        const int64_t segments = overlap ? 2 : 1;
        train_step(params, store, optimizer);
        expect_kept(segments, segments);
        const nn::MemorySnapshot once = nn::memory_snapshot(me);
        train_step(params, store, optimizer);
        expect_kept(segments, segments); // another step takes no more
        for (const auto category : {MemoryCategory::kParameters, MemoryCategory::kGradients})
          EXPECT_EQ(nn::memory_snapshot(me)[category].peak_bytes, once[category].peak_bytes);
        EXPECT_EQ(held(MemoryCategory::kWorkspace), 0);
      });
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Zero, Memory, testing::Values(0, 1, 2, 3));

} // namespace
} // namespace pentatron::parallel
