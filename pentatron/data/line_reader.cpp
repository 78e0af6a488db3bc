#include "pentatron/data/line_reader.h"

#include <algorithm>

namespace pentatron::data {

LineReader::LineReader(ByteSource& source, int64_t max_line_bytes, size_t buffer_bytes)
    : buffer_(source, buffer_bytes),
      max_line_bytes_(static_cast<size_t>(std::max<int64_t>(max_line_bytes, 0))) {}

LineReader::Status LineReader::next(std::string_view& line) {
  line = {};
  size_t scanned = 0;
  while (true) {
    const std::string_view held = buffer_.held();
    if (const size_t at = held.find('\n', scanned); at != held.npos) return finish(line, at, 1);
    scanned = held.size();
    // One byte of grace: it may be the "\r" of the line's end.
    if (scanned > max_line_bytes_ + 1) return pass_over();
    if (!buffer_.fill()) return scanned == 0 ? Status::kEnd : finish(line, scanned, 0);
  }
}

LineReader::Status LineReader::finish(std::string_view& line, size_t length, size_t ending) {
  std::string_view text = buffer_.held().substr(0, length);
  buffer_.use(length + ending);
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
    const std::string_view held = buffer_.held();
    const size_t at = held.find('\n');
    const bool ends = at != held.npos;
    const size_t length = ends ? at : held.size();
    line_bytes_ += static_cast<int64_t>(length);
    buffer_.use(length + (ends ? 1 : 0));
    if (ends || !buffer_.fill()) return Status::kTooLong;
  }
}

} // namespace pentatron::data
