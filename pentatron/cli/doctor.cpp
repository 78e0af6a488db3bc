#include <CLI/CLI.hpp>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/version.h>

#include <fmt/format.h>

#include "pentatron/base/format.h"
#include "pentatron/cli/commands.h"
#include "pentatron/kernels/common/build.h"
#include "pentatron/kernels/contract.h"
#include "pentatron/kernels/selection/cache.h"
#include "pentatron/kernels/selection/report.h"
#include "pentatron/trainer/kernel_choice.h"
#include "pentatron/trainer/metrics/cpu_share.h"
#include "pentatron/trainer/metrics/hardware.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::cli {

namespace {

/// Prints the entries that run, and how fast; the selection is the one that a run on this machine
/// takes. Returns what is wrong with it; not which are slow, if other programs ran since `begin`.
std::vector<trainer::Finding> print_kernels(const trainer::CpuTime& begin) {
  const std::filesystem::path file = trainer::kernel_cache_file();
  const kernels::FoundSelection found = kernels::find_selection(file);
  const auto measured =
      kernels::measure(kernels::all_op_classes(), {.single_candidates = true, .patience_s = 30});
  fmt::print("\nKernels, fp32 and bf16, on {}:\n{}", counted(at::get_num_threads(), "thread"),
             kernels::selection_table(found.selection, measured));
  std::vector<trainer::Finding> findings;
  if (found.unmeasured > 0)
    findings.push_back({fmt::format("{}, so the fastest kernels for {} of arguments could not be "
                                    "determined",
                                    trainer::disturbance().what, counted(found.unmeasured, "kind")),
                        trainer::disturbance().remedy + ", then start doctor again"});
  if (file.empty()) return findings;
  fmt::print("The choices that could be made are stored in {}; remove the file to measure again.\n",
             file.string());
  if (trainer::find_contention(begin, trainer::read_cpu_time(), at::get_num_threads()))
    return findings;
  for (std::string& slow : kernels::slow_choices(found.selection, measured))
    findings.push_back({std::move(slow), fmt::format("rm {}", file.string())});
  return findings;
}

int doctor() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0); // measuring takes long, also into a file
  trainer::set_compute_threads(0);
  const trainer::CpuTime begin = trainer::read_cpu_time();
  const trainer::Machine machine = trainer::read_machine();
  const bool gpu = at::hasCUDA() && at::detail::getCUDAHooks().deviceCount() > 0;
  fmt::print("{}", trainer::describe(machine));
  const kernels::CpuFeatures& cpu = kernels::cpu_features();
  fmt::print("kernels      {}\n", cpu.amx_bf16      ? "AVX-512 and AMX with bf16"
                                  : cpu.avx512_bf16 ? "AVX-512 with bf16"
                                  : cpu.avx512      ? "AVX-512"
                                  : cpu.avx2        ? "AVX2"
                                                    : "scalar reference");
  fmt::print("torch        {}\n", TORCH_VERSION);
  fmt::print(
      "CUDA         {}\n",
      gpu ? fmt::format("{} device(s)", static_cast<int>(at::detail::getCUDAHooks().deviceCount()))
      : kernels::built_with_cuda() ? "built in, but no device was found"
                                   : "not in this build");
  for (const trainer::Precision p : {trainer::Precision::kFp64, trainer::Precision::kFp32,
                                     trainer::Precision::kBf16, trainer::Precision::kFp16}) {
    const trainer::Peak peak = trainer::measure_gemm_peak(p);
    fmt::print("peak         {}FLOP/s: {}{}\n", format_si(peak.flops), peak.source,
               peak.disturbed
                   ? fmt::format("; {}, so it may be higher", trainer::disturbance().what)
                   : "");
  }
  fmt::print("bandwidth    {}B/s: triad on {}\n",
             format_si(trainer::measure_bandwidth(at::get_num_threads())),
             counted(at::get_num_threads(), "thread"));
  const std::vector<trainer::Finding> of_kernels = print_kernels(begin);
  auto findings = trainer::find_slowdowns(machine, {.threads = at::get_num_threads(),
                                                    .release_build = trainer::is_release_build(),
                                                    .cuda_build = kernels::built_with_cuda(),
                                                    .has_gpu = gpu});
  findings.insert(findings.end(), of_kernels.begin(), of_kernels.end());
  if (const auto contention =
          trainer::find_contention(begin, trainer::read_cpu_time(), at::get_num_threads()))
    findings.insert(findings.begin(), *contention);
  fmt::print("\n{}\n", findings.empty() ? "No problems found." : "Problems found:");
  for (const trainer::Finding& finding : findings)
    fmt::print("- {}\n  try: {}\n", finding.what, finding.remedy);
  return 0;
}

} // namespace

void add_doctor(CLI::App& program, Action& chosen) {
  CLI::App* verb = program.add_subcommand(
      "doctor", "measure the performance of this machine and report what slows it down");
  verb->footer("example: pentatron doctor");
  verb->callback([&chosen] { chosen = doctor; });
}

} // namespace pentatron::cli
