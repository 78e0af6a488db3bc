#include <CLI/CLI.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fmt/format.h>
#include <unistd.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/checkpoint/hf/hf_config.h"
#include "pentatron/cli/commands.h"
#include "pentatron/comm/process_ranks.h"
#include "pentatron/comm/rank_threads.h"
#include "pentatron/comm/supervisor.h"
#include "pentatron/data/tokenizer/stream_decoder.h"
#include "pentatron/generate/generate.h"
#include "pentatron/trainer/metrics/train_log.h"
#include "pentatron/trainer/runtime.h"
#include "pentatron/trainer/train.h"

namespace pentatron::cli {

namespace {

struct TrainArguments {
  std::vector<std::string> config;
  std::string hf;
  int ranks = 0; ///< 0: as the launcher says, else 1
  std::string backend;
};

/// The text after an end of document, drawn from the trained model; every rank takes part.
void print_sample(trainer::Trainer& trainer, bool main_rank) {
  const int64_t tokens = trainer.config().train.sample_tokens;
  if (tokens == 0) return;
  const data::Tokenizer& tokenizer = trainer.tokenizer();
  data::StreamDecoder stream(tokenizer);
  std::string text;
  generate::generate(trainer.model(), {tokenizer.eod()},
                     {.max_tokens = tokens,
                      .seed = trainer.config().seed,
                      .context = trainer.config().train.seq_length,
                      .stop_token = tokenizer.eod(),
                      .num_tokens = tokenizer.vocab_size()},
                     [&](int64_t token) { text += stream.push(token); });
  text += stream.finish();
  if (main_rank) fmt::print("\nA sample of what the model writes:\n\n{}\n", for_terminal(text));
}

/// Of several ranks only the first speaks on the console; each has a log file of its own.
class RankLog {
 public:
  RankLog(const std::string& folder, const comm::Group& world) {
    if (world.size() == 1) return;
    if (!folder.empty()) {
      std::filesystem::create_directories(folder);
      const auto file = std::filesystem::path(folder) / fmt::format("rank_{:05}.log", world.rank());
      file_ = std::fopen(file.c_str(), "a");
      if (file_ == nullptr)
        raise<ConfigError>("{} cannot be written: {}\n  try: another logger.dir", file.string(),
                           std::strerror(errno));
    }
    log::set_thread_output(file_, world.rank() == 0);
    log::set_thread_prefix(world.rank() == 0 ? "" : fmt::format("rank {}", world.rank()));
  }
  ~RankLog() {
    log::set_thread_output(nullptr, true);
    log::set_thread_prefix("");
    if (file_ != nullptr) std::fclose(file_);
  }
  RankLog(const RankLog&) = delete;

