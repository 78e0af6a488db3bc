#include "pentatron/cli/text_documents.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <set>

#include <fmt/format.h>

#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/progress.h"
#include "pentatron/data/document_reader.h"
#include "pentatron/data/input_files.h"

namespace pentatron::cli {

namespace {

/// Counts on the disk: compressed files and JSON have another size than their texts.
class WholeDocuments final : public data::DocumentSink {
 public:
  WholeDocuments(const UseDocument& use, int64_t bytes)
      : use_(use), progress_("evaluating", bytes, {.unit = Progress::Unit::kBytes}) {}
  void begin_file(int64_t bytes) {
    before_ += file_;
    file_ = bytes;
    used_ = 0;
  }
  void text(std::string_view piece) override { document_ += piece; }
  void end_document() override {
    const auto size = static_cast<double>(document_.size());
    use_(document_, [&](double share) {
      const auto used = used_ + static_cast<int64_t>(share * size);
      progress_.update(before_ + std::min(used, file_));
    });
    used_ += static_cast<int64_t>(document_.size());
    document_.clear();
  }
  void drop_document() override { document_.clear(); }

 private:
  const UseDocument& use_;
  Progress progress_;
  int64_t before_ = 0, file_ = 0, used_ = 0; ///< bytes: of earlier files, of this one, of its texts
  std::string document_;
};

void tell_oddities(const data::InputFiles& input, std::string_view option) {
  std::set<std::filesystem::path> seen;
  for (const data::InputFile& file : input.files)
    if (!seen.insert(std::filesystem::absolute(file.path).lexically_normal()).second)
      log::warning("{} {} is given twice and counts twice", option, file.path.string());
  if (input.ignored > 0)
    log::info("{}: skipped {} of unsupported types", option, counted(input.ignored, "file"));
}

/// A document is held whole, as a text file is, so that its line needs no limit of its own.
constexpr int64_t kNoLineLimit = int64_t{1} << 50;

} // namespace

std::string remedy_in_documents(const data::SkippedInput& input, bool others) {
  if (!input.key.empty() && !others)
    return (input.option == "label_key" ? "--label-key " : "--text-key ") + input.key;
  if (input.number == 0) return "another file, or the others without this one";
  return fmt::format("a copy of the file without this {}", input.element ? "element" : "line");
}

void for_each_document(const std::vector<std::string>& paths, std::string_view option,
                       const std::string& text_key, const UseDocument& use) {
  data::InputReport report; // throws for bad input
  try {
    const data::InputFiles input = data::find_input_files(paths, option);
    tell_oddities(input, option);
    const std::vector<data::InputFile>& files = input.files;
    int64_t bytes = 0;
    for (const data::InputFile& file : files) bytes += file.size_bytes;
    WholeDocuments documents(use, bytes);
    for (const data::InputFile& file : files) {
      documents.begin_file(file.size_bytes);
      data::read_documents(file, {.text_key = text_key, .max_line_bytes = kNoLineLimit}, documents,
                           report);
    }
  } catch (const data::BadInputError& bad) {
    const data::BadInputError told(bad.input(),
                                   remedy_in_documents(bad.input(), report.documents > 0));
    throw DataError(with_name(fmt::format("{} ", option), bad.input().file, told.what()));
  }
}

} // namespace pentatron::cli
