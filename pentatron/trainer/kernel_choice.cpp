#include "pentatron/trainer/kernel_choice.h"

#include <algorithm>
#include <vector>

#include <torch/version.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/sha256.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/kernels/selection/agree.h"
#include "pentatron/kernels/selection/cache.h"
#include "pentatron/kernels/selection/report.h"
#include "pentatron/layers/core_attention.h"
#include "pentatron/trainer/run_files.h"

namespace pentatron::trainer {

namespace fs = std::filesystem;

namespace {

using kernels::Selection;

constexpr const char* kNotExact = "resume is not bit-exact";

/// Rank 0's choice, and where it is from.
struct Source {
  Selection selection;
  std::string origin;
  bool resumed = false;  ///< from the checkpoint
  size_t unmeasured = 0; ///< kernels::FoundSelection::unmeasured
};

/// The classes that a run with this configuration meets.
kernels::MeasureOptions what_matters(const Config& config) {
  using kernels::DType;
  kernels::MeasureOptions options;
  options.types =
      config.dtype == Precision::kFp64 ? std::vector{DType::kFloat64}
      : config.dtype == Precision::kFp32
          ? std::vector{DType::kFloat32}
          : std::vector{DType::kFloat32,
                        config.dtype == Precision::kFp16 ? DType::kFloat16 : DType::kBFloat16};
  for (const auto& [rule, op] : {std::pair{optim::OptimizerKind::kAdam, kernels::Op::kAdamW},
                                 std::pair{optim::OptimizerKind::kSgd, kernels::Op::kSgd},
                                 std::pair{optim::OptimizerKind::kLion, kernels::Op::kLion}})
    if (config.optimizer.optimizer != rule) options.left_out.push_back(op);
  return options;
}

Source choose_here(const Config& config, at::Device device,
                   const std::optional<fs::path>& checkpoint) {
  const StoredKernels stored = checkpoint ? stored_kernels(*checkpoint) : StoredKernels();
  if (!stored.problem.empty()) log::warning("{}: {}", kNotExact, stored.problem);
  if (!device.is_cpu()) return {};
  if (config.kernels == KernelChoice::kOrder) {
    if (stored.text && *stored.text != Selection().text())
      log::warning("{}: kernels=order, but {} was saved with measured kernels", kNotExact,
                   checkpoint->string());
    return {};
  }
  if (stored.text)
    return {.selection = Selection::parse(*stored.text, kKernelsFile),
            .origin = "from " + checkpoint->string(),
            .resumed = true};
  const kernels::FoundSelection found =
      kernels::find_selection(kernel_cache_file(), what_matters(config));
  return {.selection = found.selection,
          .origin = found.measured.empty() ? "measured on this machine before"
                                           : fmt::format("measured in {:.2f} s", found.seconds),
          .unmeasured = found.unmeasured};
}

/// Rank 0's selection without what some rank cannot run; the same on all ranks.
kernels::Agreement agree_with_all(const Selection& mine, const comm::Group& world) {
  const auto runnable = kernels::runnable_entries();
  if (world.size() == 1) return agree(mine, {runnable});
  const bool first = world.rank() == 0;
  const Selection selection = Selection::parse(
      comm::broadcast_text(first ? mine.text() : "", 0, world), "rank 0's kernels");
  // Almost always all machines are equal, and a digest tells that.
  const std::string text = kernels::to_text(runnable);
  const std::vector<std::string> digests = comm::gather_text(sha256(text), world);
  if (std::all_of(digests.begin(), digests.end(),
                  [&](const std::string& d) { return d == digests[0]; }))
    return agree(selection, {runnable});
  std::vector<kernels::RunnableEntries> ranks;
  for (const std::string& theirs : comm::gather_text(text, world))
    ranks.push_back(kernels::parse_runnable_entries(theirs));
  return agree(selection, ranks);
}

} // namespace

fs::path kernel_cache_file() {
  return kernels::selection_cache_file("torch " TORCH_VERSION);
}

StoredKernels stored_kernels(const fs::path& checkpoint) {
  if (!fs::is_directory(checkpoint)) return {};
  try {
    const auto attachments = checkpoint::read_manifest(checkpoint).attachments;
    const auto found = attachments.find(kKernelsFile);
    if (found == attachments.end()) return {};
    std::string text = checkpoint::read_attachment(checkpoint, kKernelsFile, found->second);
    Selection::parse(text, (checkpoint / kKernelsFile).string());
    return {.text = std::move(text), .problem = {}};
  } catch (const Error& error) {
    return {.text = std::nullopt, .problem = error.what()};
  }
}

std::string choose_kernels(const Config& config, at::Device device,
                           const std::optional<fs::path>& checkpoint, const comm::Group& world) {
  const bool first = world.rank() == 0;
  const Source source = first ? choose_here(config, device, checkpoint) : Source();
  const kernels::Agreement agreed = agree_with_all(source.selection, world);
  kernels::use_selection(agreed.selection);
  layers::set_deterministic_attention(config.deterministic);
  if (source.unmeasured > 0)
    log::warning(
        "other programs were running while kernels were measured: {} of arguments use the "
        "first suitable one\n  try: stop other programs; the next start measures them again",
        counted(source.unmeasured, "kind"));
  if (first) {
    if (!agreed.replaced.empty()) {
      const size_t more = agreed.replaced.size() - 1;
      const std::string sentence =
          agreed.replaced[0] + (more > 0 ? fmt::format("; and {} more", more) : "");
      log::warning("{}", source.resumed ? fmt::format("{}: {}", kNotExact, sentence) : sentence);
    }
    if (const std::string text =
            kernels::describe_departures(agreed.selection, what_matters(config));
        !text.empty())
      log::info("kernels, {}: {}", source.origin, text);
  }
  return agreed.selection.text();
}

void choose_kernels_quietly(const Config& config, at::Device device, const comm::Group& world) {
  const Source source = world.rank() == 0 ? choose_here(config, device, std::nullopt) : Source();
  kernels::use_selection(agree_with_all(source.selection, world).selection);
  layers::set_deterministic_attention(config.deterministic);
}

} // namespace pentatron::trainer
