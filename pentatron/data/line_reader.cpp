#include "pentatron/data/line_reader.h"

#include <algorithm>
#include <cstring>

namespace pentatron::data {

LineReader::LineReader(ByteSource& source, int64_t max_line_bytes, size_t buffer_bytes)
    : source_(&source), max_line_bytes_(static_cast<size_t>(std::max<int64_t>(max_line_bytes, 0))),
      buffer_(std::max<size_t>(buffer_bytes, 1)) {}

bool LineReader::fill() {
  if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size()) buffer_.resize(2 * buffer_.size());
  const size_t n = source_->read(buffer_.data() + end_, buffer_.size() - end_);
  end_ += n;
  return n > 0;
}

LineReader::Status LineReader::next(std::string_view& line) {
  line = {};
  size_t scanned = 0;
  while (true) {
    const char* start = buffer_.data() + begin_;
    const size_t held = end_ - begin_;
    if (const void* newline = std::memchr(start + scanned, '\n', held - scanned)) {
      return finish(line, static_cast<size_t>(static_cast<const char*>(newline) - start), 1);
    }
    scanned = held;
    // One byte of grace: it may be the "\r" of the line's end.
    if (held > max_line_bytes_ + 1) return pass_over();
    if (!fill()) return held == 0 ? Status::kEnd : finish(line, held, 0);
  }
}

LineReader::Status LineReader::finish(std::string_view& line, size_t length, size_t ending) {
  std::string_view text(buffer_.data() + begin_, length);
  begin_ += length + ending;
  ++line_number_;
  if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
  line_bytes_ = static_cast<int64_t>(text.size());
  if (text.size() > max_line_bytes_) return Status::kTooLong;
  line = text;
  return Status::kLine;
}

LineReader::Status LineReader::pass_over() {
  ++line_number_;
  line_bytes_ = 0;
  while (true) {
    const size_t held = end_ - begin_;
    const char* start = buffer_.data() + begin_;
    if (const void* newline = std::memchr(start, '\n', held)) {
      const auto length = static_cast<size_t>(static_cast<const char*>(newline) - start);
      line_bytes_ += static_cast<int64_t>(length);
      begin_ += length + 1;
      return Status::kTooLong;
    }
    line_bytes_ += static_cast<int64_t>(held);
    begin_ = end_;
    if (!fill()) return Status::kTooLong;
  }
}

} // namespace pentatron::data
