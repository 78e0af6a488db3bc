/// Whether a schedule can be run: the verdict of real execution, without executing.
#pragma once

#include <string>
#include <vector>

#include "pentatron/parallel/pipeline/schedule/schedule.h"

namespace pentatron::pipeline {

/// The most that a rank holds at any time, in (stage, microbatch) pairs.
struct Peak {
  int live = 0;     ///< F has run, B or W has not: activations of the stage are kept
  int deferred = 0; ///< of these, I has run and W has not
  bool operator==(const Peak&) const = default;
};

struct Verdict {
  enum class Kind {
    kOk,
    kBroken,   ///< some rank does what it cannot, or at the end something is missing or left over
    kDeadlock, ///< nothing is wrong where it stops, but every rank that is not done waits
  };
  Kind kind = Kind::kOk;
  std::string problem;     ///< one sentence about the first violation; empty if valid
  std::vector<Peak> peaks; ///< by rank, as far as it came

  bool ok() const { return kind == Kind::kOk; }
};

/// What a schedule is for.
enum class Purpose {
  kTraining,   ///< all passes
  kEvaluation, ///< forwards alone: no backward pass
};

/// How the messages of a lowered schedule travel.
enum class Messages {
  kBuffered, ///< a send never waits: ranks on CPUs
  /// A send waits for its receive. The messages of each ordered pair of ranks are a stream, in
  /// which one starts when the one before it has ended: ranks on GPUs, with a channel (channels.h)
  /// for each pair.
  kChannels,
  kOneStream, ///< the same with one stream for all messages of a rank, which deadlocks easily
};

/// Runs every rank's list as far as it goes and looks at what is left.
///
/// Computation: F needs the activation of stage-1, B and I the stage's own F and the gradient of
/// stage+1, W the stage's own I. An overlapped pair needs what both need. Every (stage, microbatch)
/// gets one F and either one B or one I and one W.
///
/// As generated (lowered = false), a result is there for its neighbour when its pass has run.
///
/// Lowered: a kSend puts a result into the queue from its rank to `peer` and never waits; a kRecv
/// takes the next place in that queue, once for each message; the pass waits until its message has
/// come, which must be the right one. Between stages of one rank a result is handed over directly.
/// kFree comes once, after the output's last use. At the end queues are empty and nothing is left.
///
/// Other `messages` than kBuffered are tried after that, by rendezvous.h; they concern lowered
/// schedules alone.
Verdict check(const Schedule& schedule, Purpose purpose = Purpose::kTraining,
              Messages messages = Messages::kBuffered);

/// check() as an error, on CPUs and on GPUs. Throws ConfigError with the verdict's sentence.
void require_valid(const Schedule& schedule);

} // namespace pentatron::pipeline
