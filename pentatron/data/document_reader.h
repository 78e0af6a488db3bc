/// Turns one input file into documents of valid UTF-8, with bounded memory.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/data/input_files.h"
#include "pentatron/data/input_report.h"

namespace pentatron::data {

/// Takes documents as they are read. text() comes once or more, in pieces that end between
/// characters, or ids() once; then end_document(), or drop_document() if the rest of the document
/// turned out to be bad.
class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  virtual void text(std::string_view piece) = 0;
  /// Of ReadOptions::vocab_size.
  virtual void ids(std::span<const int32_t> /*tokens*/) {}
  virtual void end_document() = 0;
  virtual void drop_document() = 0;
};

struct ReadOptions {
  std::string_view text_key = "text";
  int64_t max_line_bytes = int64_t{256} << 20;
  /// Records may have a list of token ids below it in place of a text; 0: texts alone.
  int64_t vocab_size = 0;
  /// Called after each read with how much more of the file, as it lies on the disk, was read.
  std::function<void(int64_t disk_bytes)> on_read = {};
};

/// Reads `file` into `sink`. A text file is one document without its byte order mark; of a JSON
/// file each line, or each element of its array, is one; empty lines and empty texts are passed
/// over. Bad input goes to `report`, which throws or counts it: a text file with bad UTF-8 is
/// dropped whole, of records only the bad ones; what a damaged archive held before the damage is
/// kept if it is JSON. Adds what was read to the report's counts, but for its tokens.
void read_documents(const InputFile& file, const ReadOptions& options, DocumentSink& sink,
                    InputReport& report);

/// A line of a JSON file or an element of its array, for messages.
struct RecordPlace {
  const InputFile* file = nullptr;
  int64_t number = 0;
  bool element = false;

  SkippedInput input(std::string reason, std::string key = {}) const;
  /// "a.jsonl: line 3".
  std::string to_string() const;
};

struct RecordOptions {
  std::vector<std::string> keys; ///< of texts that a record has
  std::vector<std::string> more; ///< of other members, which may be anything or missing
  int64_t max_line_bytes = int64_t{256} << 20;
  std::function<void(int64_t disk_bytes)> on_read = {}; ///< as above
};

/// Hands every record of a JSON or Parquet file to `take`: valid UTF-8, not empty, else unchecked.
/// Bad input goes to `report`, as above. Counts the file alone.
void read_records(const InputFile& file, const RecordOptions& options, InputReport& report,
                  const std::function<void(std::string_view, const RecordPlace&)>& take);

} // namespace pentatron::data
