/// What was read and what was left out: the policy for bad input and its counts.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "pentatron/data/config.h"

namespace pentatron::data {

enum class BadInput : uint8_t { kUtf8, kEmptyFile, kMissingKey, kBadJson, kLongLine, kBrokenFile };
inline constexpr size_t kBadInputKinds = 6;

class InputReport {
 public:
  explicit InputReport(OnBadInput policy = OnBadInput::kError) : policy_(policy) {}

  /// Under `error` throws DataError(message); under `skip` counts it and keeps the first few
  /// messages.
  void bad(BadInput kind, std::string message);
  /// Adds the counts of another part of the input that comes later in order.
  void merge(const InputReport& other);

  /// Sets counts by kind and messages, as an earlier process had them.
  void restore_skips(const std::vector<int64_t>& skipped, std::vector<std::string> messages);

  int64_t skipped(BadInput kind) const { return skipped_[static_cast<size_t>(kind)]; }
  int64_t total_skipped() const;
  const std::vector<std::string>& messages() const { return messages_; }

  /// "4 files, 4 documents, 2.70 MB of text, 2699498 tokens"; then, if there are any, the skips by
  /// kind with examples, a line each.
  std::string to_string() const;

  int64_t files = 0;
  int64_t documents = 0;
  int64_t empty_documents = 0; ///< documents without text: left out, never an error
  int64_t ignored_files = 0;   ///< files in a folder whose ending is of no known kind
  int64_t text_bytes = 0;
  int64_t tokens = 0;

 private:
  OnBadInput policy_;
  std::array<int64_t, kBadInputKinds> skipped_{};
  std::vector<std::string> messages_;
};

} // namespace pentatron::data
