/// Tests that start the program without a shell: with its process, its status and its streams
/// apart.
#pragma once

#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/files.h"

namespace pentatron::test {

inline const std::filesystem::path kData = PENTATRON_TEST_DATA;
inline const std::filesystem::path kRoot = kData / "../..";

struct Result {
  int status = 0; ///< 128 + the signal that ended it
  std::string out, err;
};

class StartedProgram : public testing::Test {
 protected:
  /// The file of the program; a copy that starts sooner (tests/support/prepared) where a test wants
  /// no process of its own.
  virtual std::string program() const { return PENTATRON_PROGRAM; }
  pid_t start(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), program());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    const std::string out = folder / "out", err = folder / "err", here = folder;
    const pid_t child = ::fork();
    if (child == 0) {
      // Only what is safe between fork and exec. Signals as in a terminal: nohup ignores some, and
      // programs keep what they inherit.
      for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) ::signal(number, SIG_DFL);
      const int to = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      const int errors = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
      if (::chdir(here.c_str()) != 0 || ::dup2(to, STDOUT_FILENO) < 0 ||
          ::dup2(errors, STDERR_FILENO) < 0)
        ::_exit(99);
      ::execv(argv[0], argv.data());
      ::_exit(98);
    }
    return child;
  }
  Result finish(pid_t child) const {
    int status = 0;
    ::waitpid(child, &status, 0);
    return {.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            .out = content_of(folder / "out"),
            .err = content_of(folder / "err")};
  }
  Result run(std::vector<std::string> arguments) const {
    return finish(start(std::move(arguments)));
  }
  /// Whether it becomes true within so many seconds.
  static bool within(double seconds, const std::function<bool()>& condition) {
    for (double waited = 0; waited < seconds; waited += 0.005) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return condition();
  }

  /// A run of a tiny model on the text of the repository.
  std::vector<std::string> tiny(std::vector<std::string> more) const {
    std::vector<std::string> all = {"train",
                                    "model.num_layers=1",
                                    "model.hidden_size=32",
                                    "model.num_attention_heads=2",
                                    "train.seq_length=16",
                                    "train.micro_batch_size=2",
                                    "train.global_batch_size=2",
                                    "train.num_threads=1",
                                    "logger.peak_tflops=1",
                                    "dataset.path=" + (kRoot / "README.md").string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  const TemporaryFolder temporary;
  const std::filesystem::path folder = temporary.path();
};

} // namespace pentatron::test
