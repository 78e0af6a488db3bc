#include "pentatron/data/input_report.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/json.h"

namespace pentatron::data {

namespace {

constexpr size_t kMessagesKept = 5;
constexpr size_t kSkipsKept = 200'000; // in memory; preprocess writes them down block by block
struct KindName {
  const char *one, *many; ///< behind the count
};
constexpr std::array<KindName, kBadInputKinds> kKindNames = {{
    {"with invalid UTF-8", "with invalid UTF-8"},
    {"empty file", "empty files"},
    {"without the key", "without the key"},
    {"that is not a JSON object", "that are not JSON objects"},
    {"line too long", "lines too long"},
    {"corrupted file", "corrupted files"},
}};

std::string with_remedy(const std::string& message, const std::string& remedy) {
  return remedy.empty() ? message : message + "\n  try: " + remedy;
}

} // namespace

std::string SkippedInput::to_string() const {
  if (number == 0) return fmt::format("{} {}", file, reason);
  return fmt::format("{}: {} {} {}", file, element ? "element" : "line", number, reason);
}

std::string SkippedInput::to_json() const {
  Json json = {{"file", file}, {"reason", reason}};
  if (number > 0) json[element ? "element" : "line"] = number;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

SkippedInput skipped_file(const std::filesystem::path& file, std::string_view reason) {
  return {.file = file.string(), .reason = std::string(reason)};
}

SkippedInput damaged_file(const std::filesystem::path& file, std::string_view message) {
  SkippedInput input{.file = file.string(), .reason = std::string(message)};
  if (message.starts_with(input.file + " ")) {
    input.reason = message.substr(input.file.size() + 1);
  } else if (message.starts_with(input.file + ": ")) {
    input.reason = fmt::format("cannot be read: {}", message.substr(input.file.size() + 2));
  } else {
    input.reason = fmt::format("cannot be read: {}", message);
  }
  return input;
}

BadInputError::BadInputError(SkippedInput input, const std::string& remedy)
    : DataError(with_remedy(input.to_string(), remedy)), input_(std::move(input)) {}

std::string remedy_for(const SkippedInput& input, bool others) {
  if (others) return "dataset.on_bad_input=skip to leave such input out";
  if (!input.key.empty()) return fmt::format("dataset.{}={}", input.option, input.key);
  return input.remedy;
}

DataError no_documents(const InputReport& report, std::string_view where,
                       const std::string& otherwise) {
  std::string why = "it is empty", remedy;
  if (!report.skips().empty()) {
    why = fmt::format("{} skipped, the first: {}", report.total_skipped(),
                      report.skips()[0].to_string());
    remedy = remedy_for(report.skips()[0], false);
  } else if (report.empty_documents > 0) {
    why = counted(report.empty_documents, "empty document");
  }
  return DataError(with_remedy(fmt::format("{} contains no documents ({})", where, why),
                               remedy.empty() ? otherwise : remedy));
}

void InputReport::bad(BadInput kind, SkippedInput input) {
  if (policy_ == OnBadInput::kError) {
    const std::string remedy = remedy_for(input, documents > 0);
    throw BadInputError(std::move(input), remedy);
  }
  ++skipped_[static_cast<size_t>(kind)];
  if (messages_.size() < kMessagesKept) messages_.push_back(input.to_string());
  if (skips_.size() < kSkipsKept) skips_.push_back(std::move(input));
}

std::vector<SkippedInput> InputReport::take_skips() {
  return std::exchange(skips_, {});
}

void InputReport::merge(const InputReport& other) {
  files += other.files;
  documents += other.documents;
  empty_documents += other.empty_documents;
  ignored_files += other.ignored_files;
  text_bytes += other.text_bytes;
  tokens += other.tokens;
  for (size_t i = 0; i < kBadInputKinds; ++i) skipped_[i] += other.skipped_[i];
  for (const std::string& message : other.messages_) {
    if (messages_.size() < kMessagesKept) messages_.push_back(message);
  }
  for (const SkippedInput& input : other.skips_) {
    if (skips_.size() < kSkipsKept) skips_.push_back(input);
  }
}

void InputReport::restore_skips(const std::vector<int64_t>& skipped,
                                std::vector<std::string> messages) {
  for (size_t i = 0; i < std::min(skipped.size(), kBadInputKinds); ++i) skipped_[i] = skipped[i];
  messages_ = std::move(messages);
}

int64_t InputReport::total_skipped() const {
  return std::accumulate(skipped_.begin(), skipped_.end(), int64_t{0});
}

std::string InputReport::to_string() const {
  std::string text =
      fmt::format("{}, {}, {} of text, {}", counted(files, "file"), counted(documents, "document"),
                  format_bytes(static_cast<double>(text_bytes)), counted(tokens, "token"));
  if (empty_documents > 0) text += ", " + counted(empty_documents, "empty document");
  if (ignored_files > 0)
    text += fmt::format(", {} of other kinds ignored", counted(ignored_files, "file"));
  if (total_skipped() == 0) return text;
  text += fmt::format("\n  skipped {}:", total_skipped());
  const char* separator = " ";
  for (size_t i = 0; i < kBadInputKinds; ++i) {
    if (skipped_[i] == 0) continue;
    text += separator + counted(skipped_[i], kKindNames[i].one, kKindNames[i].many);
    separator = ", ";
  }
  for (const std::string& message : messages_) text += "\n    " + message;
  if (static_cast<size_t>(total_skipped()) > messages_.size()) text += "\n    ...";
  return text;
}

std::string InputReport::with_skips(std::string_view message) const {
  if (total_skipped() == 0) return std::string(message);
  const MessageParts parts = parts_of(message);
  std::string text =
      fmt::format("{}; skipped {}{}{}", parts.sentence, total_skipped(),
                  messages_.empty() ? "" : ": ", messages_.empty() ? "" : messages_.front());
  if (!parts.remedy.empty()) text += fmt::format("\n  try: {}", parts.remedy);
  return text;
}

} // namespace pentatron::data
