#include "pentatron/evaluation/tasks/documents.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <set>
#include <span>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/text.h"
#include "pentatron/data/document_reader.h"
#include "pentatron/data/utf8.h"
#include "pentatron/evaluation/tasks/csv.h"

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

/// Null for what is no JSON at all.
Document parsed(std::string_view text, const std::string& where) {
  try {
    return parse_ordered_json(text, where);
  } catch (const DataError& error) {
    if (std::string_view(error.what()).find("not valid JSON") != std::string_view::npos)
      return nullptr;
    raise<DataError>("{}\n  try: documents with each key once, and of at most {} levels",
                     error.what(), JsonLimits().max_depth);
  }
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
  const auto take = [&](std::string_view record, const data::RecordPlace& place) {
    Document document = parsed(record, place.to_string());
    if (!document.is_object())
      raise<DataError>("{} is not a JSON object: {}\n  try: an object, such as {{\"question\": "
                       "\"...\"}}, as each line of {}",
                       place.to_string(), excerpt(record), path.filename().string());
    documents.push_back(std::move(document));
  };
  try {
    data::read_records(file, options, report, take);
  } catch (const DataError& error) {
    if (std::string_view(error.what()).find("\n  try: ") != std::string_view::npos) throw;
    raise<DataError>("{}\n  try: an intact {}{}", error.what(), path.filename().string(),
                     parquet ? "" : ", with a JSON object on each line, or a list of objects");
  }
}

std::string read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) require_descriptors(errno, path.native());
  std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  if (const size_t bad = data::find_invalid_utf8(text); bad != std::string::npos)
    raise<DataError>("{} is not valid UTF-8 at byte {}\n  try: a file in UTF-8", path.string(),
                     bad);
  return text;
}

void require(const Task& task, const std::string& split, const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return;
  raise<DataError>("{} of task {} (split {}) {}\n  try: put the file there, or "
                   "eval.data_path=FOLDER, which the data paths are relative to",
                   path.string(), task.name, split,
                   fs::exists(path, error) ? "is not a file" : "does not exist");
}

/// The files below `folder` that the parts of a pattern match, in the order of their names. As for
/// Hugging Face, hidden ones need a pattern that begins with a dot.
void add_matches(const fs::path& folder, std::span<const std::string> parts,
                 std::vector<fs::path>& found) {
  if (parts.empty()) {
    if (fs::is_regular_file(folder)) found.push_back(folder);
    return;
  }
  if (parts[0].find_first_of("*?[") == std::string::npos) {
    std::error_code error;
    if (fs::exists(folder / parts[0], error))
      add_matches(folder / parts[0], parts.subspan(1), found);
    return;
  }
  std::vector<std::string> names;
  std::error_code error;
  const fs::path listed = folder.empty() ? fs::path(".") : folder;
  for (const auto& entry : fs::directory_iterator(listed, error)) {
    std::string name = entry.path().filename().string();
    if (name.starts_with('.') == parts[0].starts_with('.') && matches_pattern(parts[0], name))
      names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  for (const std::string& name : names) add_matches(folder / name, parts.subspan(1), found);
}

/// The files of a split, with those that patterns match.
std::vector<fs::path> files_of(const Task& task, const std::string& split) {
  std::vector<fs::path> files;
  for (const fs::path& path : task.data.splits.at(split)) {
    std::error_code error;
    const bool pattern = path.string().find_first_of("*?[") != std::string::npos;
    if (!pattern || fs::is_regular_file(path, error)) {
      require(task, split, path);
      files.push_back(path);
      continue;
    }
    const size_t before = files.size();
    const fs::path inside = path.relative_path();
    const std::vector<std::string> parts(inside.begin(), inside.end());
    if (std::ranges::find(parts, "**") != parts.end())
      raise<DataError>("{} of task {} (split {}): ** is not supported\n  try: a pattern for each "
                       "folder, as a/*.jsonl",
                       path.string(), task.name, split);
    add_matches(path.root_path(), parts, files);
    if (files.size() == before)
      raise<DataError>("no file matches {} of task {} (split {})\n  try: eval.data_path=FOLDER, "
                       "which the data paths are relative to",
                       path.string(), task.name, split);
  }
  return files;
}

/// The first key of a JSON object that has a list.
std::optional<std::string> list_key_of(const Document& whole) {
  if (!whole.is_object()) return std::nullopt;
  for (const auto& [key, value] : whole.items())
    if (value.is_array()) return key;
  return std::nullopt;
}

/// The list of documents under a key of one JSON object.
void read_field(const std::string& field, const fs::path& path, Documents& documents) {
  const Document whole = parsed(read_file(path), path.string());
  const Document* list = whole.is_object() && whole.contains(field) ? &whole[field] : nullptr;
  if (list == nullptr || !list->is_array())
    raise<DataError>("{} is not a JSON object with a list under the key {} "
                     "(dataset_kwargs.field)\n  try: field: {}",
                     path.string(), field, list_key_of(whole).value_or("the key of a list"));
  for (const Document& document : *list) {
    if (!document.is_object())
      raise<DataError>("{}: the list {} has {}, which is not a JSON object\n  try: a list of "
                       "objects",
                       path.string(), field, excerpt(document.dump()));
    documents.push_back(document);
  }
}

} // namespace

