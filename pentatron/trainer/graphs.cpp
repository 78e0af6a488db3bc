#include "pentatron/trainer/graphs.h"

#include <fmt/format.h>

#include "pentatron/models/model.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

void check_graphs(const Config& config, config::Violations& violations) {
  constexpr const char *kKey = "train.cuda_graphs", *kOff = "train.cuda_graphs=false";
  if (!config.train.cuda_graphs) return;
  if (on_cpu(config.device))
    return violations.add(kKey, fmt::format("{}=true needs device=cuda", kKey), kOff);
  const auto refuse = [&](bool refused, const std::string& setting) {
    if (refused)
      violations.add(kKey, fmt::format("{}=true does not support {}", kKey, setting), kOff);
  };
  const models::ModelConfig& model = config.model;
  refuse(models::model_spec(model.with_one_layer()).streams.size() > 1,
         "models with an encoder and a decoder");
  refuse(model.num_moe_experts.has_value(), "models with experts");
  refuse(model.mtp_num_layers > 0, "multi-token prediction");
  refuse(model.hidden_dropout > 0 || model.attention_dropout > 0,
         fmt::format("dropout (model.hidden_dropout={:g}, model.attention_dropout={:g})",
                     model.hidden_dropout, model.attention_dropout));
  const parallelize::ParallelConfig& parallel = config.parallel;
  for (const auto& [name, size] :
       {std::pair("tensor_model", parallel.tensor_model_parallel_size),
        std::pair("pipeline_model", parallel.pipeline_model_parallel_size),
        std::pair("context", parallel.context_parallel_size)})
    refuse(size > 1, fmt::format("parallel.{}_parallel_size={}", name, size));
  // The others defer gradients of weights or have several microbatches under way, also on one rank.
  refuse(
      parallel.pipeline_schedule != parallelize::PipelineSchedule::k1F1B,
      fmt::format("parallel.pipeline_schedule={}", config::to_string(parallel.pipeline_schedule)));
  const data::DatasetConfig& data = config.dataset;
  refuse(data::has_padding(data.type),
         fmt::format("dataset.type={}, whose samples have padding or different lengths",
                     config::to_string(data.type)));
  refuse(data.reset_attention_mask, "dataset.reset_attention_mask=true");
  refuse(data.reset_position_ids, "dataset.reset_position_ids=true");
  refuse(config.ddp.zero_stage > 1, fmt::format("ddp.zero_stage={}", config.ddp.zero_stage));
  refuse(config.train.recompute != Recompute::kNone,
         fmt::format("train.recompute={}", config::to_string(config.train.recompute)));
  refuse(config.offload.activations, "offload.activations=true");
  refuse(config.peft.on(), fmt::format("peft.type={}", config::to_string(config.peft.type)));
  refuse(config.mixed_precision.fp8 != Fp8Format::kNone &&
             config.mixed_precision.fp8_recipe == Fp8Recipe::kDelayed,
         "mixed_precision.fp8_recipe=delayed");
  // Random numbers have the addresses of a microbatch's tokens.
  refuse(config.mixed_precision.fp4 != Fp4Format::kNone,
         fmt::format("mixed_precision.fp4={}", config::to_string(config.mixed_precision.fp4)));
  refuse(config.optimizer.qk_clip, "optimizer.qk_clip=true");
  refuse(config.logger.log_max_attention_logit, "logger.log_max_attention_logit=true");
}

} // namespace pentatron::trainer
