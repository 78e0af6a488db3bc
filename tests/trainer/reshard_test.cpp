// A run saved in one layout goes on in any other as if nothing had happened.
#include <gtest/gtest.h>

#include "tests/trainer/layout_runs.h"

namespace pentatron::test {
namespace {

constexpr int kSaved = 2, kAll = 5; // iterations

/// Of what ZeRO, tensors, pipelines and shared heads cut; "one" is one rank.
const std::vector<std::string>& names() {
  static const std::vector<std::string> ci = {
      "one",          "tp2_sp",    "tp4_sp_shared_heads", "dp4_micro2",      "zero1",
      "zero3_hybrid", "pp2_gpipe", "pp3_1f1b_5_layers",   "pp2_interleaved", "zero3_pp2",
      "tp2_pp2_dp2",  "cp2_ring"};
  static const std::vector<std::string> all = [] {
    std::vector<std::string> result = ci;
    for (const char* more : {"tp2", "dp2", "zero2", "zero3", "pp2_1f1b", "pp4_zb_h1", "pp2_zb_v",
                             "pp2_dualpipe_v", "tp2_pp2_dp2_zb_v_zero2", "cp3_ring_uneven",
                             "cp2_dp2_zero3", "tp2_cp2_all_gather", "cp2_heads"})
      result.emplace_back(more);
    return result;
  }();
  return full_matrix() ? all : ci;
}

struct SavedRun {
  std::map<int64_t, double> losses, norms; ///< by iteration
  std::map<std::string, at::Tensor> weights;
  double key_noise = 0;
};

class Resharding : public testing::TestWithParam<std::string> {
 protected:
  /// In the layout `name`, of whatever work that is listed for.
  SavedRun train(const std::string& name, const std::string& more,
                 const std::string& work = "gpt2") {
    Layout layout{"one", work, 1, "", true};
    for (const Layout& known : layouts())
      if (known.name == name) layout = known;
    const Scratch scratch;
    const QuietLog quiet;
    write_documents(scratch / "documents.jsonl", 400);
    write_stories(scratch / "stories.jsonl", 200);
    SavedRun run;
    std::mutex mutex;
    const auto body = [&](const comm::Group& world) {
      const trainer::Config config =
          layout_config(work,
                        layout.keys + " dtype=" + GetParam() + " train.eval_interval=0 " +
                            fmt::format("train.train_iters={} ", kAll) + more,
                        layout.ranks, scratch.path);
      trainer::Trainer trainer(config, world);
      const trainer::TrainReport report = trainer.run();
      std::map<std::string, at::Tensor> weights = gather_weights(trainer, config, world);
      if (world.rank() != 0) return;
      const std::lock_guard lock(mutex);
      run.weights = std::move(weights);
      run.key_noise = key_noise_of(config);
      for (const Json& step : read_metrics(report.metrics.string())) {
        const auto iteration = step.at("iteration").get<int64_t>();
        run.losses[iteration] = step.at("loss").get<double>();
        run.norms[iteration] = step.at("grad_norm").get<double>();
      }
    };
    if (layout.ranks == 1) {
      at::set_num_threads(1);
      body({});
    } else {
      run_ranks(layout.ranks, body);
    }
    return run;
  }
  void expect_same(const SavedRun& resumed, const SavedRun& whole, const Bounds& bounds) {
    ASSERT_EQ(resumed.losses.size(), static_cast<size_t>(kAll - kSaved));
    for (int64_t i = kSaved + 1; i <= kAll; ++i) {
      EXPECT_NEAR(resumed.losses.at(i), whole.losses.at(i), bounds.losses * whole.losses.at(i));
      EXPECT_NEAR(resumed.norms.at(i), whole.norms.at(i), bounds.losses * whole.norms.at(i));
    }
    expect_same_weights(resumed.weights, whole.weights, bounds.weights, whole.key_noise);
  }
  const Scratch checkpoints;
};
INSTANTIATE_TEST_SUITE_P(Types, Resharding, testing::Values("fp64", "fp32"),
                         [](const auto& info) { return info.param; });

TEST_P(Resharding, GoesOnInAnyLayout) {
  if (GetParam() == "fp32" && !full_matrix()) GTEST_SKIP() << "in the full matrix";
  const SavedRun whole = train("one", "");
  for (const std::string& from : names())
    train(from,
          fmt::format("train.exit_interval={} checkpoint.save={}", kSaved, checkpoints / from));
  const size_t count = names().size();
  for (size_t a = 0; a < count; ++a)
    for (size_t b = 0; b < count; ++b) {
      if (!full_matrix() && b != (a + 4) % count && b != (a + 7) % count) continue;
      SCOPED_TRACE(names()[a] + " goes on as " + names()[b]);
      expect_same(train(names()[b], "checkpoint.load=" + checkpoints / names()[a]), whole,
                  bounds_of(GetParam()));
      if (HasFailure()) return;
    }
}

TEST_P(Resharding, OfOtherModelsGoesOnInOtherLayouts) {
  if (GetParam() == "fp32" && !full_matrix()) GTEST_SKIP() << "in the full matrix";
  using Cases = std::vector<std::pair<std::string, std::vector<std::string>>>;
  const Cases ci = {{"bert", {"one", "bert_zero3_pp2", "bert_tp2_sp"}},
                    {"t5", {"t5_pp4_1f1b", "one", "t5_tp2_pp2_dp2"}},
                    {"moe", {"moe_cp2", "one", "moe_tp2_sp_ep2_etp2"}},
                    {"moe_shared", {"moe_pp2_interleaved_ep2", "one"}},
                    {"mtp", {"mtp_pp3_apart", "one", "mtp_tp2_sp"}},
                    {"muon", {"muon_tp2_sp_pp2_zero1", "muon_zero3", "one"}},
                    {"muon_moe", {"muon_moe_tp2_ep2_etp2_zero1", "one"}},
                    {"adafactor", {"adafactor_tp4_shared_heads_zero2", "one", "adafactor_zero3"}},
                    {"normuon", {"normuon_tp2_ep2_etp2_zero1", "one"}},
                    {"ema", {"ema_zero1_tp2", "one", "ema_zero3"}},
                    {"narrow_means", {"narrow_means_zero1_pp2", "narrow_means_zero3", "one"}},
                    {"slow_means", {"slow_means_tp2_sp", "one"}}};
  const Cases all = {
      {"bert",
       {"one", "bert_zero3_pp2", "bert_tp2_sp", "bert_tp4", "bert_pp2_zb_v", "bert_zero2",
        "bert_tp2_sp_pp2_dp2"}},
      {"bert_pre", {"bert_pre_pp4_zb_h1", "one", "bert_pre_tp4_sp_shared_heads"}},
      {"t5",
       {"t5_pp4_1f1b", "one", "t5_tp2_pp2_dp2", "t5_pp3_both_on_a_stage", "t5_zero3_late",
        "t5_pp2_dualpipe_v"}},
      {"moe",
       {"moe_cp2", "one", "moe_tp2_sp_ep2_etp2", "moe_cp2_pp2_ep4_zb_v_zero3", "moe_ep2_zero1_late",
        "moe_pp4_zb_h2"}},
      {"moe_shared",
       {"moe_cp4_heads_and_ring_ep8", "one", "moe_pp2_interleaved_ep2", "moe_ep4_zero2"}},
      {"latents_moe", {"latents_moe_ep4", "one", "latents_moe_tp2_cp2_heads_ep2"}},
      {"mtp",
       {"mtp_pp3_apart", "one", "mtp_tp2_sp", "mtp_cp2_heads", "mtp_tp4_dp2_zero2",
        "mtp_pp2_zb_v"}},
      {"mtp_packed", {"mtp_packed_zero3_recompute", "mtp_packed_tp2_sp_cp2_pp2_zb_h1", "one"}},
      {"mtp_moe", {"mtp_moe_tp2_sp_pp2_ep2_etp1", "one", "mtp_moe_cp2_ep2_pp2_interleaved"}},
      {"muon",
       {"muon_tp2_sp_pp2_zero1", "muon_zero3", "one", "muon_tp4_shared_heads_zero2",
        "muon_pp2_zb_v_zero2", "muon_cp2_zero1"}},
      {"muon_moe", {"muon_moe_tp2_ep2_etp2_zero1", "one", "muon_moe_ep4_pp2_zero3"}},
      {"muon_latents", {"muon_latents_tp2", "one", "muon_latents_tp2_sp_pp2_ep2"}},
      {"adafactor",
       {"adafactor_tp4_shared_heads_zero2", "one", "adafactor_zero3", "adafactor_cp2_zero1"}},
      {"adafactor_moe", {"adafactor_moe_tp2_ep2_etp2_zero1", "one", "adafactor_moe_ep4_pp2_zero3"}},
      {"normuon", {"normuon_tp2_ep2_etp2_zero1", "one", "normuon_ep4_pp2_zero3"}},
      {"adaptive_muon", {"adaptive_muon_tp4_shared_heads", "adaptive_muon_zero3_cp2", "one"}},
      {"ema", {"ema_zero1_tp2", "one", "ema_zero3", "ema_zero2_pp2_zb_v"}},
      {"narrow_means", {"narrow_means_zero1_pp2", "narrow_means_zero3", "one"}},
      {"slow_means", {"slow_means_tp2_sp", "one", "slow_means_zero3_pp2"}},
      {"lion", {"lion_tp2_pp2_zero2", "one", "lion_zero3_cp2"}},
      {"t5_untied", {"t5_untied_zero3_pp3", "one", "t5_untied_tp2_pp2_zb_v"}}};
  for (const auto& [work, layouts] : full_matrix() ? all : ci) {
    if (GetParam() == "fp32" && (test::work_of(work).jumps || takes_signs(work))) continue;
    const SavedRun whole = train("one", "", work);
    for (size_t i = 0; i < layouts.size(); ++i) {
      const std::string &from = layouts[i], &to = layouts[(i + 1) % layouts.size()];
      SCOPED_TRACE(work + ": " + from + " goes on as " + to);
      const std::string folder = checkpoints / (work + "_" + from);
      train(from, fmt::format("train.exit_interval={} checkpoint.save={}", kSaved, folder), work);
      expect_same(train(to, "checkpoint.load=" + folder, work), whole,
                  bounds_of(GetParam(), test::work_of(work).keys));
      if (HasFailure()) return;
    }
  }
}

TEST_P(Resharding, GoesOnInAnyLayoutWithFrozenParameters) {
  if (GetParam() != "fp64") return; // once
  const std::vector<std::string> layouts = {"one", "tp2_frozen", "pp2_frozen", "zero1_frozen",
                                            "zero3_pp2_frozen"};
  const SavedRun whole = train("one", "", "gpt2_frozen");
  for (const std::string& from : layouts)
    train(from,
          fmt::format("train.exit_interval={} checkpoint.save={}", kSaved, checkpoints / from),
          "gpt2_frozen");
  for (size_t a = 0; a < layouts.size(); ++a) {
    const std::string& to = layouts[(a + 2) % layouts.size()];
    SCOPED_TRACE(layouts[a] + " goes on as " + to);
    expect_same(train(to, "checkpoint.load=" + checkpoints / layouts[a], "gpt2_frozen"), whole,
                bounds_of("fp64"));
  }
  // What is frozen now was trained, and the other way round, on ranks that split it differently.
  const std::string other = " train.freeze=[\"layers.3.*\",\"embedding.position.weight\"]";
  const SavedRun thawed =
      train("one", "checkpoint.load=" + checkpoints / "one" + other, "gpt2_frozen");
  for (const char* name : {"tp2_frozen", "zero3_pp2_frozen"}) {
    SCOPED_TRACE(name);
    expect_same(train(name, "checkpoint.load=" + checkpoints / "one" + other, "gpt2_frozen"),
                thawed, bounds_of("fp64"));
  }
}

TEST_P(Resharding, IsBitForBitInTheSameLayout) {
  for (const char* name : {"tp2_sp", "zero1", "zero3_hybrid", "tp2_pp2_dp2"}) {
    SCOPED_TRACE(name);
    const std::string folder = checkpoints / name;
    const SavedRun whole = train(name, "");
    train(name, fmt::format("train.exit_interval={} checkpoint.save={}", kSaved, folder));
    expect_same(train(name, "checkpoint.load=" + folder), whole, {0, 0});
  }
}

TEST_P(Resharding, OfBf16KeepsTheMasterWeights) {
  if (GetParam() != "fp64") return; // once
  const auto bf16 = [&](const std::string& name, const std::string& more) {
    return train(name, "dtype=bf16 " + more);
  };
  for (const char* name : {"dp2", "zero3"}) {
    SCOPED_TRACE(name);
    const std::string folder = checkpoints / (std::string("bf16_") + name);
    const SavedRun whole = bf16(name, "");
    bf16(name, fmt::format("train.exit_interval={} checkpoint.save={}", kSaved, folder));
    expect_same(bf16(name, "checkpoint.load=" + folder), whole, {0, 0});
  }
}

} // namespace
} // namespace pentatron::test
