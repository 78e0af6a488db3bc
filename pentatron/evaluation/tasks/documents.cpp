#include "pentatron/evaluation/tasks/documents.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/data/document_reader.h"
#include "pentatron/data/utf8.h"

namespace pentatron::evaluation {

namespace fs = std::filesystem;

namespace {

/// Names that the task's templates look up, for formats that are read by column.
std::vector<std::string> columns_of(const Task& task) {
  std::set<std::string> names;
  const auto add = [&](const Field& field) {
    const std::set<std::string> more = field.columns();
    names.insert(more.begin(), more.end());
  };
  for (const Fields* fields : {&task.fields, &task.fewshot.fields})
    for (const Field* field : {&fields->text, &fields->target, &fields->choice, &fields->prefix})
      add(*field);
  add(task.description);
  add(task.normalize_by);
  std::erase_if(names, [](const std::string& name) {
    return name.empty() || name.find_first_of("{}-\n ") != std::string::npos;
  });
  return {names.begin(), names.end()};
}

void read_records(const Task& task, const fs::path& path, Documents& documents) {
  const bool parquet = task.data.format == DataFormat::kParquet;
  data::InputFile file{.path = path,
                       .format =
                           parquet ? data::FileFormat::kParquet : data::FileFormat::kJsonLines,
                       .size_bytes = static_cast<int64_t>(fs::file_size(path))};
  data::RecordOptions options;
  if (parquet) options.more = columns_of(task);
  data::InputReport report;
  data::read_records(file, options, report,
                     [&](std::string_view record, const data::RecordPlace& place) {
                       Document document = Document::parse(record, nullptr, false);
                       if (!document.is_object())
                         raise<DataError>("{} is not a JSON object", place.to_string());
                       documents.push_back(std::move(document));
                     });
}

std::string read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  if (const size_t bad = data::find_invalid_utf8(text); bad != std::string::npos)
    raise<DataError>("{} is not valid UTF-8 at byte {}", path.string(), bad);
  return text;
}

void require(const Task& task, const std::string& split, const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return;
  raise<DataError>("{} of task {} (split {}) does not exist\n  try: put the file there, or "
                   "eval.data_path=FOLDER, which the data paths are relative to",
                   path.string(), task.name, split);
}

/// Fields that some documents lack are null there.
void complete(Documents& documents) {
  std::vector<std::string> keys;
  std::set<std::string> known;
  for (const Document& document : documents)
    for (const auto& [key, value] : document.items())
      if (known.insert(key).second) keys.push_back(key);
  for (Document& document : documents)
    if (document.size() < keys.size())
      for (const std::string& key : keys)
        if (!document.contains(key)) document[key] = nullptr;
}

void add_labels(const fs::path& path, Documents& documents) {
  const std::string text = read_file(path);
  size_t i = 0;
  for (const std::string_view line : split(text, '\n')) {
    const std::string_view label = trim(line);
    if (label.empty()) continue;
    if (i < documents.size()) {
      Document number = Document::parse(label, nullptr, false);
      documents[i]["label"] = number.is_number_integer() ? number : Document(std::string(label));
    }
    ++i;
  }
  if (i != documents.size())
    raise<DataError>("{} has {} labels, but there are {} documents", path.string(), i,
                     documents.size());
}

} // namespace

Documents parse_csv(std::string_view text, const std::vector<std::string>& names, char delimiter,
                    std::string_view where) {
  Documents documents;
  std::vector<std::string> columns = names, row;
  std::string cell;
  int64_t line = 1, row_line = 1;
  bool quoted = false, was_quoted = false;
  const auto end_row = [&] {
    row.push_back(std::exchange(cell, {}));
    const bool blank = row.size() == 1 && row[0].empty() && !was_quoted;
    if (!blank && columns.empty()) {
      columns = row;
    } else if (!blank) {
      if (row.size() != columns.size())
        raise<DataError>("{}: line {} has {} cells, but there are {} columns", where, row_line,
                         row.size(), columns.size());
      Document document = Document::object();
      for (size_t i = 0; i < row.size(); ++i) document[columns[i]] = row[i];
      documents.push_back(std::move(document));
    }
    row.clear();
    was_quoted = false;
    row_line = line;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (quoted) {
      if (c != '"') {
        cell += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        cell += text[++i];
      } else {
        quoted = false;
      }
    } else if (c == '"' && cell.empty()) {
      quoted = was_quoted = true;
    } else if (c == delimiter) {
      row.push_back(std::exchange(cell, {}));
    } else if (c == '\n') {
      if (cell.ends_with('\r')) cell.pop_back();
      end_row();
    } else {
      cell += c;
    }
  }
  if (quoted) raise<DataError>("{}: the quoted cell in line {} is not closed", where, row_line);
  if (!cell.empty() || !row.empty()) {
    if (cell.ends_with('\r')) cell.pop_back();
    end_row();
  }
  return documents;
}

Documents read_documents(const Task& task, const std::string& split) {
  const auto files = task.data.splits.find(split);
  PT_DCHECK(files != task.data.splits.end());
  Documents documents;
  for (const fs::path& path : files->second) {
    require(task, split, path);
    if (task.data.format == DataFormat::kCsv) {
      Documents more =
          parse_csv(read_file(path), task.data.column_names, task.data.delimiter[0], path.string());
      std::ranges::move(more, std::back_inserter(documents));
    } else {
      read_records(task, path, documents);
    }
  }
  if (documents.empty())
    raise<DataError>("{} of task {} (split {}) has no documents\n  try: another file",
                     files->second.front().string(), task.name, split);
  if (const auto labels = task.data.labels.find(split); labels != task.data.labels.end()) {
    require(task, split, labels->second);
    add_labels(labels->second, documents);
  }
  complete(documents);
  return documents;
}

} // namespace pentatron::evaluation
