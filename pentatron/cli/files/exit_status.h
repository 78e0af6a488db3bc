/// How commands end: the table in docs/cli.md. A process that a signal ends has no status of its
/// own; a shell shows 128 + its number (130 for Ctrl-C, 143 for SIGTERM).
#pragma once

namespace pentatron::cli {

enum ExitStatus : int {
  kExitSuccess = 0,
  /// It failed while it ran: a file is missing, corrupted or cannot be written, a rank was lost.
  /// Also the answer "no" of `checkpoint verify`, `checkpoint diff` and `checkpoint repair`.
  kExitFailure = 1,
  /// The command line or the configuration is not valid; nothing was done.
  kExitUsage = 2,
};

} // namespace pentatron::cli
