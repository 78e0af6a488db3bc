#include "pentatron/cli/text_documents.h"

#include <cstdint>

#include <fmt/format.h>

#include "pentatron/base/naming.h"
#include "pentatron/data/document_reader.h"

namespace pentatron::cli {

namespace {

class WholeDocuments final : public data::DocumentSink {
 public:
  explicit WholeDocuments(const std::function<void(std::string_view)>& use) : use_(use) {}
  void text(std::string_view piece) override { document_ += piece; }
  void end_document() override {
    use_(document_);
    document_.clear();
  }
  void drop_document() override { document_.clear(); }

 private:
  const std::function<void(std::string_view)>& use_;
  std::string document_;
};

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
                       const std::string& text_key,
                       const std::function<void(std::string_view)>& use) {
  WholeDocuments documents(use);
  data::InputReport report; // throws for bad input
  try {
    for (const data::InputFile& file : data::find_input_files(paths, option).files)
      data::read_documents(file, {.text_key = text_key, .max_line_bytes = kNoLineLimit}, documents,
                           report);
  } catch (const data::BadInputError& bad) {
    const data::BadInputError told(bad.input(),
                                   remedy_in_documents(bad.input(), report.documents > 0));
    throw DataError(with_name(fmt::format("{} ", option), bad.input().file, told.what()));
  }
}

} // namespace pentatron::cli
