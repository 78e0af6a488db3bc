#include "pentatron/data/document_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>
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

/// What a source throws, apart from the report's own errors: a damaged file.
struct Damage {
  std::string message;
};

class GuardedSource final : public ByteSource {
 public:
  /// `on_read`: see ReadOptions; it must outlive the source.
  GuardedSource(std::unique_ptr<ByteSource> source,
                const std::function<void(int64_t disk_bytes)>& on_read)
      : source_(std::move(source)), on_read_(on_read) {}
  size_t read(char* buffer, size_t capacity) override {
    try {
      const size_t n = source_->read(buffer, capacity);
      const int64_t consumed = source_->consumed_bytes();
      if (on_read_) on_read_(consumed - std::exchange(told_, consumed));
      return n;
    } catch (const DataError& error) {
      throw Damage{error.what()};
    }
  }

 private:
  std::unique_ptr<ByteSource> source_;
  const std::function<void(int64_t disk_bytes)>& on_read_;
  int64_t told_ = 0;
};

void report_damage(const InputFile& file, std::string_view message, InputReport& report) {
  report.bad(BadInput::kBrokenFile, damaged_file(file.path, message));
}

/// Whether a file has bytes at all, and counts it.
bool begin_file(const InputFile& file, InputReport& report) {
  if (file.size_bytes == 0) {
    report.bad(BadInput::kEmptyFile, skipped_file(file.path, "is empty"));
    return false;
  }
  ++report.files;
  return true;
}

void take_records(const InputFile& file, ByteSource& source, const RecordOptions& options,
                  InputReport& report,
                  const std::function<void(std::string_view, const RecordPlace&)>& take) {
  RecordReader records(source, options.max_line_bytes, file.path.string());
  std::string_view record;
  while (true) {
    const RecordReader::Status status = records.next(record);
    if (status == RecordReader::Status::kEnd) break;
    const RecordPlace place{&file, records.number(), records.is_array()};
    if (status == RecordReader::Status::kTooLong) {
      report.bad(BadInput::kLongLine,
                 place.input(fmt::format("has {} bytes, more than dataset.max_line_bytes={}",
                                         records.record_bytes(), options.max_line_bytes)));
      continue;
    }
    if (place.number == 1 && record.starts_with(kByteOrderMark))
      record.remove_prefix(kByteOrderMark.size());
    if (record.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (const size_t at = find_invalid_utf8(record); at != std::string_view::npos)
      report.bad(BadInput::kUtf8, place.input(fmt::format("is not UTF-8 at its byte {}", at)));
    else
      take(record, place);
  }
  if (records.number() == 0)
    report.bad(BadInput::kEmptyFile,
               skipped_file(file.path, records.is_array() ? "is an empty array" : "is empty"));
}

} // namespace

SkippedInput RecordPlace::input(std::string reason, std::string key) const {
  return {.file = file->path.string(),
          .number = number,
          .element = element,
          .reason = std::move(reason),
          .key = std::move(key)};
}

std::string RecordPlace::to_string() const {
  return fmt::format("{}: {} {}", file->path.string(), element ? "element" : "line", number);
}

void read_records(const InputFile& file, const RecordOptions& options, InputReport& report,
                  const std::function<void(std::string_view, const RecordPlace&)>& take) {
  if (!begin_file(file, report)) return;
  try {
    GuardedSource source(open_input(file, options.keys, options.more), options.on_read);
    take_records(file, source, options, report, take);
  } catch (const Damage& damage) {
    report_damage(file, damage.message, report);
  } catch (const MalformedArray& error) { // the elements before the error stay
    report_damage(file, error.what(), report);
  }
}

void read_documents(const InputFile& file, const ReadOptions& options, DocumentSink& sink,
                    InputReport& report) {
  if (file.format == FileFormat::kText) {
    if (!begin_file(file, report)) return;
    try {
      GuardedSource source(open_input(file, {}), options.on_read);
      TextFile(file, source, sink, report).read();
    } catch (const Damage& damage) {
      sink.drop_document();
      report_damage(file, damage.message, report);
    }
    return;
  }
  TextOrIds document;
  const auto read = [&](std::string_view record) {
    return options.vocab_size > 0
               ? read_text_or_ids(record, options.text_key, options.vocab_size, document)
               : read_text(record, options.text_key, document.text);
  };
  read_records(file,
               {.keys = {std::string(options.text_key)},
                .max_line_bytes = options.max_line_bytes,
                .on_read = options.on_read},
               report, [&](std::string_view record, const RecordPlace& place) {
                 if (std::optional<NoText> none = read(record))
                   return report.bad(none->kind,
                                     place.input(std::move(none->reason), std::move(none->key)));
                 if (document.text.empty() && document.ids.empty()) {
                   ++report.empty_documents;
                   return;
                 }
                 if (document.is_ids)
                   sink.ids(document.ids);
                 else
                   sink.text(document.text);
                 sink.end_document();
                 ++report.documents;
                 report.text_bytes += static_cast<int64_t>(document.text.size());
               });
}

} // namespace pentatron::data
