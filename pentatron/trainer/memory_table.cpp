#include "pentatron/trainer/memory_plan.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "pentatron/base/format.h"
#include "pentatron/base/progress.h"

namespace pentatron::trainer {

/// A table where there are several, of at most kRows.
static std::string by_pipeline_rank(const std::vector<RankMemory>& ranks) {
  constexpr size_t kRows = 8;
  if (ranks.size() < 2) return "";
  std::string table = fmt::format("\n             {:>13} {:>12} {:>12} {:>12} {:>12} {:>12} {:>12}",
                                  "pipeline rank", "weights", "gradients", "optimizer",
                                  "activations", "temporaries", "together");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks.size() > kRows && i == kRows - 1) {
      table += fmt::format("\n             {:>13}", "...");
      i = ranks.size() - 1;
    }
    const RankMemory& r = ranks[i];
    table += fmt::format("\n             {:>13}", i);
    for (const double bytes : {r.weights, r.gradients, r.optimizer, r.activations,
                               r.loss + r.data + r.saving, r.total()})
      table += fmt::format(" {:>12}", format_bytes(bytes));
  }
  return table;
}

std::string describe_limits(const Config& config, const MemoryPlan& plan,
                            std::optional<int64_t> free_bytes) {
  const RankMemory& r = plan.rank;
  const auto columns = static_cast<size_t>(log::text_columns());
  std::string memory = fmt::format("memory       about {} per rank:", format_bytes(r.total()));
  size_t line = memory.size();
  for (const auto& [name, bytes] : {std::pair{"weights", r.weights},
                                    {"gradients", r.gradients},
                                    {"optimizer", r.optimizer},
                                    {"activations", r.activations},
                                    {"loss", r.loss},
                                    {"data", r.data},
                                    {"saving", r.saving}})
    if (bytes > 0) {
      const std::string part = fmt::format(" {} {},", name, format_bytes(bytes));
      if (line + part.size() > columns) {
        memory += "\n            ";
        line = 12;
      }
      memory += part;
      line += part.size();
    }
  if (memory.ends_with(',')) memory.pop_back();
  const int64_t steps = total_iterations(config.train);
  const double tokens = static_cast<double>(batch_schedule(config.train).samples_after(steps)) *
                        static_cast<double>(stream_lengths(config).front());
  memory += by_pipeline_rank(plan.pipeline);
  return fmt::format("model        {} parameters{} ({} on a rank), {}, hidden size {}\n"
                     "{}\n"
                     "             about {} on this machine{}\n"
                     "length       {} {}, {} tokens",
                     format_count(plan.parameters),
                     plan.frozen_parameters > 0
                         ? fmt::format(", {} of them frozen", format_count(plan.frozen_parameters))
                         : "",
                     format_count(plan.rank_parameters), counted(config.model.num_layers, "layer"),
                     config.model.hidden_size, memory, format_bytes(plan.machine),
                     free_bytes ? fmt::format(", which has {} free",
                                              format_bytes(static_cast<double>(*free_bytes)))
                                : "",
                     format_grouped(steps), noun_for(steps, "iteration"), format_count(tokens));
}

} // namespace pentatron::trainer