 private:
  std::FILE* file_ = nullptr;
};

void print_report(const trainer::TrainReport& report) {
  const auto line = [](const char* what, const std::filesystem::path& path) {
    if (!path.empty()) fmt::print("{:<12} {}\n", what, path.string());
  };
  fmt::print("\niterations   {}\n", report.iterations);
  if (report.last_loss) fmt::print("loss         {:.4f}\n", *report.last_loss);
  if (report.validation_loss)
    fmt::print("validation   {:.4f} (perplexity {:.4f})\n", *report.validation_loss,
               trainer::perplexity(*report.validation_loss));
  if (report.unigram_entropy)
    fmt::print("unigram      {:.4f} (a model that only knows how often each token occurs)\n",
               *report.unigram_entropy);
  line("metrics", report.metrics);
  line("plot", report.plot);
  line("checkpoint", report.checkpoint);
}

/// One rank's whole run.
void train_rank(const trainer::Config& config, const comm::Group& world) {
  const bool main_rank = world.rank() == 0;
  const RankLog rank_log(config.logger.dir, world);
  trainer::Trainer trainer(config, world);
  log::info("model: {} parameters, {} layers, hidden size {}",
            format_count(static_cast<double>(config.model.num_parameters())),
            config.model.num_layers, config.model.hidden_size);
  const bool terminal = ::isatty(STDOUT_FILENO) == 1 && ::isatty(STDERR_FILENO) == 1;
  const trainer::TrainReport report = trainer.run({.progress_bar = terminal});
  if (report.reason == trainer::StopReason::kSignal)
    log::info("stopped by a signal after iteration {}{}", report.iterations,
              report.checkpoint.empty() ? "; nothing is saved without checkpoint.save" : "");
  if (!report.last_loss && report.iterations > 0)
    log::info("nothing is left to do: train.train_iters ends at iteration {}", report.iterations);
  if (report.reason != trainer::StopReason::kSignal) print_sample(trainer, main_rank);
  if (main_rank) print_report(report);
}

/// How the ranks of a run come into being.
enum class Start : uint8_t { kInProcess, kSupervised, kLaunched };

struct Ranks {
  Start start = Start::kInProcess;
  int size = 1;
  comm::Launch launch;
  comm::ProcessBackend backend = comm::ProcessBackend::kAuto;
};

Ranks find_ranks(const TrainArguments& arguments) {
  Ranks ranks;
  ranks.launch = comm::detect_launch();
  if (arguments.backend == "mpi") ranks.backend = comm::ProcessBackend::kMpi;
  if (arguments.backend == "sockets") ranks.backend = comm::ProcessBackend::kSockets;
  const bool supervised_rank = comm::supervisor_address(comm::process_environment()).has_value();
  if (ranks.launch.launcher != comm::Launcher::kNone) {
    ranks.start = Start::kLaunched;
    ranks.size = ranks.launch.world_size;
    if (!supervised_rank && arguments.ranks > 0 && arguments.ranks != ranks.size)
      raise<ConfigError>("--ranks {} under {}, which has started {} ranks\n  try: no --ranks",
                         arguments.ranks, config::to_string(ranks.launch.launcher), ranks.size);
    if (arguments.backend == "in_process" && ranks.size > 1)
      raise<ConfigError>("--backend in_process under {}: its ranks are threads of one process\n  "
                         "try: no --backend, or --ranks {} without {}",
                         config::to_string(ranks.launch.launcher), ranks.size,
                         config::to_string(ranks.launch.launcher));
    return ranks;
  }
  ranks.size = arguments.ranks > 0 ? arguments.ranks : 1;
  if (ranks.backend != comm::ProcessBackend::kAuto) ranks.start = Start::kSupervised;
  return ranks;
}

int train(const TrainArguments& arguments) {
  const Ranks ranks = find_ranks(arguments);
  const ConfigArguments split = split_arguments(arguments.config);
  trainer::Config base;
  if (!arguments.hf.empty()) {
    base.model = checkpoint::read_hf_config(arguments.hf).config;
    base.checkpoint.load = "hf:" + arguments.hf;
  }
  const trainer::Config config =
      trainer::load_config(split.files.empty() ? std::nullopt : std::optional(split.files[0]),
                           split.overrides, std::move(base), ranks.size);
  if (ranks.start == Start::kSupervised) {
    std::vector<std::string> command = {"train"};
    command.insert(command.end(), arguments.config.begin(), arguments.config.end());
    if (!arguments.hf.empty()) command.insert(command.end(), {"--hf", arguments.hf});
    using Starting = comm::SupervisorOptions::Start;
    return comm::supervise({.ranks = ranks.size,
                            .arguments = command,
                            .program = {},
                            .start = ranks.backend == comm::ProcessBackend::kMpi
                                         ? Starting::kMpirun
                                         : Starting::kProcesses,
                            .dist = config.dist});
  }
  trainer::install_signal_handlers();
  trainer::set_compute_threads(config.train.num_threads, ranks.launch.local_size);
  const auto body = [&](const comm::Group& world) { train_rank(config, world); };
  if (ranks.start == Start::kLaunched && ranks.size > 1) {
    comm::run_process_rank(ranks.launch,
                           {.backend = ranks.backend,
                            .dist = config.dist,
                            .gpu = trainer::choose_gpu(config.device, ranks.launch)},
                           body);
  } else if (ranks.size == 1) {
    body({});
  } else {
    comm::run_ranks(ranks.size,
                    {.threads_per_rank = static_cast<int>(config.train.num_threads),
                     .timeout_s = config.dist.timeout_s,
                     .heartbeat_s = config.dist.heartbeat_s},
                    body);
  }
  return 0;
}

} // namespace

void add_train(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* verb = program.add_subcommand("train", "train a model");
  verb->add_option("config", arguments->config,
                   "a YAML file and key=value overrides (see: pentatron config help)");
  verb->add_option(
      "--hf", arguments->hf,
      "start from a Hugging Face folder; short for checkpoint.load=hf:DIR with its model");
  verb->add_option("--ranks", arguments->ranks,
                   "ranks to start; default: those that mpirun, torchrun or srun has started, or 1")
      ->check(CLI::Range(1, 1 << 16));
  verb->add_option(
          "--backend", arguments->backend,
          "in_process: ranks are threads of this program; mpi: processes, started by mpirun; "
          "sockets: processes that need no MPI")
      ->check(CLI::IsMember({"in_process", "mpi", "sockets"}));
  verb->footer("examples:\n"
               "  pentatron train examples/quickstart.yaml train.train_iters=500\n"
               "  pentatron train my.yaml checkpoint.save=run checkpoint.load=run   (resume)\n"
               "  pentatron train my.yaml --ranks 4 parallel.tensor_model_parallel_size=2   (4 "
               "ranks: 2 tensor x 2 data)\n"
               "  pentatron train my.yaml checkpoint.load=run train.train_iters=0 "
               "train.eval_interval=1   (only evaluate)");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return train(*arguments); }; });
}

} // namespace pentatron::cli
