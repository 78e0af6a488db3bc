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
#include "pentatron/trainer/metrics/hardware.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::cli {

namespace {

int doctor() {
  trainer::set_compute_threads(0);
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
      : kernels::built_with_cuda() ? "in the build, no device"
                                   : "not in this build");
  for (const trainer::Precision p :
       {trainer::Precision::kFp64, trainer::Precision::kFp32, trainer::Precision::kBf16}) {
    const trainer::Peak peak = trainer::measure_gemm_peak(p);
    fmt::print("peak         {}FLOP/s: {}\n", format_si(peak.flops), peak.source);
  }
  fmt::print("bandwidth    {}B/s: triad on {} threads\n",
             format_si(trainer::measure_bandwidth(at::get_num_threads())), at::get_num_threads());
  const auto findings =
      trainer::find_slowdowns(machine, {.threads = at::get_num_threads(),
                                        .release_build = trainer::is_release_build(),
                                        .cuda_build = kernels::built_with_cuda(),
                                        .has_gpu = gpu});
  fmt::print("\n{}\n", findings.empty() ? "Nothing known would make this machine faster."
                                        : "What would make this machine faster:");
  for (const trainer::Finding& finding : findings)
    fmt::print("- {}\n  try: {}\n", finding.what, finding.remedy);
  return 0;
}

} // namespace

void add_doctor(CLI::App& program, Action& chosen) {
  CLI::App* verb = program.add_subcommand(
      "doctor", "what this machine can do, measured, and what holds it back");
  verb->footer("example: pentatron doctor");
  verb->callback([&chosen] { chosen = doctor; });
}

} // namespace pentatron::cli
