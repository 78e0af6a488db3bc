/// Finds models by their Hugging Face Hub name in the local cache that `hf download` and
/// transformers fill. Nothing is downloaded.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace pentatron {

/// Prefix of a Hugging Face folder or name in options that also take other models.
inline constexpr std::string_view kHfPrefix = "hf:";

/// Returns the text after kHfPrefix, or nothing if the text does not begin with it.
std::optional<std::string> after_hf_prefix(std::string_view text);

/// Whether it has the form ORG/NAME.
bool is_hf_name(std::string_view name);

/// HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub.
std::filesystem::path hf_cache_folder();

/// The folder of the model ORG/NAME: models--ORG--NAME/snapshots/<what refs/main names>. Returns
/// nothing if it is not in the cache. Throws DataError if refs/main does not name a snapshot.
std::optional<std::filesystem::path> find_in_hf_cache(std::string_view name);

/// Resolves a file, folder or model name: returns `where` if it exists, otherwise the model of that
/// name in the cache. For a name of the form ORG/NAME that is neither, throws DataError with the
/// command that downloads it. Returns other paths unchanged.
std::filesystem::path resolve_model_path(const std::filesystem::path& where);

/// Returns a suggestion for a folder with a missing file: the download command if the folder is a
/// snapshot in a cache, which may be incomplete; otherwise `otherwise`.
std::string download_or(const std::filesystem::path& folder, std::string_view otherwise);

} // namespace pentatron
