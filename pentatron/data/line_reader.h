/// Cuts a stream into lines with bounded memory: a line over the limit is read past, not kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "pentatron/data/read_buffer.h"

namespace pentatron::data {

class LineReader {
 public:
  enum class Status : uint8_t { kLine, kTooLong, kEnd };

  static constexpr size_t kBufferBytes = size_t{1} << 20;

  /// `source` must outlive the reader. Lines of more than `max_line_bytes` come as kTooLong.
  /// `buffer_bytes` is held from the start.
  LineReader(ByteSource& source, int64_t max_line_bytes, size_t buffer_bytes = kBufferBytes);

  /// The next line without its "\n" or "\r\n"; valid until the next call. Throws what the source
  /// throws.
  Status next(std::string_view& line);

  /// The number of the line that next() returned last, from 1.
  int64_t line_number() const { return line_number_; }
  /// The length of the line that next() returned last, without its end.
  int64_t line_bytes() const { return line_bytes_; }
  /// The bytes held now, at most buffer_bytes or about twice max_line_bytes.
  size_t memory_bytes() const { return buffer_.memory_bytes(); }

 private:
  Status finish(std::string_view& line, size_t length, size_t ending);
  Status pass_over();

  ReadBuffer buffer_; // from the current line on
  size_t max_line_bytes_;
  int64_t line_number_ = 0;
  int64_t line_bytes_ = 0;
};

} // namespace pentatron::data
