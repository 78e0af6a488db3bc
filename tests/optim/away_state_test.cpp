// State that is kept out of memory gives the bits of state that stays.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <map>

#include <sys/resource.h>

#include "pentatron/nn/block_file.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/optim/optimizer.h"
#include "pentatron/optim/rules.h"
#include "tests/optim/fused_model.h"
#include "tests/support/files.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace pentatron::optim {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

struct AwayCase {
  const char* name;
  OptimizerConfig config;
  at::ScalarType dtype = at::kFloat;
};

/// Values and state behind four steps; `load`: of an optimizer made anew behind the second one.
Tensors trained(const AwayCase& c, const AwayState& away, const AwayState& next) {
  test::Fused model({}, c.dtype);
  plan_rules(model.params, c.config);
  const nn::ResidentStore store(model.params, at::kCPU);
  for (nn::Param& param : model.params) param.initialize(3);
  auto optimizer = std::make_unique<Optimizer>(c.config, store.shards(), comm::Group(), away);
  const auto read = [&] {
    Tensors all;
    optimizer->for_each_state([&](const nn::Shard&, const nn::Piece& piece, const std::string& what,
                                  const at::Tensor& data) {
      at::Tensor& whole = all[piece.param->name() + "/" + what];
      if (!whole.defined()) whole = at::zeros({piece.param->numel()}, data.options());
      whole.narrow(0, piece.param_begin, piece.size).copy_(data);
    });
    return all;
  };
  for (int step = 1; step <= 4; ++step) {
    uint64_t seed = static_cast<uint64_t>(100 * step);
    for (nn::Param& p : model.params)
      test::load_gradient(p, test::randn(p.spec().shape, ++seed).to(p.main_grad().scalar_type()));
    optimizer->step(0.01, 0.3, 0.5);
    if (step != 2) continue;
    const Tensors saved = read();
    const StateBounds::Bounds bounds = optimizer->bounds().all();
    optimizer = std::make_unique<Optimizer>(c.config, store.shards(), comm::Group(), next);
    optimizer->set_steps(2);
    optimizer->set_bounds(bounds);
    optimizer->for_each_state([&](const nn::Shard&, const nn::Piece& piece, const std::string& what,
                                  const at::Tensor& data) {
      at::Tensor(data).copy_(
          saved.at(piece.param->name() + "/" + what).narrow(0, piece.param_begin, piece.size));
    });
  }
  Tensors all = read();
  for (const nn::Param& p : model.params) all[p.name()] = p.value().clone();
  return all;
}

class Away : public testing::TestWithParam<AwayCase> {
 protected:
  AwayState away(double fraction, int64_t part) const {
    return {.store = nn::state_store_in_file(folder.path()), .fraction = fraction, .part = part};
  }
  TemporaryFolder folder;
};

TEST_P(Away, StateGivesTheBitsOfStateThatStays) {
  const Tensors stays = trained(GetParam(), {}, {});
  for (const auto& [first, next] : {std::pair{away(1, 64), AwayState()},
                                    {AwayState(), away(1, 1 << 20)},
                                    {away(0.4, 64), away(0.7, 128)},
                                    {away(0.05, 64), away(1, 192)}}) {
    const Tensors moves = trained(GetParam(), first, next);
    ASSERT_EQ(moves.size(), stays.size());
    for (const auto& [name, tensor] : stays) {
      // at::equal knows no 8-bit floats.
      const at::Tensor a = tensor.flatten().view(at::kByte),
                       b = moves.at(name).flatten().view(at::kByte);
      EXPECT_TRUE(at::equal(a, b)) << name << " " << first.fraction << " " << next.fraction;
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "the files have no name";
}

INSTANTIATE_TEST_SUITE_P(
    Rules, Away,
    testing::Values(
        AwayCase{"adam_fp32", {}}, AwayCase{"adam_fp64", {}, at::kDouble},
        AwayCase{"adam_bf16_average", {.ema_decay = 0.9}, at::kBFloat16},
        AwayCase{
            "remainders",
            {.exp_avg_dtype = StateDtype::kBf16, .store_param_remainders = true, .ema_decay = 0.5},
            at::kBFloat16},
        AwayCase{"codes",
                 {.exp_avg_dtype = StateDtype::kFp8, .exp_avg_sq_dtype = StateDtype::kFp16},
                 at::kBFloat16},
        AwayCase{"codes_rounded_by_chance",
                 {.adam_beta1 = 0.95,
                  .adam_beta2 = 0.999,
                  .exp_avg_dtype = StateDtype::kFp8,
                  .exp_avg_sq_dtype = StateDtype::kFp8},
                 at::kBFloat16},
        AwayCase{"muon_rounded_by_chance",
                 {.optimizer = OptimizerKind::kMuon, .exp_avg_dtype = StateDtype::kFp8}},
        AwayCase{"lion", {.optimizer = OptimizerKind::kLion}, at::kBFloat16},
        AwayCase{"sgd", {.optimizer = OptimizerKind::kSgd}},
        AwayCase{"muon", {.optimizer = OptimizerKind::kMuon}, at::kBFloat16},
        AwayCase{"normuon",
                 {.optimizer = OptimizerKind::kAdaptiveMuon,
                  .adaptive_muon_moment2_method = Moment2Method::kNorMuon}},
        AwayCase{"adafactor",
                 {.optimizer = OptimizerKind::kAdafactor, .adafactor_beta1 = 0.9},
                 at::kBFloat16}),
    [](const auto& info) { return info.param.name; });

TEST(AwayMemory, HasThreePartsAtMost) {
  nn::install_counting_allocator();
  const TemporaryFolder folder;
  constexpr int64_t kElements = int64_t{1} << 20, kPartSize = int64_t{1} << 16;
  nn::ParamList params;
  params.add({.name = "w", .shape = {1024, 1024}}, nn::Init::normal(1), at::kFloat, {});
  const nn::ResidentStore store(params, at::kCPU);
  for (nn::Param& p : params) p.initialize(3);
  for (nn::Param& p : params) p.main_grad().fill_(1);
  const auto peak_with = [&](const AwayState& away) {
    nn::reset_memory_peak(0);
    Optimizer optimizer({}, store.shards(), {}, away);
    optimizer.step(0.01, 0.1, 1);
    return nn::memory_snapshot(0)
        .categories[static_cast<size_t>(nn::MemoryCategory::kOptimizer)]
        .peak_bytes;
  };
  const auto file = nn::state_store_in_file(folder.path());
  EXPECT_LE(peak_with({.store = file, .part = kPartSize}), 3 * 8 * kPartSize + 4096);
  const int64_t half = peak_with({.store = file, .fraction = 0.5, .part = kPartSize});
  EXPECT_GE(half, 4 * kElements);
  EXPECT_LE(half, 4 * kElements + 3 * 8 * kPartSize + 8192);
}

TEST(AwayErrors, NameTheKey) {
  EXPECT_NE(test::error_of([] {
              nn::state_store_in_file("/proc/version/x");
            }).find("offload.dir=/proc/version/x cannot be written"),
            std::string::npos);
  // A limit of file sizes in place of a full disk.
  const TemporaryFolder folder;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 20, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = test::error_of([&] {
    const auto store = nn::state_store_in_file(folder.path());
    store->add(1000, at::kFloat);
    store->add(1 << 20, at::kFloat);
  });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(error.find("cannot write to offload.dir=" + folder.path().string()), std::string::npos)
      << error;
  EXPECT_NE(error.find("try: offload.dir="), std::string::npos) << error;
}

} // namespace
} // namespace pentatron::optim
