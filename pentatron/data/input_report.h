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

/// Thrown for bad input that is not to be skipped. Its message ends with `remedy` as the
/// suggestion.
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

  /// With policy `error`, throws BadInputError; with `skip`, counts the input and records its
  /// place.
  void bad(BadInput kind, SkippedInput input);
  /// Adds the counts of a later part of the input.
  void merge(const InputReport& other);

  /// Sets counts by kind and messages, as an earlier process had them.
  void restore_skips(const std::vector<int64_t>& skipped, std::vector<std::string> messages);

  int64_t skipped(BadInput kind) const { return skipped_[static_cast<size_t>(kind)]; }
  int64_t total_skipped() const;
  /// The first few.
  const std::vector<std::string>& messages() const { return messages_; }
  /// All skipped input, in order; at most the first 200,000.
  const std::vector<SkippedInput>& skips() const { return skips_; }
  /// Returns skips() and clears them.
  std::vector<SkippedInput> take_skips();

  /// "4 files, 4 documents, 2.6 MiB of text, 2699498 tokens"; then, if there are any, the skips by
  /// kind with examples, a line each.
  std::string to_string() const;

  /// Returns `message` and, if input was skipped, what was skipped.
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

/// Returns a suggestion, as keys of `train`, for this kind of bad input. Suggests skipping it only
/// if `others`, that is, if the input has other documents.
std::string remedy_for(const SkippedInput& input, bool others);

/// "dataset.path=a.jsonl contains no documents (it is empty)", with what to try: `otherwise`, if
/// nothing was left out.
DataError no_documents(const InputReport& report, std::string_view where,
                       const std::string& otherwise);

} // namespace pentatron::data
