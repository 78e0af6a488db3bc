/// What was read and what was skipped: the policy for bad input, its counts and its locations.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/data/config.h"

namespace pentatron::data {

enum class BadInput : uint8_t { kUtf8, kEmptyFile, kMissingKey, kBadJson, kLongLine, kBrokenFile };
inline constexpr size_t kBadInputKinds = 6;

/// A line, an element of a JSON array or a file that was left out.
struct SkippedInput {
  std::string file;
  int64_t number = 0;   ///< of the line or element, from 1; 0: the whole file
  bool element = false; ///< `number` counts elements of an array
  std::string reason;   ///< continues a sentence: "is not a JSON object"
  std::string key = {}; ///< a key of the line that `option` could name instead
  std::string_view option = "text_key";
  std::string remedy = {}; ///< a change of the line

  /// "a.jsonl: line 3 is not a JSON object".
  std::string to_string() const;
  /// {"file": ..., "line": 3, "reason": ...} without its end of line.
  std::string to_json() const;
};

/// A whole file: "is empty".
SkippedInput skipped_file(const std::filesystem::path& file, std::string_view reason);
/// A file that cannot be read, for the reason in an error's message, which may begin with its name.
SkippedInput damaged_file(const std::filesystem::path& file, std::string_view message);

/// Bad input that nobody asked to leave out; its message ends with `remedy` as what to try.
class BadInputError : public DataError {
 public:
  BadInputError(SkippedInput input, const std::string& remedy);
  const SkippedInput& input() const { return input_; }

 private:
  SkippedInput input_;
};

class InputReport {
 public:
  explicit InputReport(OnBadInput policy = OnBadInput::kError) : policy_(policy) {}

  /// Under `error` throws BadInputError; under `skip` counts it and keeps where it was.
  void bad(BadInput kind, SkippedInput input);
  /// Adds the counts of another part of the input that comes later in order.
  void merge(const InputReport& other);

  /// Sets counts by kind and messages, as an earlier process had them.
  void restore_skips(const std::vector<int64_t>& skipped, std::vector<std::string> messages);

  int64_t skipped(BadInput kind) const { return skipped_[static_cast<size_t>(kind)]; }
  int64_t total_skipped() const;
  /// The first few.
  const std::vector<std::string>& messages() const { return messages_; }
  /// All that was left out, in order; of more than 200,000 the first.
  const std::vector<SkippedInput>& skips() const { return skips_; }
  /// Empties skips(), for a caller that has written them down.
  std::vector<SkippedInput> take_skips();

  /// "4 files, 4 documents, 2.6 MiB of text, 2699498 tokens"; then, if there are any, the skips by
  /// kind with examples, a line each.
  std::string to_string() const;

  /// An error about what is left, and what was skipped, if anything was.
  std::string with_skips(std::string_view message) const;

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
  std::vector<SkippedInput> skips_;
};

/// What to try for input that is bad in this way, as keys of `train`. Leaving it out is proposed
/// only if `others`: there are documents besides.
std::string remedy_for(const SkippedInput& input, bool others);

/// "dataset.path=a.jsonl contains no documents (it is empty)", with what to try: `otherwise`, if
/// nothing was left out.
DataError no_documents(const InputReport& report, std::string_view where,
                       const std::string& otherwise);

} // namespace pentatron::data
