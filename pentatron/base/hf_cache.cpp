#include "pentatron/base/hf_cache.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <system_error>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kNameCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._";

/// One part of a name: no path can be made of it.
bool is_name_part(std::string_view part) {
  return !part.empty() && part.size() <= 96 && part.front() != '.' && part.front() != '-' &&
         part.find_first_not_of(kNameCharacters) == std::string_view::npos &&
         part.find("--") == std::string_view::npos && part.find("..") == std::string_view::npos;
}

/// The value of a variable that names a folder, with ~ as the home.
std::optional<fs::path> folder_from(const char* variable) {
  const char* const value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return std::nullopt;
  const std::string_view text = value;
  const char* const home = std::getenv("HOME");
  if (home != nullptr && (text == "~" || text.starts_with("~/")))
    return fs::path(home) / text.substr(std::min<size_t>(text.size(), 2));
  return fs::path(text);
}

/// What the small file says, without spaces around it.
std::string reference(const fs::path& file) {
  std::string text(256, '\0');
  std::ifstream in(file, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  return std::string(trim(text));
}

} // namespace

bool is_hf_name(std::string_view name) {
  const size_t slash = name.find('/');
  return slash != std::string_view::npos && is_name_part(name.substr(0, slash)) &&
         is_name_part(name.substr(slash + 1));
}

fs::path hf_cache_folder() {
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const auto folder = folder_from(variable)) return *folder;
  if (const auto home = folder_from("HF_HOME")) return *home / "hub";
  if (const auto cache = folder_from("XDG_CACHE_HOME")) return *cache / "huggingface" / "hub";
  return folder_from("HOME").value_or("/") / ".cache" / "huggingface" / "hub";
}

std::optional<std::string> after_hf_prefix(std::string_view text) {
  if (!text.starts_with(kHfPrefix)) return std::nullopt;
  return std::string(text.substr(kHfPrefix.size()));
}

std::optional<fs::path> find_in_hf_cache(std::string_view name) {
  if (!is_hf_name(name)) return std::nullopt;
  const size_t slash = name.find('/');
  const fs::path model = hf_cache_folder() / fmt::format("models--{}--{}", name.substr(0, slash),
                                                         name.substr(slash + 1));
  std::error_code error;
  if (!fs::is_directory(model / "snapshots", error)) return std::nullopt;
  const fs::path main = model / "refs" / "main";
  if (fs::is_regular_file(main, error)) {
    const std::string revision = reference(main);
    const fs::path snapshot = model / "snapshots" / revision;
    if (!is_name_part(revision) || !fs::is_directory(snapshot, error))
      raise<DataError>("{} does not name a folder in {}\n  try: hf download {}", main.string(),
                       (model / "snapshots").string(), name);
    return snapshot;
  }
  // Downloaded by a revision: unambiguous if there is one.
  std::vector<fs::path> snapshots;
  for (const auto& entry : fs::directory_iterator(model / "snapshots", error))
    if (entry.is_directory(error)) snapshots.push_back(entry.path());
  if (snapshots.size() == 1) return snapshots[0];
  if (snapshots.empty()) return std::nullopt;
  raise<DataError>("{} contains {} snapshots, but no refs/main that selects one\n  try: one of the "
                   "folders, such as {}",
                   (model / "snapshots").string(), snapshots.size(),
                   std::min_element(snapshots.begin(), snapshots.end())->string());
}

fs::path resolve_model_path(const fs::path& where) {
  std::error_code error;
  const std::string name = where.string();
  if (fs::exists(where, error) || !is_hf_name(name)) return where;
  if (const auto found = find_in_hf_cache(name)) return *found;
  if (fs::is_directory(where.parent_path(), error)) return where; // a path: "runs/missing"
  raise<DataError>(
      "{} does not exist, neither as a folder nor as a model in the Hugging Face cache "
      "{}\n  try: hf download {}",
      name, hf_cache_folder().string(), name);
}

std::string download_or(const fs::path& folder, std::string_view otherwise) {
  constexpr std::string_view kModels = "models--";
  const fs::path snapshots = folder.parent_path();
  std::string name = snapshots.parent_path().filename().string();
  if (snapshots.filename() != "snapshots" || !name.starts_with(kModels))
    return std::string(otherwise);
  name.erase(0, kModels.size());
  if (const size_t at = name.find("--"); at != std::string::npos) name.replace(at, 2, "/");
  return is_hf_name(name) ? "hf download " + name : std::string(otherwise);
}

} // namespace pentatron
