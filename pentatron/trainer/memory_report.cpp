#include "pentatron/trainer/memory_report.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <new>
#include <string_view>
#include <vector>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/text.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/comm/rank_groups.h"
#include "pentatron/comm/rank_threads.h"
#include "pentatron/parallelize/parallelize.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::trainer {

namespace {

struct PartOfMemory {
  const char* name;
  double bytes = 0, planned = 0;
};

/// By the names of the plan. The most of each: not all at the same time.
std::vector<PartOfMemory> parts_of_memory(const RankMemory& plan, const double* peaks) {
  const auto of = [&](nn::MemoryCategory category) {
    return peaks ? peaks[static_cast<size_t>(category)] : 0;
  };
  using C = nn::MemoryCategory;
  return {{"weights", of(C::kParameters), plan.weights},
          {"gradients", of(C::kGradients), plan.gradients},
          {"optimizer", of(C::kOptimizer), plan.optimizer},
          {"activations", of(C::kActivations), plan.activations},
          {"temporaries", of(C::kWorkspace), plan.loss},
          {"data", of(C::kData), plan.data},
          {"other", of(C::kOther), plan.saving + plan.update}};
}

/// What ranks tell each other: the peaks of the categories on the host, of the device, and what its
/// allocator reserves.
enum Figure : size_t { kPeak = nn::kNumMemoryCategories, kReserved, kNumFigures };
using Figures = std::array<double, kNumFigures>;

Figures figures_of(const HeldMemory& held) {
  Figures figures{};
  if (held.device) {
    figures[kPeak] = static_cast<double>(held.device->peak_allocated);
    figures[kReserved] = static_cast<double>(held.device->peak_reserved);
    return figures;
  }
  for (size_t i = 0; i < nn::kNumMemoryCategories; ++i)
    figures[i] = static_cast<double>(held.host.categories[i].peak_bytes);
  figures[kPeak] = static_cast<double>(held.host.total.peak_bytes);
  return figures;
}

/// The plan of a rank's pipeline rank. Throws Error where there is none.
RankMemory planned_for(const Config& config, const RankPlace& place) {
  const MemoryPlan plan = plan_memory(config, place.world_size);
  const parallelize::ParallelConfig& p = config.parallel;
  const comm::AxisSizes sizes = {
      {"tp", static_cast<int>(p.tensor_model_parallel_size)},
      {"cp", static_cast<int>(p.context_parallel_size)},
      {"dp", parallelize::data_parallel_size(p, place.world_size)},
      {"pp", static_cast<int>(p.pipeline_model_parallel_size)},
  };
  const comm::AxisSizes at = comm::coordinates(sizes, parallelize::rank_order(p), place.rank);
  return plan.pipeline.at(static_cast<size_t>(at.at("pp")));
}

std::optional<RankMemory> plan_if_any(const Config& config, const RankPlace& place) {
  try { // a run that has begun goes on without an estimate
    return planned_for(config, place);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// "activations 2.0 GiB, weights 1.0 GiB, ...", the largest first.
std::string largest_parts(std::vector<PartOfMemory> parts, double PartOfMemory::*bytes,
                          size_t most) {
  std::ranges::stable_sort(parts, std::ranges::greater{}, bytes);
  std::vector<std::string> texts;
  for (const PartOfMemory& part : parts)
    if (part.*bytes > 0 && texts.size() < most)
      texts.push_back(fmt::format("{} {}", part.name, format_bytes(part.*bytes)));
  return fmt::format("{}", fmt::join(texts, ", "));
}

/// What the allocator of a GPU says, and the plan of what is there: its tensors have no categories.
std::string on_the_device(const RankMemory* plan, const nn::DeviceMemory& device) {
  std::string text = fmt::format(
      ": the tensors of this rank used {} there ({} at most), and the allocator had reserved {}",
      format_bytes(static_cast<double>(device.allocated)),
      format_bytes(static_cast<double>(device.peak_allocated)),
      format_bytes(static_cast<double>(device.reserved)));
  if (plan)
    text += fmt::format("; estimated for this rank: {}",
                        largest_parts(parts_of_memory(*plan, nullptr), &PartOfMemory::planned, 7));
  return text;
}

/// Where the host of a rank on a GPU runs out of memory: what a run moves there.
std::string host_remedy(const Config& config) {
  std::vector<std::string> tries;
  if (config.offload.optimizer) tries.emplace_back("offload.optimizer=false");
  if (config.offload.activations) tries.emplace_back("offload.activations=false");
  tries.emplace_back("fewer ranks on this machine");
  return fmt::format("{}", fmt::join(tries, ", or "));
}

} // namespace

HeldMemory held_memory(at::Device device) {
  HeldMemory held{.host = nn::memory_snapshot(comm::current_rank()), .device = {}};
  if (!device.is_cpu()) held.device = nn::device_memory(device);
  return held;
}

MemoryPeak measured_peak(const Config& config, const comm::Group& world, at::Device device) {
  Figures most{};
  RankPlace place{.rank = 0, .world_size = world.size()};
  const std::vector<std::string> texts = comm::gather_text(
      fmt::format("{:.0f}", fmt::join(figures_of(held_memory(device)), " ")), world);
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    Figures figures{};
    const std::vector<std::string_view> words = split(texts[rank], ' ');
    for (size_t i = 0; i < std::min(words.size(), figures.size()); ++i)
      figures[i] = std::strtod(std::string(words[i]).c_str(), nullptr);
    if (figures[kPeak] <= most[kPeak]) continue;
    most = figures;
    place.rank = static_cast<int>(rank);
  }
  std::optional<RankMemory> plan;
  std::string estimated;
  try {
    plan = planned_for(config, place);
    estimated = fmt::format(" (estimated {})", format_bytes(plan->total()));
  } catch (const Error& error) {
    estimated = fmt::format(" (no estimate: {})", error.what());
  }
  std::vector<std::string> parts;
  for (const PartOfMemory& part : parts_of_memory(plan.value_or(RankMemory{}), most.data())) {
    if (part.bytes < 1 << 20 && part.planned < 1 << 20) continue;
    const std::string of_plan = plan ? fmt::format("({})", format_bytes(part.planned)) : "";
    parts.push_back(device.is_cpu()
                        ? fmt::format("{} {} {}", part.name, format_bytes(part.bytes), of_plan)
                        : fmt::format("{} {}", part.name, of_plan));
  }
  const std::string reserved = device.is_cpu() ? ""
                                               : fmt::format(", {} reserved by the allocator",
                                                             format_bytes(most[kReserved]));
  return {.bytes = most[kPeak],
          .line =
              fmt::format("memory peak  at most {} per rank{}{}{}{}", format_bytes(most[kPeak]),
                          estimated, reserved, parts.empty() ? "" : ": ", fmt::join(parts, ", "))};
}

void MemoryPeakLog::after_step() {
  // Steps that need more may come late: the first that fp16 does not skip, evaluations.
  constexpr double kMore = 1.01;
  constexpr unsigned kLast = 1024;
  if (!std::has_single_bit(++steps_) || steps_ > kLast) return;
  const MemoryPeak peak = measured_peak(*config_, world_, device_);
  if (peak.bytes > kMore * told_) log::info("{}", peak.line); // 0: nobody counts
  told_ = peak.bytes;
}

std::optional<at::Device> out_of_memory(const std::exception& error, at::Device device,
                                        int64_t device_free) {
  const std::string_view what = error.what();
  const auto says = [&](std::string_view words) {
    return what.find(words) != std::string_view::npos;
  };
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr || says("can't allocate memory"))
    return at::Device(at::kCPU);
  // CUDA says the same of pinned memory of the host, to which a run offloads.
  constexpr int64_t kEnough = int64_t{1} << 30;
  if (says("CUDA error: out of memory") && device_free > kEnough) return at::Device(at::kCPU);
  // Libraries take memory of the device, too, and report it in words of their own.
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
      says("CUDA error: out of memory") || says("CUBLAS_STATUS_ALLOC_FAILED") ||
      says("CUDNN_STATUS_ALLOC_FAILED"))
    return device;
  return std::nullopt;
}

