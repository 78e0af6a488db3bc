// fp16 in many layouts: steps whose gradients overflow are skipped by all ranks, and the loss scale
// of every step is that of one rank. Rounding differs between layouts, so losses are near, not
// equal.
#include <gtest/gtest.h>

#include "pentatron/optim/loss_scale.h"
#include "tests/trainer/layout_runs.h"

namespace pentatron::trainer {
namespace {

using test::Layout;

/// Overflows at the start, later ones after the scale has grown again; Adam's first steps are long,
/// so SGD keeps rounding small.
constexpr const char* kScaled =
    " dtype=fp16 train.train_iters=16 train.eval_interval=16 mixed_precision.loss_scale_window=4 "
    "mixed_precision.initial_loss_scale=268435456 optimizer.optimizer=sgd optimizer.lr=0.1";

const Layout* find_layout(const std::string& name) {
  for (const Layout& layout : test::layouts())
    if (layout.name == name) return &layout;
  return nullptr;
}

std::vector<Layout> chosen_layouts() {
  std::vector<Layout> chosen;
  for (const char* name : {"tp2", "tp2_sp", "tp4_sp_shared_heads", "dp2", "zero1", "zero2", "zero3",
                           "pp2_1f1b", "pp2_interleaved", "pp4_zb_h1", "pp2_zb_v",
                           "tp2_pp2_dp2_zb_v_zero2", "cp2_ring", "moe_ep2", "moe_tp2_sp_ep2_etp2",
                           "moe_tp2_sp_pp2_ep2_etp1_zb_h1", "t5_pp4_1f1b", "mtp_pp2_interleaved"})
    chosen.push_back(*find_layout(name));
  return chosen;
}

struct Steps {
  std::vector<double> losses, scales;
  std::vector<bool> skipped;
};

Steps train(const std::string& work, int ranks, const std::string& keys) {
  Steps steps;
  test::train_layout(work, ranks, keys + kScaled, [&](const Json& step) {
    steps.losses.push_back(step.at("loss").get<double>());
    steps.scales.push_back(step.at("loss_scale").get<double>());
    steps.skipped.push_back(step.at("skipped").get<int>() > 0);
  });
  return steps;
}

const Steps& one_rank_steps(const std::string& work) {
  static std::map<std::string, Steps> made;
  const auto [slot, fresh] = made.try_emplace(work);
  if (fresh) slot->second = train(work, 1, "");
  return slot->second;
}

class LayoutFp16 : public testing::TestWithParam<Layout> {};

TEST_P(LayoutFp16, SkipsTheStepsThatOneRankSkips) {
  const Layout& layout = GetParam();
  const Steps& one = one_rank_steps(layout.work);
  const Steps run = train(layout.work, layout.ranks, layout.keys);
  ASSERT_EQ(one.losses.size(), 16u);
  ASSERT_EQ(run.losses.size(), one.losses.size());
  const auto skips = std::count(one.skipped.begin(), one.skipped.end(), true);
  EXPECT_GE(skips, 3);
  EXPECT_LE(skips, 12);
  EXPECT_EQ(run.skipped, one.skipped);
  EXPECT_EQ(run.scales, one.scales);
  for (size_t i = 0; i < one.losses.size(); ++i)
    EXPECT_NEAR(run.losses[i], one.losses[i], 4e-3 * one.losses[i]) << "loss of step " << i + 1;
  // The scales are what the rule makes of the skipped steps.
  optim::LossScaler scaler({.initial = 268435456, .window = 4});
  for (size_t i = 0; i < one.skipped.size(); ++i) {
    scaler.update(one.skipped[i]);
    EXPECT_EQ(one.scales[i], scaler.scale()) << "step " << i + 1;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutFp16, testing::ValuesIn(chosen_layouts()),
                         [](const auto& info) { return info.param.name; });

} // namespace
} // namespace pentatron::trainer
