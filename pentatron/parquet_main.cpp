// pentatron-parquet FILE [COLUMN...] [--more COLUMN...]: the rows of a Parquet file as JSON Lines
// on standard output. The first columns hold text; those behind --more hold text, numbers or truth
// values, and are left out where the file does not have them.
//
// A program of its own, so that neither pentatron nor LibTorch shares a process with Arrow. Memory
// is bounded by pages of the columns asked for, not by the file. A null leaves its key out. If a
// column is not there, one line names the columns that hold text, each with an empty text.
// Exit codes: 0; 1 if the file's data is not valid; 2 for its arguments; 3 for anything else.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <arrow/array.h>
#include <arrow/compute/cast.h>
#include <arrow/io/file.h>
#include <arrow/record_batch.h>
#include <arrow/scalar.h>
#include <arrow/status.h>
#include <arrow/type.h>
#include <arrow/type_traits.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/properties.h>

namespace {

constexpr int64_t kRowsAtATime = 256;
constexpr std::string_view kMore = "--more"; // as in data/parquet_source.cpp
constexpr int64_t kBufferBytes = int64_t{1} << 20;

constexpr int kInvalidData = 1; // as in data/parquet_source.cpp
constexpr int kUsage = 2;
constexpr int kOtherFailure = 3;

/// The file's data is not valid.
class InvalidData : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What is wrong with pages is an IOError too; what the system refuses is one with its errno.
bool is_invalid_data(const arrow::Status& status) {
  if (status.IsIOError()) return status.detail() == nullptr;
  return status.IsInvalid() || status.IsSerializationError() || status.IsTypeError() ||
         status.IsKeyError() || status.IsIndexError();
}

void check(const arrow::Status& status) {
  if (status.ok()) return;
  if (is_invalid_data(status)) throw InvalidData(status.ToString());
  throw std::runtime_error(status.ToString());
}
template <class T> T value_of(arrow::Result<T> result) {
  check(result.status());
  return std::move(result).ValueUnsafe();
}

/// A dictionary of strings counts as strings.
bool is_text(const arrow::DataType& type) {
  switch (type.id()) {
  case arrow::Type::STRING:
  case arrow::Type::LARGE_STRING:
    return true;
  case arrow::Type::DICTIONARY:
    return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
  default:
    return false;
  }
}

/// What Arrow writes as a number or truth value of JSON.
bool is_scalar(const arrow::DataType& type) {
  return type.id() == arrow::Type::BOOL || arrow::is_integer(type.id()) ||
         type.id() == arrow::Type::FLOAT || type.id() == arrow::Type::DOUBLE;
}

/// Bytes that are not UTF-8 stay as they are: who reads the lines says where they are.
void append_string(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
    case '"':
      out += "\\\"";
      break;
    case '\\':
      out += "\\\\";
      break;
    case '\n':
      out += "\\n";
      break;
    case '\t':
      out += "\\t";
      break;
    default:
      if (static_cast<unsigned char>(c) < 0x20) {
        char code[8];
        std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
        out += code;
      } else {
        out += c;
      }
    }
  }
  out += '"';
}

void write(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size())
    throw std::runtime_error("standard output cannot be written");
}

/// The text at a row; none for a null.
bool text_at(const arrow::Array& array, int64_t row, std::string_view& text) {
  if (array.IsNull(row)) return false;
  switch (array.type_id()) {
  case arrow::Type::STRING:
    text = static_cast<const arrow::StringArray&>(array).GetView(row);
    return true;
  case arrow::Type::LARGE_STRING:
    text = static_cast<const arrow::LargeStringArray&>(array).GetView(row);
    return true;
  case arrow::Type::DICTIONARY: {
    const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
    return text_at(*dictionary.dictionary(), dictionary.GetValueIndex(row), text);
  }
  default:
    return false;
  }
}

