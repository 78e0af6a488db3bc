#include "pentatron/data/preprocess/blocks.h"

#include <algorithm>
#include <memory>

#include "pentatron/base/error.h"
#include "pentatron/data/byte_source.h"
#include "pentatron/data/record_reader.h"

namespace pentatron::data {

namespace {

constexpr size_t kBlockBytes = size_t{1} << 20;

class BlockReader {
 public:
  BlockReader(const std::vector<InputFile>& files, const BlockOptions& options,
              const std::function<bool(Block)>& take)
      : files_(files), options_(options), take_(take) {
    for (size_t i = 0; i < std::min(files.size(), static_cast<size_t>(options.begin.file)); ++i)
      disk_bytes_ += files[i].size_bytes;
  }

  void read() {
    for (auto i = static_cast<size_t>(options_.begin.file); i < files_.size() && !stopped_; ++i) {
      block_.file = &files_[i];
      const bool resumed = static_cast<int64_t>(i) == options_.begin.file;
      const int64_t done = resumed ? options_.begin.records : 0;
      block_.begins_file = done == 0;
      block_.is_array = false;
      block_.end = {static_cast<int64_t>(i), done};
      try {
        source_ = open_input(files_[i], options_.keys);
        files_[i].format == FileFormat::kText ? read_text() : read_records(done);
      } catch (const DataError& error) { // what came before the damage stays
        block_.bad.emplace_back(BadInput::kBrokenFile, damaged_file(files_[i].path, error.what()));
      }
      disk_bytes_ += source_ ? source_->consumed_bytes() : 0;
      source_.reset();
      block_.end = {static_cast<int64_t>(i) + 1, 0};
      emit();
    }
  }

 private:
  void emit() {
    block_.number = number_++;
    block_.disk_bytes = disk_bytes_ + (source_ ? source_->consumed_bytes() : 0);
    Block next;
    next.file = block_.file;
    next.is_array = block_.is_array;
    next.end = block_.end;
    stopped_ = !take_(std::move(block_));
    block_ = std::move(next);
  }

  void read_records(int64_t done) {
    RecordReader records(*source_, options_.max_document_bytes, block_.file->path.string());
    std::string_view record;
    while (!stopped_) {
      const RecordReader::Status status = records.next(record);
      block_.is_array = records.is_array();
      if (status == RecordReader::Status::kEnd) break;
      if (records.number() <= done) continue;
      if (status == RecordReader::Status::kTooLong) {
        block_.bad.emplace_back(
            BadInput::kLongLine,
            SkippedInput{.file = block_.file->path.string(),
                         .number = records.number(),
                         .element = records.is_array(),
                         .reason =
                             fmt::format("has {} bytes, more than --max-document-bytes {}",
                                         records.record_bytes(), options_.max_document_bytes)});
      } else if (record.find_first_not_of(" \t\r") != std::string_view::npos) {
        add(record, records.number());
      }
      block_.end.records = records.number();
      if (block_.text.size() >= kBlockBytes) emit();
    }
    if (records.number() == 0)
      block_.bad.emplace_back(
          BadInput::kEmptyFile,
          skipped_file(block_.file->path, records.is_array() ? "is an empty array" : "is empty"));
  }

  void add(std::string_view document, int64_t number) {
    block_.text += document;
    block_.ends.push_back(block_.text.size());
    block_.records.push_back(number);
  }

  void read_text() {
    std::string& text = block_.text;
    while (true) {
      const size_t before = text.size();
      text.resize(before + kBlockBytes);
      const size_t n = source_->read(text.data() + before, kBlockBytes);
      text.resize(before + n);
      if (n == 0) break;
      if (static_cast<int64_t>(text.size()) > options_.max_document_bytes) {
        text.clear();
        block_.bad.emplace_back(
            BadInput::kLongLine,
            skipped_file(block_.file->path, fmt::format("has more than --max-document-bytes {}",
                                                        options_.max_document_bytes)));
        return;
      }
    }
    if (text.empty()) {
      block_.bad.emplace_back(BadInput::kEmptyFile, skipped_file(block_.file->path, "is empty"));
    } else {
      block_.ends.push_back(text.size());
    }
  }

  const std::vector<InputFile>& files_;
  const BlockOptions& options_;
  const std::function<bool(Block)>& take_;
  std::unique_ptr<ByteSource> source_;
  Block block_;
  int64_t number_ = 0;
  int64_t disk_bytes_ = 0;
  bool stopped_ = false;
};

} // namespace

void read_blocks(const std::vector<InputFile>& files, const BlockOptions& options,
                 const std::function<bool(Block)>& take) {
  BlockReader(files, options, take).read();
}

} // namespace pentatron::data
