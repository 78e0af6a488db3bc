// ddp.fp8_param_gather changes no bit of a run: not the losses, not its checkpoints.
#include <gtest/gtest.h>

#include "pentatron/base/log.h"
#include "pentatron/comm/rank_threads.h"
#include "tests/trainer/tiny_run.h"

namespace pentatron::trainer {
namespace {

using Settings = std::vector<std::string>;

struct GatherCase {
  const char* name;
  Settings settings;
  int ranks = 2;
};

class Fp8Gather : public testing::TestWithParam<GatherCase> {
 protected:
  std::vector<Json> lines(const std::string& name, Settings more, bool evaluations = false) const {
    Settings all = GetParam().settings;
    all.insert(all.end(),
               {"train.train_iters=6", "train.eval_interval=3", "train.eval_iters=1",
                "dataset.split=90,10,0", "optimizer.clip_grad=0", "ddp.bucket_size=3000",
                "logger.dir=" + (scratch / name + "_log"), "checkpoint.save=" + (scratch / name)});
    all.insert(all.end(), more.begin(), more.end());
    const Config c = test::tiny(data, all, GetParam().ranks);
    comm::run_ranks(GetParam().ranks, [&](const comm::Group& world) {
      log::set_thread_output(nullptr, false);
      Trainer(c, world).run();
      log::set_thread_output(nullptr, true);
    });
    return test::read_metrics(scratch / name + "_log/metrics.jsonl", evaluations);
  }
  static void equal(const std::vector<Json>& a, const std::vector<Json>& b, const char* key) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i][key], b[i][key]) << i;
  }

  test::Scratch scratch;
  const std::string data = test::write_documents(scratch / "data.jsonl", 200);
};

TEST_P(Fp8Gather, ChangesNoBit) {
  const std::string codes = "ddp.fp8_param_gather=true";
  const std::vector<Json> plain = lines("plain", {}), coded = lines("coded", {codes});
  ASSERT_EQ(plain.size(), 6u);
  equal(plain, coded, "loss");
  // Parts go to the first half in codes and come back from its checkpoint as values, and turned.
  lines("parts", {codes, "train.exit_interval=3"});
  const std::string load = "checkpoint.load=" + (scratch / "parts");
  equal(plain, lines("parts", {load}), "loss");
  lines("turned", {"train.exit_interval=3"});
  equal(plain, lines("turned", {codes, "checkpoint.load=" + (scratch / "turned")}), "loss");
  const auto evaluations = [&](const std::string& name) {
    return test::read_metrics(scratch / name + "_log/metrics.jsonl", true);
  };
  ASSERT_EQ(evaluations("plain").size(), 2u);
  equal(evaluations("plain"), evaluations("coded"), "validation_loss");
  equal(evaluations("plain"), evaluations("turned"), "validation_loss");
}

const Settings kBlocks = {"mixed_precision.fp8=e4m3", "mixed_precision.fp8_recipe=blockwise"};
const Settings kTensors = {"mixed_precision.fp8=hybrid"};
const Settings kDelayed = {"mixed_precision.fp8=hybrid", "mixed_precision.fp8_recipe=delayed",
                           "mixed_precision.fp8_amax_history_len=2"};
Settings with(Settings all, const Settings& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}
INSTANTIATE_TEST_SUITE_P(
    Runs, Fp8Gather,
    testing::Values(
        GatherCase{"tensors_zero1", with(kTensors, {"dtype=bf16", "ddp.zero_stage=1"})},
        GatherCase{"tensors_zero2", with(kTensors, {"ddp.zero_stage=2"})},
        GatherCase{
            "tensors_zero3_remainders",
            with(kTensors, {"dtype=bf16", "ddp.zero_stage=3",
                            "optimizer.store_param_remainders=true", "train.recompute=full"})},
        GatherCase{"blocks_zero1",
                   with(kBlocks, {"ddp.zero_stage=1", "ddp.overlap_param_gather=false",
                                  "model.hidden_size=160"})},
        GatherCase{"blocks_zero3_fp64", with(kBlocks, {"dtype=fp64", "ddp.zero_stage=3"})},
        GatherCase{"delayed_zero1", with(kDelayed, {"dtype=bf16", "ddp.zero_stage=1"})},
        GatherCase{"delayed_fp16_skips",
                   with(kDelayed, {"dtype=fp16", "ddp.zero_stage=2",
                                   "mixed_precision.initial_loss_scale=16777216"})},
        GatherCase{"delayed_zero3_pp2",
                   with(kDelayed, {"ddp.zero_stage=3", "parallel.pipeline_model_parallel_size=2",
                                   "train.micro_batch_size=1"}),
                   4},
        GatherCase{"experts_zero1", with(kTensors, {"ddp.zero_stage=1", "model.num_moe_experts=4",
                                                    "train.freeze=[\"layers.0.attention.*\"]"})},
        GatherCase{
            "experts_ep2_delayed_zero3",
            with(kDelayed, {"ddp.zero_stage=3", "model.num_moe_experts=4",
                            "parallel.expert_model_parallel_size=2", "train.global_batch_size=8"}),
            4},
        GatherCase{"tensor_parallel_average",
                   with(kBlocks,
                        {"dtype=bf16", "ddp.zero_stage=1", "optimizer.ema_decay=0.5",
                         "parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true",
                         "train.eval_weights=ema", "optimizer.optimizer=muon"}),
                   4},
        GatherCase{"first_and_last_stay",
                   with(kTensors, {"dtype=bf16", "ddp.zero_stage=3", "model.num_layers=4",
                                   "mixed_precision.first_last_layers_bf16=true"})}),
    [](const auto& info) { return std::string(info.param.name); });

} // namespace
} // namespace pentatron::trainer
