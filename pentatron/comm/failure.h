/// The error of a failed rank, in a form that another rank can throw again.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace pentatron::comm {

enum class FailureKind : uint8_t { kError, kConfig, kShape, kComm, kData, kCheckpoint };

struct Failure {
  FailureKind kind = FailureKind::kError;
  std::string sentence; ///< without a backtrace

  static Failure of(const std::exception_ptr& reason);
  /// Throws the error of this kind, with `prefix` before the sentence.
  [[noreturn]] void raise(const std::string& prefix) const;
};

} // namespace pentatron::comm
