#include "pentatron/data/document_reader.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/data/byte_source.h"
#include "pentatron/data/json_line.h"
#include "pentatron/data/record_reader.h"
#include "pentatron/data/utf8.h"

namespace pentatron::data {

namespace {

constexpr size_t kPieceBytes = size_t{1} << 18;

class TextFile {
 public:
  TextFile(const InputFile& file, ByteSource& source, DocumentSink& sink, InputReport& report)
      : file_(file), source_(source), sink_(sink), report_(report), buffer_(kPieceBytes) {}

  void read() {
    while (true) {
      const size_t n = source_.read(buffer_.data() + held_, buffer_.size() - held_);
      if (n == 0) break;
      if (!piece(std::string_view(buffer_.data(), held_ + n))) return sink_.drop_document();
    }
    if (held_ > 0) { // a character that never ended
      bad_utf8(offset_);
      return sink_.drop_document();
    }
    if (text_bytes_ == 0)
      return report_.bad(BadInput::kEmptyFile, skipped_file(file_.path, "is empty"));
    sink_.end_document();
    ++report_.documents;
    report_.text_bytes += text_bytes_;
  }

 private:
  void bad_utf8(int64_t offset) {
    report_.bad(BadInput::kUtf8, {.file = file_.path.string(),
                                  .reason = fmt::format("is not UTF-8 at byte {}", offset)});
  }

  /// Passes on the whole characters of `bytes`, which begin at offset_, and holds the rest back.
  bool piece(std::string_view bytes) {
    const size_t tail = incomplete_utf8_tail(bytes);
    std::string_view text = bytes.substr(0, bytes.size() - tail);
    if (const size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
      bad_utf8(offset_ + static_cast<int64_t>(at));
      return false;
    }
    if (offset_ == 0 && text.starts_with(kByteOrderMark)) {
      text.remove_prefix(kByteOrderMark.size());
    }
    if (!text.empty()) sink_.text(text);
    text_bytes_ += static_cast<int64_t>(text.size());
    offset_ += static_cast<int64_t>(bytes.size() - tail);
    std::memmove(buffer_.data(), bytes.data() + bytes.size() - tail, tail);
    held_ = tail;
    return true;
  }

  const InputFile& file_;
  ByteSource& source_;
  DocumentSink& sink_;
  InputReport& report_;
  std::vector<char> buffer_;
  size_t held_ = 0;        // bytes at the start of the buffer that wait for their character's end
  int64_t offset_ = 0;     // of the buffer's start in the (decompressed) file
  int64_t text_bytes_ = 0; // passed on
};

class JsonFile {
 public:
  JsonFile(const InputFile& file, ByteSource& source, const ReadOptions& options,
           DocumentSink& sink, InputReport& report)
      : file_(file), records_(source, options.max_line_bytes, file.path.string()),
        options_(options), sink_(sink), report_(report) {}

  void read() {
    std::string_view record;
    while (true) {
      const RecordReader::Status status = records_.next(record);
      if (status == RecordReader::Status::kEnd) break;
      if (status == RecordReader::Status::kTooLong) {
        bad(BadInput::kLongLine, fmt::format("has {} bytes, more than dataset.max_line_bytes={}",
                                             records_.record_bytes(), options_.max_line_bytes));
        continue;
      }
      if (records_.number() == 1 && record.starts_with(kByteOrderMark))
        record.remove_prefix(kByteOrderMark.size());
      if (record.find_first_not_of(" \t\r") != std::string_view::npos) take(record);
    }
    if (records_.number() == 0)
      report_.bad(BadInput::kEmptyFile,
                  skipped_file(file_.path, records_.is_array() ? "is an empty array" : "is empty"));
  }

 private:
  void bad(BadInput kind, std::string reason, std::string key = {}) {
    report_.bad(kind, {.file = file_.path.string(),
                       .number = records_.number(),
                       .element = records_.is_array(),
                       .reason = std::move(reason),
                       .key = std::move(key)});
  }

  void take(std::string_view record) {
    if (const size_t at = find_invalid_utf8(record); at != std::string_view::npos)
      return bad(BadInput::kUtf8, fmt::format("is not UTF-8 at its byte {}", at));
    if (std::optional<NoText> none = read_text(record, options_.text_key, text_))
      return bad(none->kind, std::move(none->reason), std::move(none->key));
    if (text_.empty()) {
      ++report_.empty_documents;
      return;
    }
    sink_.text(text_);
    sink_.end_document();
    ++report_.documents;
    report_.text_bytes += static_cast<int64_t>(text_.size());
  }

  const InputFile& file_;
  RecordReader records_;
  const ReadOptions& options_;
  DocumentSink& sink_;
  InputReport& report_;
  std::string text_;
};

} // namespace

void read_documents(const InputFile& file, const ReadOptions& options, DocumentSink& sink,
                    InputReport& report) {
  if (file.size_bytes == 0) {
    return report.bad(BadInput::kEmptyFile, skipped_file(file.path, "is empty"));
  }
  ++report.files;
  // Only what the source throws is a damaged file; the report's own errors pass through.
  struct Guarded final : ByteSource {
    explicit Guarded(std::unique_ptr<ByteSource> s) : source(std::move(s)) {}
    size_t read(char* buffer, size_t capacity) override {
      try {
        return source->read(buffer, capacity);
      } catch (const DataError& error) {
        throw Damage{error.what()};
      }
    }
    struct Damage {
      std::string message;
    };
    std::unique_ptr<ByteSource> source;
  };
  try {
    Guarded source(open_input(file, {std::string(options.text_key)}));
    if (file.format == FileFormat::kText) {
      TextFile(file, source, sink, report).read();
    } else {
      JsonFile(file, source, options, sink, report).read();
    }
  } catch (const Guarded::Damage& damage) {
    sink.drop_document();
    report.bad(BadInput::kBrokenFile, damaged_file(file.path, damage.message));
  } catch (const MalformedArray& error) { // the elements before the error stay
    report.bad(BadInput::kBrokenFile, damaged_file(file.path, error.what()));
  }
}

} // namespace pentatron::data
