#include "pentatron/trainer/memory_report.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <optional>
#include <vector>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/text.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/comm/rank_threads.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/trainer/memory_plan.h"

namespace pentatron::trainer {

namespace {

struct PartOfMemory {
  const char* name;
  double bytes = 0, planned = 0;
};

/// By the names of the plan, which counts buckets and gathered values with gradients and weights,
/// and not with temporaries.
std::vector<PartOfMemory> parts_of_memory(const RankMemory& plan,
                                          const std::vector<double>& peaks) {
  const auto of = [&](nn::MemoryCategory category) { return peaks[static_cast<size_t>(category)]; };
  using C = nn::MemoryCategory;
  return {{"weights", of(C::kParameters), plan.weights},
          {"gradients", of(C::kGradients), plan.gradients},
          {"optimizer", of(C::kOptimizer), plan.optimizer},
          {"activations", of(C::kActivations), plan.activations},
          {"temporaries", of(C::kWorkspace), plan.loss},
          {"data", of(C::kData), plan.data},
          {"other", of(C::kOther), plan.saving + plan.update}};
}

/// The peaks of this rank: of each category, and of their sum.
std::vector<double> own_peaks() {
  const nn::MemorySnapshot snapshot = nn::memory_snapshot(comm::current_rank());
  std::vector<double> peaks;
  for (const nn::MemoryUse& use : snapshot.categories)
    peaks.push_back(static_cast<double>(use.peak_bytes));
  peaks.push_back(static_cast<double>(snapshot.total.peak_bytes));
  return peaks;
}

} // namespace

std::string measured_memory(const Config& config, const comm::Group& world) {
  std::vector<double> most(nn::kNumMemoryCategories + 1);
  for (const std::string& text :
       comm::gather_text(fmt::format("{:.0f}", fmt::join(own_peaks(), " ")), world)) {
    std::vector<double> peaks;
    for (const std::string_view word : split(text, ' '))
      peaks.push_back(std::strtod(std::string(word).c_str(), nullptr));
    if (peaks.back() > most.back()) most = peaks;
  }
  std::optional<RankMemory> plan;
  std::string estimated;
  try { // a run that has begun goes on without an estimate
    plan = plan_memory(config, world.size()).rank;
    estimated = fmt::format(" (estimated {})", format_bytes(plan->total()));
  } catch (const Error& error) {
    estimated = fmt::format(" (no estimate: {})", error.what());
  }
  std::vector<std::string> parts;
  for (const PartOfMemory& part : parts_of_memory(plan.value_or(RankMemory{}), most))
    if (part.bytes >= 1 << 20 || part.planned >= 1 << 20)
      parts.push_back(fmt::format("{} {}{}", part.name, format_bytes(part.bytes),
                                  plan ? fmt::format(" ({})", format_bytes(part.planned)) : ""));
  return fmt::format("memory peak  at most {} per rank{}{}{}", format_bytes(most.back()), estimated,
                     parts.empty() ? "" : ": ", fmt::join(parts, ", "));
}

bool is_out_of_memory(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         std::string_view(error.what()).find("can't allocate memory") != std::string_view::npos;
}

std::string out_of_memory_text(const Config& config, int world_size) {
  const std::vector<double> peaks = own_peaks();
  std::vector<PartOfMemory> parts = parts_of_memory({}, peaks);
  std::ranges::sort(parts, [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  std::vector<std::string> largest;
  for (const PartOfMemory& part : parts)
    if (part.bytes > 0 && largest.size() < 3)
      largest.push_back(fmt::format("{} {}", part.name, format_bytes(part.bytes)));
  const std::string held = largest.empty()
                               ? ""
                               : fmt::format(": this rank used {}, most of it for {}",
                                             format_bytes(peaks.back()), fmt::join(largest, ", "));
  // With the least that a process takes, so that the plan for what was held would fit.
  const double there = peaks.back() + kProcessBytes;
  return fmt::format(
      "out of memory{}\n  try: {}", held,
      memory_remedy(config, world_size, {.ranks = 1, .processes = 1}, static_cast<int64_t>(there)));
}

} // namespace pentatron::trainer
