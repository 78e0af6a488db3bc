#include "pentatron/data/record_reader.h"

#include <algorithm>
#include <cstring>

#include "pentatron/data/utf8.h"

namespace pentatron::data {

namespace {

constexpr size_t kMostPeeked = size_t{1} << 16;

bool is_json_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

} // namespace

/// The source behind what was read of it to see how the file begins.
class RecordReader::Peeked final : public ByteSource {
 public:
  explicit Peeked(ByteSource& source) : source_(source) {}

  /// The first character that is neither space nor part of a byte order mark; 0 if there is none
  /// near.
  char first() {
    while (held_.size() < kMostPeeked) {
      const size_t before = held_.size();
      held_.resize(before + 4096);
      const size_t n = source_.read(held_.data() + before, 4096);
      held_.resize(before + n);
      size_t at = 0;
      if (held_.starts_with(kByteOrderMark)) at = kByteOrderMark.size();
      while (at < held_.size() && is_json_space(held_[at])) ++at;
      if (at < held_.size()) {
        if (held_[at] == '[') begin_ = at;
        return held_[at];
      }
      if (n == 0) return 0;
    }
    return 0;
  }

  size_t read(char* buffer, size_t capacity) override {
    if (begin_ == held_.size()) return source_.read(buffer, capacity);
    const size_t n = std::min(capacity, held_.size() - begin_);
    std::memcpy(buffer, held_.data() + begin_, n);
    begin_ += n;
    return n;
  }

 private:
  ByteSource& source_;
  std::string held_;
  size_t begin_ = 0;
};

RecordReader::RecordReader(ByteSource& source, int64_t max_record_bytes, std::string name,
                           Form form, size_t buffer_bytes)
    : source_(std::make_unique<Peeked>(source)), name_(std::move(name)),
      max_record_bytes_(static_cast<size_t>(std::max<int64_t>(max_record_bytes, 0))), form_(form),
      buffer_bytes_(std::max<size_t>(buffer_bytes, 1)) {}

RecordReader::~RecordReader() = default;

size_t RecordReader::memory_bytes() const {
  return lines_ ? lines_->memory_bytes() : buffer_ ? buffer_->memory_bytes() : 0;
}

void RecordReader::malformed(const std::string& what) const {
  raise<MalformedArray>("{} is not a valid JSON array: {}", name_, what);
}

void RecordReader::begin() {
  begun_ = true;
  is_array_ = form_ == Form::kDetect && source_->first() == '[';
  if (!is_array_) {
    lines_ = std::make_unique<LineReader>(*source_, static_cast<int64_t>(max_record_bytes_),
                                          buffer_bytes_);
    return;
  }
  buffer_.emplace(*source_, buffer_bytes_);
  peek();
  buffer_->use(1); // the bracket
}

/// The next byte, which stays; -1 at the end.
int RecordReader::peek() {
  if (buffer_->held().empty() && !buffer_->fill()) return -1;
  return static_cast<unsigned char>(buffer_->held()[0]);
}

/// The next byte that is no space.
int RecordReader::next_mark() {
  int c = peek();
  while (c >= 0 && is_json_space(static_cast<char>(c))) {
    buffer_->use(1);
    c = peek();
  }
  return c;
}

RecordReader::Status RecordReader::next(std::string_view& record) {
  record = {};
  if (!begun_) begin();
  if (lines_) {
    const LineReader::Status status = lines_->next(record);
    number_ = lines_->line_number();
    record_bytes_ = lines_->line_bytes();
    return status == LineReader::Status::kEnd    ? Status::kEnd
           : status == LineReader::Status::kLine ? Status::kRecord
                                                 : Status::kTooLong;
  }
  if (ended_) return Status::kEnd;
  int c = next_mark();
  if (number_ > 0 && c == ',') {
    buffer_->use(1);
    c = next_mark();
    if (c == ']') malformed("a comma stands before its end");
  } else if (c != ']' && number_ > 0 && c >= 0) {
    malformed(fmt::format("there is no comma after element {}", number_));
  }
  if (c == ']') {
    buffer_->use(1);
    ended_ = true;
    if (next_mark() >= 0) malformed("something follows its end");
    return Status::kEnd;
  }
  ++number_;
  if (c < 0) malformed(fmt::format("the file ends before element {}", number_));
  if (c == ',') malformed(fmt::format("element {} is empty", number_));
  return element(record);
}

/// From the first byte of an element to the comma or bracket behind it, which stays.
RecordReader::Status RecordReader::element(std::string_view& record) {
  std::string_view held = buffer_->held();
  size_t at = 0; // in it
  int64_t given_up = 0, depth = 0;
  bool in_string = false, escaped = false;
  while (true) {
    if (at == held.size()) {
      if (at > max_record_bytes_ || given_up > 0) { // of a record that is too long nothing is kept
        given_up += static_cast<int64_t>(at);
        buffer_->use(at);
        at = 0;
      }
      if (!buffer_->fill()) malformed(fmt::format("the file ends in element {}", number_));
      held = buffer_->held();
      continue;
    }
    const char c = held[at];
    if (in_string) {
      if (escaped) {
        escaped = false;
      } else if (c == '\\') {
        escaped = true;
      } else if (c == '"') {
        in_string = false;
      }
      ++at;
      continue;
    }
    if (depth == 0 && (c == ',' || c == ']')) break;
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') {
      // A brace that closes nothing makes the element bad, not what follows.
      depth = std::max<int64_t>(depth - 1, 0);
    }
    ++at;
  }
  record_bytes_ = given_up + static_cast<int64_t>(at);
  if (given_up > 0 || at > max_record_bytes_) {
    buffer_->use(at);
    return Status::kTooLong;
  }
  return finish(record, at);
}

RecordReader::Status RecordReader::finish(std::string_view& record, size_t length) {
  record = buffer_->held().substr(0, length);
  buffer_->use(length);
  while (!record.empty() && is_json_space(record.back())) record.remove_suffix(1);
  return Status::kRecord;
}

} // namespace pentatron::data
