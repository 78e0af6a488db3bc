#include "pentatron/data/tsv_source.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "pentatron/base/text.h"
#include "pentatron/data/line_reader.h"
#include "pentatron/data/utf8.h"

namespace pentatron::data {

namespace {

constexpr int64_t kLongestLine = int64_t{256} << 20;

void append_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  out += '"';
}

class TsvSource final : public ByteSource {
 public:
  TsvSource(std::unique_ptr<ByteSource> source, bool first_names_columns)
      : source_(std::move(source)), lines_(*source_, kLongestLine), named_(first_names_columns) {}

  size_t read(char* buffer, size_t capacity) override {
    size_t filled = 0;
    while (filled < capacity) {
      if (taken_ == made_.size() && !next()) break;
      const size_t n = std::min(capacity - filled, made_.size() - taken_);
      std::memcpy(buffer + filled, made_.data() + taken_, n);
      filled += n;
      taken_ += n;
    }
    return filled;
  }

  int64_t consumed_bytes() const override { return source_->consumed_bytes(); }

 private:
  bool next() {
    std::string_view line;
    const LineReader::Status status = lines_.next(line);
    if (status == LineReader::Status::kEnd) return false;
    made_.clear();
    taken_ = 0;
    const bool first = lines_.line_number() == 1;
    if (status == LineReader::Status::kTooLong) line = {};
    if (first && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
    if (first && named_) {
      for (const std::string_view name : split(line, '\t')) names_.emplace_back(name);
    } else if (!line.empty() || status == LineReader::Status::kTooLong) {
      append_object(line);
    }
    made_ += '\n';
    return true;
  }

  void append_object(std::string_view line) {
    size_t column = 0;
    made_ += '{';
    for (const std::string_view cell : split(line, '\t')) {
      if (!named_ && column == names_.size()) names_.push_back(std::to_string(column + 1));
      if (column == names_.size()) break;
      if (column > 0) made_ += ", ";
      append_string(made_, names_[column++]);
      made_ += ": ";
      append_string(made_, cell);
    }
    made_ += '}';
  }

  std::unique_ptr<ByteSource> source_;
  LineReader lines_;
  bool named_;
  std::vector<std::string> names_;
  std::string made_; ///< a line of JSON, of which the first bytes are handed out
  size_t taken_ = 0;
};

} // namespace

std::unique_ptr<ByteSource> open_tsv(std::unique_ptr<ByteSource> source, bool first_names_columns) {
  return std::make_unique<TsvSource>(std::move(source), first_names_columns);
}

} // namespace pentatron::data