void unite_numbers(const std::vector<Document*>& values) {
  std::vector<Document*> integers, items;
  std::map<std::string, std::vector<Document*>> members;
  bool floats = false, others = false;
  for (Document* const value : values) {
    if (value->is_number_integer())
      integers.push_back(value);
    else if (value->is_number_float())
      floats = true;
    else if (value->is_array())
      for (Document& item : *value) items.push_back(&item);
    else if (value->is_object())
      for (auto& [name, member] : value->items()) members[name].push_back(&member);
    else if (!value->is_null())
      others = true;
  }
  if (floats && !others && items.empty() && members.empty())
    for (Document* const value : integers) *value = value->get<double>();
  if (!items.empty()) unite_numbers(items);
  for (const auto& [name, all] : members) unite_numbers(all);
}

namespace {

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
      Document number = parsed(label, path.string());
      documents[i]["label"] = number.is_number_integer() ? number : Document(std::string(label));
    }
    ++i;
  }
  if (i != documents.size())
    raise<DataError>("{} has {} labels, but there are {} documents\n  try: a label for each "
                     "document, each on its own line",
                     path.string(), i, documents.size());
}

} // namespace

Documents read_documents(const Task& task, const std::string& split) {
  const auto files = task.data.splits.find(split);
  PT_DCHECK(files != task.data.splits.end());
  Documents documents;
  for (const fs::path& path : files_of(task, split)) {
    if (task.data.format == DataFormat::kCsv) {
      Documents more =
          parse_csv(read_file(path), task.data.column_names, task.data.delimiter[0], path.string());
      std::ranges::move(more, std::back_inserter(documents));
    } else if (!task.data.field.empty()) {
      read_field(task.data.field, path, documents);
    } else {
      read_records(task, path, documents);
    }
  }
  if (documents.empty())
    raise<DataError>("{} of task {} (split {}) has no documents\n  try: a file with documents",
                     files->second.front().string(), task.name, split);
  if (task.data.format == DataFormat::kCsv && !task.data.cells_as_text) infer_cell_types(documents);
  if (task.data.format == DataFormat::kJson) {
    std::vector<Document*> all;
    for (Document& document : documents) all.push_back(&document);
    unite_numbers(all);
  }
  if (const auto labels = task.data.labels.find(split); labels != task.data.labels.end()) {
    require(task, split, labels->second);
    add_labels(labels->second, documents);
  }
  complete(documents);
  return documents;
}

} // namespace pentatron::evaluation
