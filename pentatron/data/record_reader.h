/// The records of a JSON file with bounded memory: its lines (JSON Lines), or the elements of one
/// JSON array if '[' is the first character. Only the boundaries of elements are checked here.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "pentatron/base/error.h"
#include "pentatron/data/line_reader.h"
#include "pentatron/data/read_buffer.h"

namespace pentatron::data {

/// The array around the records is not well formed.
class MalformedArray : public DataError {
 public:
  using DataError::DataError;
};

class RecordReader {
 public:
  enum class Status : uint8_t { kRecord, kTooLong, kEnd };
  enum class Form : uint8_t { kDetect, kLines };

  /// `source` must outlive the reader; `name` is for messages. Records of more than
  /// `max_record_bytes` come as kTooLong and are not kept. `buffer_bytes` is held from the start.
  RecordReader(ByteSource& source, int64_t max_record_bytes, std::string name,
               Form form = Form::kDetect, size_t buffer_bytes = LineReader::kBufferBytes);
  ~RecordReader();

  /// The next record; valid until the next call. Throws MalformedArray, and what the source throws.
  Status next(std::string_view& record);

  /// Of the record that next() returned last: of the line or the element, from 1.
  int64_t number() const { return number_; }
  int64_t record_bytes() const { return record_bytes_; }
  /// Known after the first call of next().
  bool is_array() const { return is_array_; }
  /// The bytes held now, at most buffer_bytes or about twice max_record_bytes.
  size_t memory_bytes() const;

 private:
  class Peeked;
  void begin();
  int peek();
  int next_mark();
  Status element(std::string_view& record);
  Status finish(std::string_view& record, size_t length);
  [[noreturn]] void malformed(const std::string& what) const;

  std::unique_ptr<Peeked> source_;
  std::string name_;
  size_t max_record_bytes_;
  Form form_;
  size_t buffer_bytes_;
  std::unique_ptr<LineReader> lines_; ///< null: an array
  bool begun_ = false, is_array_ = false, ended_ = false;
  int64_t number_ = 0;
  int64_t record_bytes_ = 0;
  std::optional<ReadBuffer> buffer_; ///< of an array, from the current element on
};

} // namespace pentatron::data
