// train.cuda_graphs: what it does not support is an error at start-up.
#include "pentatron/base/error.h"
#include "tests/trainer/tiny_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace pentatron::trainer {
namespace {

using testing::HasSubstr;

std::string refusal(std::vector<std::string> settings) {
  settings.emplace_back("train.cuda_graphs=true");
  try {
    test::tiny("unused", settings);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(CudaGraphs, NeedAGpu) {
  EXPECT_THAT(refusal({"device=cpu"}),
              testing::AllOf(HasSubstr("train.cuda_graphs=true needs device=cuda"),
                             HasSubstr("try: train.cuda_graphs=false")));
}

TEST(CudaGraphs, RefuseWhatChangesFromStepToStep) {
  EXPECT_EQ(refusal({"device=cuda"}), "");
  const std::vector<std::pair<std::vector<std::string>, std::string>> refused = {
      {{"model.type=t5"}, "models with an encoder and a decoder"},
      {{"model.num_moe_experts=4"}, "models with experts"},
      {{"model.mtp_num_layers=1"}, "multi-token prediction"},
      {{"model.hidden_dropout=0.1"}, "dropout (model.hidden_dropout=0.1"},
      {{"model.attention_dropout=0.1"}, "model.attention_dropout=0.1)"},
      {{"parallel.tensor_model_parallel_size=2"}, "parallel.tensor_model_parallel_size=2"},
      {{"parallel.pipeline_model_parallel_size=2"}, "parallel.pipeline_model_parallel_size=2"},
      {{"parallel.context_parallel_size=2"}, "parallel.context_parallel_size=2"},
      {{"parallel.pipeline_schedule=zb_h1"}, "parallel.pipeline_schedule=zb_h1"},
      {{"parallel.pipeline_schedule=gpipe"}, "parallel.pipeline_schedule=gpipe"},
      {{"dataset.reset_attention_mask=true"}, "dataset.reset_attention_mask=true"},
      {{"dataset.reset_position_ids=true"}, "dataset.reset_position_ids=true"},
      {{"dataset.type=sft"}, "dataset.type=sft, whose samples have padding"},
      {{"ddp.zero_stage=3"}, "ddp.zero_stage=3"},
      {{"train.recompute=full"}, "train.recompute=full"},
      {{"offload.activations=true"}, "offload.activations=true"},
      {{"peft.type=lora"}, "peft.type=lora"},
      {{"mixed_precision.fp8=hybrid", "mixed_precision.fp8_recipe=delayed"},
       "mixed_precision.fp8_recipe=delayed"},
      {{"mixed_precision.fp4=e2m1"}, "mixed_precision.fp4=e2m1"},
      {{"optimizer.qk_clip=true"}, "optimizer.qk_clip=true"},
      {{"logger.log_max_attention_logit=true"}, "logger.log_max_attention_logit=true"}};
  for (const auto& [keys, sentence] : refused) {
    std::vector<std::string> settings = keys;
    settings.emplace_back("device=cuda");
    EXPECT_THAT(
        refusal(settings),
        testing::AllOf(HasSubstr("train.cuda_graphs=true does not support"), HasSubstr(sentence)));
  }
}

} // namespace
} // namespace pentatron::trainer
