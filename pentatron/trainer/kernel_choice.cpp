#include "pentatron/trainer/kernel_choice.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <torch/version.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/sha256.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/checkpoint/sharded/spares.h"
#include "pentatron/comm/gather_text.h"
#include "pentatron/comm/long_work.h"
#include "pentatron/kernels/selection/agree.h"
#include "pentatron/kernels/selection/cache.h"
#include "pentatron/kernels/selection/report.h"
#include "pentatron/layers/core_attention.h"
#include "pentatron/nn/ops/kernel_args.h"
#include "pentatron/trainer/described_run.h"
#include "pentatron/trainer/run_files.h"
#include "pentatron/trainer/runtime.h"

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

/// The operator that updates weights; LibTorch's update those of Adafactor.
std::optional<kernels::Op> update_op(optim::OptimizerKind kind) {
  using enum optim::OptimizerKind;
  switch (kind) {
  case kAdam:
  case kMuon: // all but matrices
  case kAdaptiveMuon:
    return kernels::Op::kAdamW;
  case kSgd:
    return kernels::Op::kSgd;
  case kLion:
    return kernels::Op::kLion;
  case kAdafactor:
    break;
  }
  return std::nullopt;
}

/// The classes that a run with this configuration meets.
kernels::MeasureOptions what_matters(const Config& config) {
  using kernels::DType, kernels::Op;
  const optim::OptimizerConfig& optimizer = config.optimizer;
  const DType own = nn::kernel_dtype(scalar_type(config.dtype));
  std::set<DType> types = {own, kernels::acc_dtype(own)};
  // FP8 and FP4 numbers are multiplied as bf16, but in fp64 models.
  if (config.mixed_precision.low_precision() && own != DType::kFloat64)
    types.insert(DType::kBFloat16);
  if (optimizer.muon_bf16 && (optimizer.optimizer == optim::OptimizerKind::kMuon ||
                              optimizer.optimizer == optim::OptimizerKind::kAdaptiveMuon))
    types.insert(DType::kBFloat16);
  kernels::MeasureOptions options;
  options.types.assign(types.begin(), types.end());
  for (const Op op : {Op::kAdamW, Op::kSgd, Op::kLion})
    if (update_op(optimizer.optimizer) != op) options.left_out.push_back(op);
  return options;
}

Source choose_here(const Config& config, at::Device device,
                   const std::optional<fs::path>& checkpoint, const comm::Group& world) {
  const StoredKernels stored = checkpoint ? stored_kernels(*checkpoint) : StoredKernels();
  if (!stored.problem.empty()) log::warning("{}: {}", kNotExact, stored.problem);
  if (!device.is_cpu()) return {};
  const bool order = config.kernels == KernelChoice::kOrder;
  if (stored.text) {
    Selection selection = Selection::parse(*stored.text, kKernelsFile);
    if (!order || !stored.measured)
      return {.selection = std::move(selection),
              .origin = "from " + checkpoint->string(),
              .resumed = true};
    if (const std::string text = kernels::describe_departures(selection, what_matters(config));
        !text.empty())
      log::warning("{}: kernels=order, but {} was saved with kernels=auto, which chose {}\n"
                   "  try: kernels=auto",
                   kNotExact, checkpoint->string(), text);
  }
  if (order) return {.selection = {}, .origin = "the first that all ranks can run"};
  const comm::LongWork work(world, "the measurement of kernels");
  kernels::MeasureOptions options = what_matters(config);
  options.progress = [&] { work.progress(); };
  const kernels::FoundSelection found = kernels::find_selection(kernel_cache_file(), options);
  return {.selection = found.selection,
          .origin = found.measured.empty() ? "measured on this machine before"
                                           : fmt::format("measured in {:.2f} s", found.seconds),
          .unmeasured = found.unmeasured};
}

/// What the ranks can run; once if all can run the same.
std::vector<kernels::RunnableEntries> entries_of_ranks(const comm::Group& world) {
  const auto runnable = kernels::runnable_entries();
  if (world.size() == 1) return {runnable};
  // Almost always all machines are equal, and a digest tells that.
  const std::string text = kernels::to_text(runnable);
  const std::vector<std::string> digests = comm::gather_text(sha256(text), world);
  if (std::all_of(digests.begin(), digests.end(),
                  [&](const std::string& d) { return d == digests[0]; }))
    return {runnable};
  std::vector<kernels::RunnableEntries> ranks;
  for (const std::string& theirs : comm::gather_text(text, world))
    ranks.push_back(kernels::parse_runnable_entries(theirs));
  return ranks;
}

