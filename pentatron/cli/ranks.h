/// Starts the ranks of a command: threads of this program, processes that it starts, or processes
/// that a launcher has started.
#pragma once

#include <functional>
#include <string>

#include "pentatron/comm/dist_config.h"
#include "pentatron/comm/group.h"
#include "pentatron/comm/launch.h"
#include "pentatron/comm/process_ranks.h"
#include "pentatron/trainer/config.h"

namespace CLI {
class App;
}

namespace pentatron::cli {

struct RankArguments {
  int ranks = 0; ///< 0: the number given by the launcher, or 1 without one
  std::string backend;
};
/// --ranks and --backend.
void add_rank_options(CLI::App& verb, RankArguments& arguments);

struct Ranks {
  enum class Start : uint8_t { kInProcess, kSupervised, kLaunched };
  Start start = Start::kInProcess;
  int size = 1;
  bool supervised = false; ///< this process is a rank that another pentatron has started
  comm::Launch launch;
  comm::ProcessBackend backend = comm::ProcessBackend::kAuto;
  const char* acknowledgement = nullptr; ///< of ranks that this process starts, see supervise()
};
/// Throws ConfigError where the arguments contradict the launcher, or, if the ranks are to start,
/// where they are too many for this program.
Ranks find_ranks(const RankArguments& arguments, bool starts = true);

/// Runs `body` on every rank: on the threads of this process, or in new processes that are started
/// with the same command line. Returns the exit status.
int run_ranks(const Ranks& ranks, const trainer::Config& config,
              const std::function<void(const comm::Group& world)>& body);

/// Of several processes that do the same before they know each other, one writes warnings to the
/// console: that which starts the others, else rank 0.
class OneVoice {
 public:
  explicit OneVoice(const Ranks& ranks);
  ~OneVoice();
  OneVoice(const OneVoice&) = delete;
};

/// Sets up logging for the calling thread. With several ranks, only rank 0 writes to the console,
/// and each rank writes its own log file in `folder` (empty: no log files).
class RankLog {
 public:
  RankLog(const std::string& folder, const comm::Group& world);
  ~RankLog();
  RankLog(const RankLog&) = delete;

 private:
  std::FILE* file_ = nullptr;
};

} // namespace pentatron::cli
