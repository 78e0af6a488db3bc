#include "pentatron/parallelize/parallel_config.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace pentatron::parallelize {

void ParallelConfig::validate(config::Violations& violations, std::string_view path) const {
  const int ways = !pipeline_model_parallel_layout.empty() +
                   (pipeline_balance == PipelineBalance::kCost) +
                   (num_layers_in_first_pipeline_stage || num_layers_in_last_pipeline_stage) +
                   (account_for_embedding_in_pipeline_split || account_for_loss_in_pipeline_split);
  if (ways > 1) { // all but one are taken back
    std::vector<std::string> remedy;
    const auto remove = [&](const char* name, bool given, const char* off) {
      if (given) remedy.push_back(fmt::format("{}={}", config::join(path, name), off));
    };
    remove("account_for_embedding_in_pipeline_split", account_for_embedding_in_pipeline_split,
           "false");
    remove("account_for_loss_in_pipeline_split", account_for_loss_in_pipeline_split, "false");
    const bool others =
        !pipeline_model_parallel_layout.empty() || pipeline_balance == PipelineBalance::kCost;
    remove("num_layers_in_first_pipeline_stage", others && num_layers_in_first_pipeline_stage,
           "null");
    remove("num_layers_in_last_pipeline_stage", others && num_layers_in_last_pipeline_stage,
           "null");
    remove("pipeline_balance",
           !pipeline_model_parallel_layout.empty() && pipeline_balance == PipelineBalance::kCost,
           "even");
    violations.add(config::join(path, "pipeline_model_parallel_layout"),
                   fmt::format("{0}.pipeline_model_parallel_layout, {0}.pipeline_balance=cost, "
                               "{0}.num_layers_in_first/last_pipeline_stage and "
                               "{0}.account_for_*_in_pipeline_split cannot be used together",
                               path),
                   fmt::format("{}", fmt::join(remedy, " and ")));
  }
}

} // namespace pentatron::parallelize
