#include "pentatron/cli/ranks.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <thread>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/cli/commands.h"
#include "pentatron/comm/rank_threads.h"
#include "pentatron/comm/supervisor.h"
#include "pentatron/trainer/runtime.h"

namespace pentatron::cli {

namespace {

constexpr int kMaxThreads = 1024; ///< ranks of one process; beyond, groups cost more than models

constexpr int kMaxProcesses = 4096; ///< of one machine

/// This process's arguments for the processes that it starts.
std::vector<std::string> arguments_of_a_rank() {
  std::vector<std::string> kept;
  const std::vector<std::string>& all = command_line();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] == "--ranks" || all[i] == "--backend") {
      ++i;
    } else if (!all[i].starts_with("--ranks=") && !all[i].starts_with("--backend=")) {
      kept.push_back(all[i]);
    }
  }
  return kept;
}

} // namespace

void add_rank_options(CLI::App& verb, RankArguments& arguments) {
  verb.add_option(
          "--ranks", arguments.ranks,
          "number of ranks to start; default: the ranks started by mpirun, torchrun or srun, or 1")
      ->check(CLI::PositiveNumber);
  verb.add_option("--backend", arguments.backend,
                  "how ranks run and communicate; in_process: threads of this program; mpi: "
                  "processes started by mpirun; sockets: processes, without MPI")
      ->check(CLI::IsMember({"in_process", "mpi", "sockets"}));
}

Ranks find_ranks(const RankArguments& arguments, bool starts) {
  Ranks ranks;
  ranks.launch = comm::detect_launch();
  if (arguments.backend == "mpi") ranks.backend = comm::ProcessBackend::kMpi;
  if (arguments.backend == "sockets") ranks.backend = comm::ProcessBackend::kSockets;
  ranks.supervised = comm::supervisor_address(comm::process_environment()).has_value();
  if (ranks.launch.launcher != comm::Launcher::kNone) {
    ranks.start = Ranks::Start::kLaunched;
    ranks.size = ranks.launch.world_size;
    if (!ranks.supervised && arguments.ranks > 0 && arguments.ranks != ranks.size)
      raise<ConfigError>(
          "--ranks {} conflicts with {}, which started {} ranks\n  try: remove --ranks",
          arguments.ranks, config::to_string(ranks.launch.launcher), ranks.size);
    if (arguments.backend == "in_process" && ranks.size > 1)
      raise<ConfigError>("--backend in_process cannot be used with {}: its ranks are threads of "
                         "one process\n  try: remove --backend, or use --ranks {} without {}",
                         config::to_string(ranks.launch.launcher), ranks.size,
                         config::to_string(ranks.launch.launcher));
    return ranks;
  }
  ranks.size = arguments.ranks > 0 ? arguments.ranks : 1;
  if (ranks.backend != comm::ProcessBackend::kAuto) ranks.start = Ranks::Start::kSupervised;
  const bool threads = ranks.start == Ranks::Start::kInProcess;
  if (const int most = threads ? kMaxThreads : kMaxProcesses; starts && ranks.size > most)
    raise<ConfigError>(
        "--ranks {} is more than the {} {} as ranks\n  try: --ranks {}, or processes "
        "of several machines with torchrun, mpirun or srun",
        ranks.size, most,
        threads ? "threads that one process can run" : "processes that one command can start",
        std::max(1u, std::thread::hardware_concurrency()));
  return ranks;
}

int run_ranks(const Ranks& ranks, const trainer::Config& config,
              const std::function<void(const comm::Group& world)>& body) {
  if (ranks.start == Ranks::Start::kSupervised) {
    using Starting = comm::SupervisorOptions::Start;
    return comm::supervise({.ranks = ranks.size,
                            .arguments = arguments_of_a_rank(),
                            .program = {},
                            .start = ranks.backend == comm::ProcessBackend::kMpi
                                         ? Starting::kMpirun
                                         : Starting::kProcesses,
                            .dist = config.dist,
                            .acknowledgement = ranks.acknowledgement});
  }
  trainer::set_compute_threads(config.train.num_threads, ranks.launch.local_size);
  const comm::Launch& launch = ranks.launch;
  const bool by_torchrun =
      launch.launcher == comm::Launcher::kTorchrun && !launch.job.empty() && launch.local_size > 1;
  if (const std::string warning = trainer::thread_warning(
          config.train.num_threads,
          trainer::own_processors(ranks.start == Ranks::Start::kLaunched ? launch.local_size
                                                                         : ranks.size),
          by_torchrun);
      !warning.empty() && trainer::on_cpu(config.device) && launch.rank == 0)
    log::warning("{}", warning);
  if (ranks.start == Ranks::Start::kLaunched && ranks.size > 1) {
    comm::run_process_rank(ranks.launch,
                           {.backend = ranks.backend,
                            .dist = config.dist,
                            .gpu = trainer::choose_gpu(config, ranks.launch)},
                           body);
  } else if (ranks.size == 1) {
    body({});
  } else {
    comm::run_ranks(ranks.size,
                    {.threads_per_rank =
                         static_cast<int>(trainer::wanted_threads(config.train.num_threads).number),
                     .timeout_s = config.dist.timeout_s,
                     .heartbeat_s = config.dist.heartbeat_s},
                    body);
  }
  return 0;
}

OneVoice::OneVoice(const Ranks& ranks) {
  log::set_thread_output(nullptr, !ranks.supervised && ranks.launch.rank == 0);
}

OneVoice::~OneVoice() {
  log::set_thread_output(nullptr, true);
}

RankLog::RankLog(const std::string& folder, const comm::Group& world) {
  if (world.size() == 1) return;
  if (!folder.empty()) {
    std::error_code ignored;
    std::filesystem::create_directories(folder, ignored);
    const auto file = std::filesystem::path(folder) / fmt::format("rank_{:05}.log", world.rank());
    file_ = std::fopen(file.c_str(), "a");
    if (file_ == nullptr)
      log::warning("cannot write {}: {}; this rank has no log file", file.string(),
                   std::strerror(errno));
  }
  log::set_thread_output(file_, world.rank() == 0);
  log::set_thread_prefix(world.rank() == 0 ? "" : fmt::format("rank {}", world.rank()));
}

RankLog::~RankLog() {
  log::set_thread_output(nullptr, true);
  log::set_thread_prefix("");
  if (file_ != nullptr) std::fclose(file_);
}

} // namespace pentatron::cli