Selection selection_of_first(const Selection& mine, const comm::Group& world) {
  if (world.size() == 1) return mine;
  const std::string text = comm::broadcast_text(world.rank() == 0 ? mine.text() : "", 0, world);
  return Selection::parse(text, "rank 0's kernels");
}

/// A sentence about choices that a rank cannot run, of the classes that matter; empty: none.
std::string describe_replaced(const std::map<std::string, std::string>& replaced,
                              const kernels::MeasureOptions& options) {
  std::vector<std::string> sentences;
  for (const auto& [name, sentence] : replaced) {
    const std::optional<kernels::OpClass> c = kernels::find_op_class(name);
    if (!c || !is_left_out(*c, options)) sentences.push_back(sentence);
  }
  if (sentences.empty()) return {};
  const size_t more = sentences.size() - 1;
  return sentences[0] + (more > 0 ? fmt::format("; and {} more", more) : "");
}

void use(const Selection& selection, const Config& config) {
  kernels::use_selection(selection);
  layers::set_deterministic_attention(config.deterministic);
}

} // namespace

fs::path kernel_cache_file() {
  return kernels::selection_cache_file("torch " TORCH_VERSION);
}

StoredKernels stored_kernels(const fs::path& checkpoint) {
  if (!fs::is_directory(checkpoint)) return {};
  try {
    const checkpoint::Manifest manifest = checkpoint::read_manifest(checkpoint);
    const auto found = manifest.attachments.find(kKernelsFile);
    if (found == manifest.attachments.end()) return {};
    const bool copied = checkpoint::has_spare(checkpoint, manifest, kKernelsFile);
    std::string text;
    try {
      text = checkpoint::read_attachment(checkpoint, kKernelsFile, found->second);
    } catch (const Error& error) {
      if (!copied) throw;
      raise<CheckpointError>("{}\n  try: pentatron checkpoint repair {}", error.what(),
                             shell_word(checkpoint.string()));
    }
    Selection::parse(text, (checkpoint / kKernelsFile).string());
    const bool measured = stored_config(manifest.config_yaml).kernels == KernelChoice::kAuto;
    return {.text = std::move(text), .measured = measured, .problem = {}};
  } catch (const Error& error) {
    return {.text = std::nullopt, .problem = error.what()};
  }
}

std::string choose_kernels(const Config& config, at::Device device,
                           const std::optional<fs::path>& checkpoint, const comm::Group& world) {
  const bool first = world.rank() == 0;
  const kernels::MeasureOptions options = what_matters(config);
  const Source source = first ? choose_here(config, device, checkpoint, world) : Source();
  const Selection wanted = selection_of_first(source.selection, world);
  const std::vector<kernels::RunnableEntries> ranks = entries_of_ranks(world);
  const kernels::Agreement agreed = agree(wanted, ranks);
  // What list order takes is named, too: on another machine it may be something else.
  const Selection selection =
      device.is_cpu() ? with_list_order(agreed.selection, ranks, options) : agreed.selection;
  use(selection, config);
  if (source.unmeasured > 0) {
    const auto [what, remedy] = disturbance();
    log::warning(
        "{} while kernels were measured: the first suitable one is used for {} of "
        "arguments\n  try: {}; a new run measures them, one that resumes keeps its kernels",
        what, counted(source.unmeasured, "kind"), remedy);
  }
  if (first) {
    if (const std::string text = describe_replaced(agreed.replaced, options); !text.empty())
      log::warning("{}", source.resumed ? fmt::format("{}: {}", kNotExact, text) : text);
    if (const std::string text = kernels::describe_departures(selection, options); !text.empty())
      log::info("kernels, {}: {}", source.origin, text);
  }
  return selection.text();
}

void choose_kernels_quietly(const Config& config, at::Device device, const comm::Group& world) {
  const Source source =
      world.rank() == 0 ? choose_here(config, device, std::nullopt, world) : Source();
  const Selection wanted = selection_of_first(source.selection, world);
  use(agree(wanted, entries_of_ranks(world)).selection, config);
}

} // namespace pentatron::trainer
