#include "pentatron/data/gpt/data_paths.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/naming.h"
#include "pentatron/config/config.h"
#include "pentatron/data/indexed/indexed_dataset.h"

namespace pentatron::data {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostFileBytes = size_t{16} << 20;
constexpr std::array<const char*, 3> kParts{"train", "valid", "test"};
/// What a file may hold, for a `try:`.
constexpr const char* kList = "a list of prefixes like [\"PREFIX\"]";
constexpr const char* kObject =
    "a JSON or YAML file like {\"train\": [\"PREFIX\"], \"valid\": [\"PREFIX\"]}";

std::string scalar(const Json& item, const std::string& key) {
  if (item.is_string()) return item.get<std::string>();
  if (item.is_number()) return dump_json(item);
  raise<ConfigError>("{} has the element {}, which is neither a weight nor a prefix\n  try: {}",
                     key, dump_json(item), kList);
}

/// A list in a file, or a text with words.
std::optional<Blend> blend_of(const Json& value, const std::string& key) {
  if (value.is_null()) return std::nullopt;
  std::vector<std::string> words;
  if (value.is_string())
    words = blend_words(value.get<std::string>());
  else if (!value.is_array())
    raise<ConfigError>("{} is {}, not a list of prefixes\n  try: {}", key, dump_json(value), kList);
  else
    for (const Json& item : value) words.push_back(scalar(item, key));
  if (words.empty()) raise<ConfigError>("{} does not name a corpus\n  try: {}", key, kList);
  return parse_blend(words, key);
}

/// A YAML file of paths: a list, or an object with lists.
struct PathsFile {
  std::vector<std::string> train, valid, test, paths;

  static constexpr auto fields() {
    using C = PathsFile;
    return std::tuple{config::field("train", &C::train, "corpora of training"),
                      config::field("valid", &C::valid, "corpora of validation"),
                      config::field("test", &C::test, "corpora of the test"),
                      config::field("paths", &C::paths, "corpora of all parts")};
  }
};

Json read_yaml_paths(std::string text, const std::string& file) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '[') text = "paths: " + text.substr(first);
  if (first != std::string::npos && text[first] == '-') text = "paths:\n" + text;
  PathsFile content;
  config::Violations violations;
  config::apply_yaml(content, text, file, violations);
  violations.throw_if_any();
  if (!content.paths.empty()) return content.paths;
  Json object = Json::object();
  if (!content.train.empty()) object["train"] = content.train;
  if (!content.valid.empty()) object["valid"] = content.valid;
  if (!content.test.empty()) object["test"] = content.test;
  return object;
}

/// What a file of paths says.
Json read_paths_file(const fs::path& file) {
  constexpr std::array kDocuments{".jsonl", ".ndjson", ".md", ".gz", ".zst", ".zstd", ".parquet"};
  const std::string ending = file.extension().string();
  if (std::ranges::find(kDocuments, ending) != kDocuments.end())
    raise<DataError>("{0} contains documents, but dataset.type=indexed reads corpora of tokens\n  "
                     "try: dataset.type=text dataset.path={0}, or pentatron preprocess --input {0} "
                     "--output PREFIX",
                     file.string());
  const MappedFile content(file);
  if (content.size() > kMostFileBytes) {
    raise<DataError>("{} has {} bytes, too many for a list of corpora\n  try: {}", file.string(),
                     content.size(), kObject);
  }
  if (ending == ".json") return parse_json(content.text(), file.string());
  if (ending != ".yaml" && ending != ".yml") return std::string(content.text());
  return read_yaml_paths(std::string(content.text()), file.string());
}

void take_parts(const Json& object, const std::string& key, DataPaths& paths) {
  for (const auto& [name, value] : object.items()) {
    size_t part = 0;
    while (part < kParts.size() && name != kParts[part]) ++part;
    if (part == kParts.size() && name == "validation") part = 1;
    if (part == kParts.size()) {
      raise<ConfigError>("{} has the part {}, which is not train, valid or test\n  try: {}", key,
                         name, kObject);
    }
    paths.parts[part] = blend_of(value, key + ": " + name);
  }
  if (!paths.parts[0]) raise<ConfigError>("{} has no key \"train\"\n  try: {}", key, kObject);
}

bool is_text_file(const std::string& text) {
  std::error_code error;
  return fs::is_regular_file(text, error) && !text.ends_with(".bin") && !text.ends_with(".idx");
}

bool is_prefix(const std::string& text) {
  std::error_code error;
  return fs::exists(text + ".idx", error);
}

std::optional<Blend> blend_of_key(const std::string& text, const std::string& key) {
  if (text.empty()) return std::nullopt;
  const std::string prefix = without_ending(text);
  if (is_prefix(prefix)) return Blend{{prefix}, {}};
  if (is_text_file(text))
    return naming(key + "=", text,
                  [&] { return blend_of(read_paths_file(text), key + "=" + text); });
  Blend blend = parse_blend(blend_words(text), key);
  for (std::string& name : blend.prefixes) name = without_ending(name);
  return blend;
}

} // namespace

bool names_corpora(const DatasetConfig& config) {
  if (!config.train_data_path.empty() || !config.per_split_data_args_path.empty()) return true;
  if (config.path.empty()) return false;
  std::vector<std::string> words = blend_words(config.path);
  words.insert(words.begin(), config.path); // a prefix may have spaces
  return std::ranges::any_of(
      words, [](const std::string& word) { return is_prefix(without_ending(word)); });
}

DataPaths find_data_paths(const DatasetConfig& config) {
  DataPaths paths;
  const std::string& file = config.per_split_data_args_path;
  if (!file.empty()) {
    const std::string key = "dataset.per_split_data_args_path=" + file;
    const auto read = [&] {
      const Json object = read_paths_file(file);
      if (!object.is_object())
        raise<ConfigError>("{} is not an object with train, valid, test\n  try: {}", key, kObject);
      take_parts(object, key, paths);
    };
    naming("dataset.per_split_data_args_path=", file, read, kObject);
    return paths;
  }
  if (config.path.empty()) {
    paths.parts = {blend_of_key(config.train_data_path, "dataset.train_data_path"),
                   blend_of_key(config.valid_data_path, "dataset.valid_data_path"),
                   blend_of_key(config.test_data_path, "dataset.test_data_path")};
    return paths;
  }
  if (!is_prefix(config.path) && is_text_file(config.path)) {
    const Json content =
        naming("dataset.path=", config.path, [&] { return read_paths_file(config.path); });
    if (content.is_object()) {
      take_parts(content, "dataset.path=" + config.path, paths);
      return paths;
    }
  }
  paths.shared = blend_of_key(config.path, "dataset.path");
  return paths;
}

} // namespace pentatron::data
