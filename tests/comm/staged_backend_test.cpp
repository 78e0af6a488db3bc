// Ranks that exchange a device's tensors through the host's memory. The CPU is the device here:
// every tensor is copied, and what arrives is what the host's backend brings.
#include "pentatron/comm/backend/staged/staged_backend.h"

#include "pentatron/comm/backend.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/comm/gpu_ranks.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace pentatron::comm {
namespace {

using test::expect_close;
using test::randn;

constexpr int kRanks = 3;

/// Calls `use` on ranks with the host's group and the one that copies.
void on_both(const std::function<void(const Group& host, const Group& copies)>& use) {
  test::run_ranks(kRanks, [&](const Group& world) {
    use(world, Group(staged(world.shared_backend(), at::Device(at::kCPU))));
  });
}

at::Tensor of_rank(const Group& group, at::IntArrayRef shape, uint64_t seed = 1) {
  return randn(shape, seed + static_cast<uint64_t>(group.rank()), at::kFloat);
}

TEST(Staged, CollectivesGiveWhatTheHostGives) {
  on_both([](const Group& host, const Group& copies) {
    const at::Tensor x = of_rank(host, {6, 5});
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax})
      expect_close(all_reduce(x, op, copies), all_reduce(x, op, host));
    expect_close(all_gather(x, 1, copies), all_gather(x, 1, host));
    const at::Tensor narrow = x.to(at::kBFloat16);
    expect_close(reduce_scatter(narrow, 0, copies), reduce_scatter(narrow, 0, host));
    expect_close(reduce_scatter(x, 0, copies), reduce_scatter(x, 0, host));
    const at::Tensor own = x.clone(), root = randn({6, 5}, 2, at::kFloat);
    broadcast_(own, 1, copies);
    expect_close(own, root);
  });
}

TEST(Staged, WritesViewsWithStrides) {
  on_both([](const Group& host, const Group& copies) {
    const at::Tensor x = of_rank(host, {4, 3}), right = all_reduce(x, ReduceOp::kSum, host),
                     wide = at::zeros({4, 6}, at::kFloat);
    const at::Tensor view = wide.narrow(1, 2, 3);
    view.copy_(x);
    all_reduce_(view, ReduceOp::kSum, copies);
    expect_close(view, right);
    EXPECT_EQ(wide.narrow(1, 0, 2).abs().sum().item<double>(), 0) << "wrote beside the view";
    // Into every rank's part of the output's columns.
    const at::Tensor out = at::zeros({4, 3 * kRanks}, at::kFloat);
    all_gather_into(out, x, 1, copies).wait();
    expect_close(out, all_gather(x, 1, host));
  });
}

TEST(Staged, TransfersArriveAtTheirWait) {
  on_both([](const Group& host, const Group& copies) {
    const int next = (host.rank() + 1) % kRanks, before = (host.rank() + kRanks - 1) % kRanks;
    const at::Tensor sent = of_rank(host, {7}), got = at::zeros({7}, at::kFloat);
    Backend& backend = copies.backend();
    // Posted before the peer sends: a receive must not wait when it starts.
    Work receive = backend.send_recv({{Transfer::Kind::kRecv, got, before}});
    Work send = backend.send_recv({{Transfer::Kind::kSend, sent, next}});
    sent.zero_(); // it was copied when the operation started
    send.wait();
    receive.wait();
    receive.wait();
    expect_close(got, randn({7}, 1 + static_cast<uint64_t>(before), at::kFloat));
  });
}

TEST(Staged, ExchangesUnevenRows) {
  on_both([](const Group& host, const Group& copies) {
    std::vector<at::Tensor> ins, outs, right;
    for (int r = 0; r < kRanks; ++r) {
      ins.push_back(of_rank(host, {host.rank() + 2 * r, 2}, static_cast<uint64_t>(10 * r)));
      outs.push_back(at::zeros({r + 2 * host.rank(), 2}, at::kFloat));
      right.push_back(at::zeros_like(outs.back()));
    }
    copies.backend().all_to_all(outs, ins).wait();
    host.backend().all_to_all(right, ins).wait();
    for (size_t r = 0; r < outs.size(); ++r) expect_close(outs[r], right[r]);
  });
}

TEST(Staged, TensorsOfTheHostGoAsTheyAre) {
  test::run_ranks(kRanks, [](const Group& host) {
    const Group of_gpus(staged(host.shared_backend(), at::Device(at::kCUDA, 0)));
    const at::Tensor x = of_rank(host, {4});
    expect_close(all_reduce(x, ReduceOp::kSum, of_gpus), all_reduce(x, ReduceOp::kSum, host));
    expect_close(all_gather(x, 0, of_gpus), all_gather(x, 0, host));
    const int other = (host.rank() + 1) % kRanks, before = (host.rank() + 2) % kRanks;
    const at::Tensor got = at::zeros({4}, at::kFloat);
    of_gpus.backend()
        .send_recv({{Transfer::Kind::kSend, x, other}, {Transfer::Kind::kRecv, got, before}})
        .wait();
    expect_close(got, randn({4}, 1 + static_cast<uint64_t>(before), at::kFloat));
  });
}

TEST(Staged, GroupsAndTheirPartsCarryTheDevice) {
  on_both([](const Group& host, const Group& copies) {
    EXPECT_FALSE(carries_gpu_tensors(host));
    EXPECT_TRUE(carries_gpu_tensors(copies));
    const Group part = copies.split(host.rank() % 2, host.rank(), "part");
    const at::Tensor x = of_rank(host, {3});
    if (part.size() == 2)
      expect_close(all_reduce(x, ReduceOp::kSum, part),
                   randn({3}, 1, at::kFloat) + randn({3}, 3, at::kFloat));
    copies.backend().barrier().wait();
  });
}

} // namespace
} // namespace pentatron::comm
