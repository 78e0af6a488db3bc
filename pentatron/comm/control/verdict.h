/// Why a run ends before its ranks have finished.
#pragma once

#include <string>

namespace pentatron::comm::control {

struct Verdict {
  enum class Kind : unsigned char {
    kFinding, ///< mismatch, timeout, deadlock: diagnose.h
    kFailed,  ///< a rank reported an error
    kLost,    ///< a rank's process ended without a word
    kSilent,  ///< a rank's process is stopped, or its machine cannot be reached
    kStart    ///< ranks did not join
  };

  Kind kind = Kind::kFinding;
  int rank = -1;           ///< rank that caused it, or -1
  std::string event;       ///< "rank 2 was killed by signal 9 (SIGKILL)", or the whole sentence
  std::string where;       ///< " while in ...", or empty
  int exit_code = 1;       ///< of the run: 2 if its configuration is not valid
  std::string remedy = {}; ///< lines that say what may have happened and what to try, or empty
  bool near = true;        ///< whether the rank's process was on this machine

  std::string sentence() const { return event + where + remedy; }
};

/// Describes a status of waitpid(): "was killed by signal 9 (SIGKILL)", "ended too early with exit
/// code 3".
std::string describe_exit(int wait_status);

} // namespace pentatron::comm::control
