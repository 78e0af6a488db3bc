// pentatron-parquet FILE [COLUMN...] [--more COLUMN...]: the rows of a Parquet file as JSON Lines
// on standard output. The first columns hold text or lists of integers (token ids); those behind
// --more hold anything that JSON has: text, numbers, truth values, and lists, structs and maps of
// them. They are left out where the file does not have them.
//
// A program of its own, so that neither pentatron nor LibTorch shares a process with Arrow. Memory
// is bounded by pages of the columns asked for, not by the file. A null leaves its key out, in
// structs too. If a column is not there, or none is, one line names the columns that hold text,
// each with an empty text. Exit codes: 0; 1 if the file's data is not valid; 2 for its arguments; 3
// for anything else.
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
#include <parquet/arrow/schema.h>
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

bool is_list(const arrow::DataType& type) {
  return type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST ||
         type.id() == arrow::Type::FIXED_SIZE_LIST;
}

bool is_token_list(const arrow::DataType& type) {
  return is_list(type) && arrow::is_integer(type.field(0)->type()->id());
}

/// Whether JSON has such values.
bool is_value(const arrow::DataType& type) {
  if (is_text(type) || is_scalar(type) || type.id() == arrow::Type::NA) return true;
  if (!is_list(type) && type.id() != arrow::Type::STRUCT && type.id() != arrow::Type::MAP)
    return false;
  if (type.id() == arrow::Type::MAP &&
      !is_text(*static_cast<const arrow::MapType&>(type).key_type()))
    return false;
  return std::all_of(type.fields().begin(), type.fields().end(),
                     [](const auto& field) { return is_value(*field->type()); });
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

/// Elements [begin, end).
struct Elements {
  std::shared_ptr<arrow::Array> values;
  int64_t begin = 0, end = 0;
};

template <class List> Elements elements_of(const arrow::Array& array, int64_t row) {
  const auto& list = static_cast<const List&>(array);
  return {list.values(), list.value_offset(row), list.value_offset(row) + list.value_length(row)};
}

Elements elements_at(const arrow::Array& array, int64_t row) {
  switch (array.type_id()) {
  case arrow::Type::LARGE_LIST:
    return elements_of<arrow::LargeListArray>(array, row);
  case arrow::Type::FIXED_SIZE_LIST:
    return elements_of<arrow::FixedSizeListArray>(array, row);
  default: // a map is a list of pairs
    return elements_of<arrow::ListArray>(array, row);
  }
}

/// Calls member(name, array, row) for all members that are not null.
template <class F> void for_each_member(const arrow::Array& array, int64_t row, const F& member) {
  if (array.type_id() == arrow::Type::MAP) {
    const auto& map = static_cast<const arrow::MapArray&>(array);
    for (int64_t i = map.value_offset(row); i < map.value_offset(row + 1); ++i) {
      std::string_view name;
      if (text_at(*map.keys(), i, name)) member(name, *map.items(), i);
    }
    return;
  }
  const auto& object = static_cast<const arrow::StructArray&>(array);
  for (int i = 0; i < object.num_fields(); ++i)
    member(object.struct_type()->field(i)->name(), *object.field(i), row);
}

void append_value(std::string& out, const arrow::Array& array, int64_t row);

/// Adds a member to an object that has been begun.
void append_member(std::string& out, std::string_view name, const arrow::Array& array,
                   int64_t row) {
  if (array.IsNull(row) || array.type_id() == arrow::Type::NA) return;
  if (out.back() != '{') out += ", ";
  append_string(out, name);
  out += ": ";
  append_value(out, array, row);
}

void append_scalar(std::string& out, const arrow::Array& array, int64_t row) {
  if (array.type_id() == arrow::Type::INT64) // token ids mostly
    out += std::to_string(static_cast<const arrow::Int64Array&>(array).Value(row));
  else if (array.type_id() == arrow::Type::INT32)
    out += std::to_string(static_cast<const arrow::Int32Array&>(array).Value(row));
  else
    out += value_of(array.GetScalar(row))->ToString();
}

void append_value(std::string& out, const arrow::Array& array, int64_t row) {
  std::string_view text;
  if (array.IsNull(row) || array.type_id() == arrow::Type::NA) {
    out += "null";
  } else if (text_at(array, row, text)) {
    append_string(out, text);
  } else if (is_scalar(*array.type())) {
    append_scalar(out, array, row);
  } else if (is_list(*array.type())) {
    const Elements elements = elements_at(array, row);
    out += '[';
    for (int64_t i = elements.begin; i < elements.end; ++i) {
      if (i > elements.begin) out += ", ";
      append_value(out, *elements.values, i);
    }
    out += ']';
  } else {
    out += '{';
    for_each_member(array, row, [&](std::string_view name, const arrow::Array& of, int64_t at) {
      append_member(out, name, of, at);
    });
    out += '}';
  }
}

void write_rows(const arrow::RecordBatch& batch) {
  std::string line;
  for (int64_t row = 0; row < batch.num_rows(); ++row) {
    line = '{';
    for (int c = 0; c < batch.num_columns(); ++c)
      append_member(line, batch.column_name(c), *batch.column(c), row);
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

/// Parquet counts the leaves of nested columns.
void add_leaves(const parquet::arrow::SchemaField& field, std::vector<int>& leaves) {
  if (field.is_leaf()) leaves.push_back(field.column_index);
  for (const parquet::arrow::SchemaField& child : field.children) add_leaves(child, leaves);
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
  const std::vector<parquet::arrow::SchemaField>& fields = reader->manifest().schema_fields;
  std::vector<int> leaves;
  for (const std::string& name : columns) {
    const int field = schema->GetFieldIndex(name);
    if (field < 0) return write_names(*schema);
    const arrow::DataType& type = *schema->field(field)->type();
    if (!is_text(type) && !is_token_list(type)) return write_names(*schema);
    add_leaves(fields.at(static_cast<size_t>(field)), leaves);
  }
  for (const std::string& name : more) {
    const int field = schema->GetFieldIndex(name);
    if (field >= 0 && is_value(*schema->field(field)->type()))
      add_leaves(fields.at(static_cast<size_t>(field)), leaves);
  }
  if (leaves.empty()) return write_names(*schema);
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
