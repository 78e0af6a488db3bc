#include "pentatron/data/input_report.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "pentatron/base/error.h"

namespace pentatron::data {

namespace {

constexpr size_t kMessagesKept = 5;
constexpr std::array<const char*, kBadInputKinds> kKindNames = {"with bad UTF-8",  "empty files",
                                                                "without the key", "bad JSON lines",
                                                                "lines too long",  "damaged files"};

} // namespace

void InputReport::bad(BadInput kind, std::string message) {
  if (policy_ == OnBadInput::kError) {
    throw DataError(message +
                    "\n  try: dataset.on_bad_input=skip to leave such input out and count it");
  }
  ++skipped_[static_cast<size_t>(kind)];
  if (messages_.size() < kMessagesKept) messages_.push_back(std::move(message));
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
  std::string text = fmt::format("{} file{}, {} document{}, {:.2f} MB of text, {} tokens", files,
                                 files == 1 ? "" : "s", documents, documents == 1 ? "" : "s",
                                 static_cast<double>(text_bytes) / 1e6, tokens);
  if (empty_documents > 0) text += fmt::format(", {} empty documents", empty_documents);
  if (ignored_files > 0) text += fmt::format(", {} files of other kinds ignored", ignored_files);
  if (total_skipped() == 0) return text;
  text += fmt::format("\n  skipped {}:", total_skipped());
  const char* separator = " ";
  for (size_t i = 0; i < kBadInputKinds; ++i) {
    if (skipped_[i] == 0) continue;
    text += fmt::format("{}{} {}", separator, skipped_[i], kKindNames[i]);
    separator = ", ";
  }
  for (const std::string& message : messages_) text += "\n    " + message;
  return text;
}

} // namespace pentatron::data