std::string out_of_memory_text(const Config& config, const RankPlace& place, at::Device ran_out,
                               const HeldMemory& held) {
  const bool on_host = ran_out.is_cpu();
  const bool of_gpu_rank = held.device.has_value();
  std::string text;
  if (of_gpu_rank) text += on_host ? " on the host" : " on " + ran_out.str();
  double used = 0;
  if (on_host) {
    const HeldMemory host{.host = held.host, .device = {}};
    const Figures figures = figures_of(host);
    used = figures[kPeak];
    const std::string parts =
        largest_parts(parts_of_memory({}, figures.data()), &PartOfMemory::bytes, 3);
    if (!parts.empty())
      text += fmt::format(": this rank used {}, most of it for {}", format_bytes(used), parts);
  } else if (held.device) {
    used = static_cast<double>(held.device->peak_allocated);
    const std::optional<RankMemory> plan = plan_if_any(config, place);
    text += on_the_device(plan ? &*plan : nullptr, *held.device);
  }
  if (on_host && of_gpu_rank)
    return fmt::format("out of memory{}\n  try: {}", text, host_remedy(config));
  // What one large allocation did not get is there for many small ones.
  if (held.device)
    used = std::max(used, static_cast<double>(held.device->reserved + held.device->free));
  // With the least that a process takes, so that the plan for what was held would fit.
  const std::string remedy = memory_remedy(config, place.world_size, {.ranks = 1, .processes = 1},
                                           static_cast<int64_t>(used + kProcessBytes));
  // Much that is reserved and in no tensor lies in pieces that are too small.
  constexpr double kScattered = 0.15;
  const bool scattered = !on_host && held.device &&
                         static_cast<double>(held.device->reserved - held.device->allocated) >
                             kScattered * static_cast<double>(held.device->reserved);
  return fmt::format("out of memory{}\n  try: {}{}", text, remedy,
                     scattered ? ", or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" : "");
}

std::string out_of_memory_text(const Config& config, const comm::Group& world,
                               const std::exception& error) {
  if (!out_of_memory(error, at::kCPU)) return "";
  const at::Device device = rank_device(config.device, world);
  const HeldMemory held = held_memory(device);
  return out_of_memory_text(config, {.rank = world.rank(), .world_size = world.size()},
                            *out_of_memory(error, device, held.device ? held.device->free : 0),
                            held);
}

} // namespace pentatron::trainer
