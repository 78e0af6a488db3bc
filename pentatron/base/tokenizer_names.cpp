#include "pentatron/base/tokenizer_names.h"

#include <string_view>
#include <system_error>
#include <vector>

#include "pentatron/base/mapped_file.h"

namespace pentatron {

namespace fs = std::filesystem;

bool has_tokenizer_file(const fs::path& folder, const char* name) {
  return is_file(folder / name) &&
         (std::string_view(name) != kGpt2Vocabulary || is_file(folder / kGpt2Merges));
}

std::optional<fs::path> only_tokenizer_file(const fs::path& folder, bool models) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const fs::path extension = entry.path().extension();
    if (extension == ".tiktoken" || (models && extension == ".model"))
      found.push_back(entry.path());
  }
  return found.size() == 1 ? std::optional(found[0]) : std::nullopt;
}

} // namespace pentatron