void write_rows(const arrow::RecordBatch& batch) {
  std::string line;
  for (int64_t row = 0; row < batch.num_rows(); ++row) {
    line.clear();
    line += '{';
    for (int c = 0; c < batch.num_columns(); ++c) {
      const arrow::Array& column = *batch.column(c);
      std::string_view text;
      const bool scalar = is_scalar(*column.type());
      if (scalar ? column.IsNull(row) : !text_at(column, row, text)) continue;
      if (line.size() > 1) line += ", ";
      append_string(line, batch.column_name(c));
      line += ": ";
      if (scalar)
        line += value_of(column.GetScalar(row))->ToString();
      else
        append_string(line, text);
    }
    write(line += "}\n");
  }
}

void write_names(const arrow::Schema& schema) {
  std::string line(1, '{');
  for (const auto& field : schema.fields()) {
    if (!is_text(*field->type())) continue;
    if (line.size() > 1) line += ", ";
    append_string(line, field->name());
    line += ": \"\"";
  }
  write(line + "}\n");
}

int failed(const std::exception& error, int code) {
  const std::string text = error.what();
  std::fprintf(stderr, "%s\n", text.substr(0, text.find('\n')).c_str());
  return code;
}

void convert(const std::string& path, const std::vector<std::string>& columns,
             const std::vector<std::string>& more) {
  parquet::ReaderProperties file_properties;
  file_properties.enable_buffered_stream(); // else a row group's column is read at once
  file_properties.set_buffer_size(kBufferBytes);
  parquet::ArrowReaderProperties properties;
  properties.set_use_threads(false);
  properties.set_pre_buffer(false);
  properties.set_batch_size(kRowsAtATime);
  parquet::arrow::FileReaderBuilder builder;
  check(builder.Open(value_of(arrow::io::ReadableFile::Open(path)), file_properties));
  builder.properties(properties);
  std::unique_ptr<parquet::arrow::FileReader> reader;
  check(builder.Build(&reader));
  std::shared_ptr<arrow::Schema> schema;
  check(reader->GetSchema(&schema));
  std::vector<int> leaves; // Parquet counts the leaves of nested columns
  for (const std::string& name : columns) {
    const int field = schema->GetFieldIndex(name);
    if (field < 0 || !is_text(*schema->field(field)->type())) return write_names(*schema);
    leaves.push_back(reader->parquet_reader()->metadata()->schema()->ColumnIndex(name));
  }
  for (const std::string& name : more) {
    const int field = schema->GetFieldIndex(name);
    if (field < 0) continue;
    const arrow::DataType& type = *schema->field(field)->type();
    if (is_text(type) || is_scalar(type))
      leaves.push_back(reader->parquet_reader()->metadata()->schema()->ColumnIndex(name));
  }
  std::vector<int> groups;
  for (int group = 0; group < reader->num_row_groups(); ++group) groups.push_back(group);
  const auto batches = value_of(reader->GetRecordBatchReader(groups, leaves));
  while (const auto batch = value_of(batches->Next())) write_rows(*batch);
}

} // namespace

int main(int argc, char** argv) {
  char** const more = std::find(argv + std::min(argc, 2), argv + argc, kMore);
  if (argc < 3 || more - argv < 2) {
    std::fprintf(stderr, "pentatron-parquet FILE [COLUMN...] [--more COLUMN...]\n");
    return kUsage;
  }
  try {
    convert(argv[1], {argv + 2, more}, {more == argv + argc ? more : more + 1, argv + argc});
    if (std::fflush(stdout) != 0) throw std::runtime_error("standard output cannot be written");
    return 0;
  } catch (const InvalidData& error) {
    return failed(error, kInvalidData);
  } catch (const parquet::ParquetStatusException& error) {
    return failed(error, is_invalid_data(error.status()) ? kInvalidData : kOtherFailure);
  } catch (const parquet::ParquetException& error) {
    return failed(error, kInvalidData);
  } catch (const std::exception& error) {
    return failed(error, kOtherFailure);
  }
}
