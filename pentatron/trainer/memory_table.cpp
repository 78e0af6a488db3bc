#include "pentatron/trainer/memory_plan.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "pentatron/base/format.h"
#include "pentatron/base/progress.h"

namespace pentatron::trainer {

namespace {

/// Without what an update alone holds, if the most is needed in a backward pass.
double optimizer_at_most(const RankMemory& r) {
  return r.most_in_update() ? r.optimizer : r.optimizer - r.window;
}

/// In lines: categories that add up to the total, of the moment that needs most.
std::string by_category(const RankMemory& r) {
  const auto columns = static_cast<size_t>(log::text_columns());
  const bool update = r.most_in_update();
  std::vector<std::string> parts;
  const auto add = [&](const char* name, double bytes) {
    if (bytes >= 1) parts.push_back(fmt::format(" {} {},", name, format_bytes(bytes)));
  };
  add("weights", r.weights);
  add("gradients", r.gradients);
  add("optimizer", optimizer_at_most(r));
  if (update) {
    add("update", r.update);
  } else {
    add("activations", r.activations);
    add("loss", r.loss);
  }
  add("data", r.data);
  add("saving", r.saving);
  if (update && r.of_backward() >= 1) {
    if (!parts.empty()) parts.back().back() = ';';
    add("in the backward pass activations", r.activations);
    add(r.activations >= 1 ? "loss" : "in the backward pass loss", r.loss);
  }
  std::string text = fmt::format("memory       about {} per rank{}:", format_bytes(r.total()),
                                 update ? ", during an update" : "");
  size_t line = text.size();
  for (const std::string& part : parts) {
    if (line + part.size() > columns) {
      text += "\n            ";
      line = 12;
    }
    text += part;
    line += part.size();
  }
  if (text.ends_with(',')) text.pop_back();
  return text;
}

/// A table where there are several, of at most kRows.
std::string by_pipeline_rank(const std::vector<RankMemory>& ranks) {
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
    const bool update = r.most_in_update();
    for (const double bytes : {r.weights, r.gradients, optimizer_at_most(r)})
      table += fmt::format(" {:>12}", format_bytes(bytes));
    table += fmt::format(" {:>12}", update ? "-" : format_bytes(r.activations));
    for (const double bytes : {(update ? r.update : r.loss) + r.data + r.saving, r.total()})
      table += fmt::format(" {:>12}", format_bytes(bytes));
  }
  return table;
}

} // namespace

std::string describe_limits(const Config& config, const MemoryPlan& plan,
                            std::optional<int64_t> free_bytes) {
  const int64_t steps = total_iterations(config.train);
  const double tokens = static_cast<double>(batch_schedule(config.train).samples_after(steps)) *
                        static_cast<double>(stream_lengths(config).front());
  const std::string memory = by_category(plan.rank) + by_pipeline_rank(plan.pipeline);
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
