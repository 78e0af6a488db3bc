#include "pentatron/cli/text_documents.h"

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

} // namespace

void for_each_document(const std::vector<std::string>& paths, const std::string& text_key,
                       const std::function<void(std::string_view)>& use) {
  WholeDocuments documents(use);
  data::InputReport report; // throws for bad input
  for (const data::InputFile& file : data::find_input_files(paths).files)
    data::read_documents(file, {.text_key = text_key}, documents, report);
}

} // namespace pentatron::cli
