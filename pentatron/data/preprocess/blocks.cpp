#include "pentatron/data/preprocess/blocks.h"

#include <algorithm>
#include <memory>

#include "pentatron/base/error.h"
#include "pentatron/data/byte_source.h"
#include "pentatron/data/line_reader.h"

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
      const int64_t done = resumed ? options_.begin.lines : 0;
      block_.begins_file = done == 0;
      block_.end = {static_cast<int64_t>(i), done};
      try {
        source_ = open_source(files_[i].path);
        files_[i].format == FileFormat::kText ? read_text() : read_lines(done);
      } catch (const DataError& error) { // what came before the damage stays
        block_.bad.emplace_back(BadInput::kBrokenFile, error.what());
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
    next.end = block_.end;
    stopped_ = !take_(std::move(block_));
    block_ = std::move(next);
  }

  void read_lines(int64_t done) {
    LineReader lines(*source_, options_.max_document_bytes);
    std::string_view line;
    while (!stopped_) {
      const LineReader::Status status = lines.next(line);
      if (status == LineReader::Status::kEnd) break;
      if (lines.line_number() <= done) continue;
      if (status == LineReader::Status::kTooLong) {
        block_.bad.emplace_back(BadInput::kLongLine,
                                fmt::format("{}: line {} has {} bytes, over the limit of {}",
                                            block_.file->path.string(), lines.line_number(),
                                            lines.line_bytes(), options_.max_document_bytes));
      } else if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
        add(line, lines.line_number());
      }
      block_.end.lines = lines.line_number();
      if (block_.text.size() >= kBlockBytes) emit();
    }
    if (lines.line_number() == 0)
      block_.bad.emplace_back(BadInput::kEmptyFile, block_.file->path.string() + " is empty");
  }

  void add(std::string_view document, int64_t line) {
    block_.text += document;
    block_.ends.push_back(block_.text.size());
    block_.lines.push_back(line);
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
        block_.bad.emplace_back(BadInput::kLongLine,
                                fmt::format("{} is longer than the limit of {} bytes",
                                            block_.file->path.string(),
                                            options_.max_document_bytes));
        return;
      }
    }
    if (text.empty()) {
      block_.bad.emplace_back(BadInput::kEmptyFile, block_.file->path.string() + " is empty");
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
