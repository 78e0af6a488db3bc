#include "pentatron/data/input_files.h"

#include <algorithm>
#include <optional>
#include <system_error>

#include <fmt/ranges.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/text.h"
#include "pentatron/data/parquet_source.h"
#include "pentatron/data/tsv_source.h"

namespace pentatron::data {

namespace fs = std::filesystem;

namespace {

std::optional<FileFormat> format_of(fs::path path) {
  if (path.extension() == ".parquet") return FileFormat::kParquet;
  if (compression_of(path) != Compression::kNone) path = path.stem();
  const std::string ending = path.extension().string();
  if (ending == ".jsonl" || ending == ".ndjson" || ending == ".json") return FileFormat::kJsonLines;
  if (ending == ".tsv") return FileFormat::kTsv;
  if (ending == ".txt" || ending == ".text" || ending == ".md") return FileFormat::kText;
  return std::nullopt;
}

InputFile make_file(const fs::path& path, FileFormat format) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return {path, format, error ? 0 : static_cast<int64_t>(size)};
}

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

void add_folder(const fs::path& folder, InputFiles& found) {
  const size_t before = found.files.size();
  std::error_code error;
  const auto check = [&] {
    require_descriptors(error.value(), folder.native());
    if (error) raise<DataError>("{} cannot be listed: {}", folder.string(), error.message());
  };
  fs::recursive_directory_iterator it(folder, error);
  check();
  for (const auto end = fs::recursive_directory_iterator(); it != end; it.increment(error)) {
    check();
    if (is_hidden(it->path())) {
      if (it->is_directory(error)) it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file(error)) continue;
    if (const auto format = format_of(it->path())) {
      found.files.push_back(make_file(it->path(), *format));
    } else {
      ++found.ignored;
    }
  }
  check();
  std::sort(found.files.begin() + static_cast<std::ptrdiff_t>(before), found.files.end(),
            [](const InputFile& a, const InputFile& b) { return a.path < b.path; });
}

std::optional<fs::path> search_upwards(fs::path folder) {
  std::error_code error;
  while (true) {
    for (const char* name : {"share/pentatron/corpus", "corpus"}) {
      if (fs::is_directory(folder / name / "austen", error)) return folder / name / "austen";
    }
    if (!folder.has_parent_path() || folder == folder.parent_path()) return std::nullopt;
    folder = folder.parent_path();
  }
}

} // namespace

InputFiles find_input_files(const std::vector<std::string>& paths, std::string_view option) {
  const std::string given =
      fmt::format("{}{}", option, option.starts_with("--") ? " " : "="); // as the user typed it
  InputFiles found;
  for (const std::string& name : paths) {
    const fs::path path(name);
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) {
      if (fs::exists(name + ".idx", error))
        raise<DataError>(
            "{}{} is a corpus ({}.idx exists), not a text file\n  try: pentatron train "
            "dataset.type=indexed dataset.path={}",
            given, name, name, shell_word(name));
      raise<DataError>(
          "{}{} does not exist\n  try: a .jsonl, .json, .parquet, .tsv, .txt or .md file, or a "
          "folder that contains such files",
          given, name);
    }
    if (fs::is_directory(status)) {
      add_folder(path, found);
    } else if (fs::is_regular_file(status)) {
      if (const std::string ending = path.extension().string();
          ending == ".idx" ||
          (ending == ".bin" && fs::exists(fs::path(path).replace_extension(".idx"))))
        raise<DataError>(
            "{}{} is part of a corpus of token ids, not text\n  try: the text files that "
            "it was made from",
            given, name);
      found.files.push_back(make_file(path, format_of(path).value_or(FileFormat::kText)));
    } else {
      raise<DataError>("{}{} is neither a file nor a folder\n  try: a file, or a folder that "
                       "contains files",
                       given, name);
    }
  }
  if (found.files.empty()) {
    raise<DataError>(
        "{}{} contains no text files ({} of other kinds)\n  try: files that end in "
        ".jsonl, .json, .tsv, .txt or .md, optionally followed by .gz or .zst, or in .parquet",
        given, fmt::join(paths, ","), counted(found.ignored, "file"));
  }
  return found;
}

std::unique_ptr<ByteSource> open_input(const InputFile& file, const std::vector<std::string>& keys,
                                       const std::vector<std::string>& more) {
  if (file.format == FileFormat::kParquet) return open_parquet(file.path, keys, more);
  if (file.format != FileFormat::kTsv) return open_source(file.path);
  const auto is_number = [](const std::string& key) {
    return !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
  };
  return open_tsv(open_source(file.path), keys.empty() || !std::ranges::all_of(keys, is_number));
}

std::vector<std::string> split_paths(const std::string& path) {
  std::error_code error;
  if (fs::exists(path, error)) return {path};
  std::string_view list = trim(path);
  if (list.starts_with('[') && list.ends_with(']')) list = list.substr(1, list.size() - 2);
  std::vector<std::string> paths;
  for (const std::string_view part : split(list, ',')) {
    if (const std::string_view name = trim(part); !name.empty()) paths.emplace_back(name);
  }
  return paths;
}

fs::path default_corpus() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) {
    if (const auto found = search_upwards(program.parent_path())) return *found;
  }
  if (const auto found = search_upwards(fs::current_path(error))) return *found;
  throw DataError("the text that comes with pentatron was not found beside the program\n  try: "
                  "dataset.path=FILE_OR_FOLDER");
}

} // namespace pentatron::data
