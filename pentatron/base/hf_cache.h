/// Finds models by their Hugging Face Hub name in the local cache that `hf download` and
/// transformers fill. Nothing is downloaded.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace pentatron {

/// Before the folder or name of a Hugging Face model, where other models may be named too.
inline constexpr std::string_view kHfPrefix = "hf:";

/// What follows kHfPrefix; none if the text does not begin with it.
std::optional<std::string> after_hf_prefix(std::string_view text);

/// Whether it has the form ORG/NAME.
bool is_hf_name(std::string_view name);

/// HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub.
std::filesystem::path hf_cache_folder();

/// The folder of the model ORG/NAME: models--ORG--NAME/snapshots/<what refs/main names>. None if it
/// is not in the cache. Throws DataError for a reference that does not name a snapshot.
std::optional<std::filesystem::path> find_in_hf_cache(std::string_view name);

/// The file or folder that a user means: `where` itself if it exists, else the model of that name
/// in the cache. Throws DataError, with the command that downloads it, for a name of the form
/// ORG/NAME that is neither; other paths come back as they are.
std::filesystem::path resolve_model_path(const std::filesystem::path& where);

/// What to try when a file is missing in a folder: the command that downloads the model if it is a
/// snapshot in a cache, which may lack files; else `otherwise`.
std::string download_or(const std::filesystem::path& folder, std::string_view otherwise);

} // namespace pentatron
