#include "pentatron/checkpoint/model_files.h"

#include <filesystem>

#include "pentatron/base/hf_cache.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/checkpoint/model_source.h"
#include "pentatron/checkpoint/sharded/attachments.h"
#include "pentatron/checkpoint/sharded/manifest.h"
#include "pentatron/checkpoint/source_facts.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

std::map<std::string, std::string> model_files(const std::string& where) {
  std::map<std::string, std::string> files;
  const std::string begin = std::string(kCompanionFolder) + "/";
  const auto name = after_hf_prefix(where);
  const bool plain =
      !name && fs::is_directory(where) && recognise_model(where) == ModelFormat::kHuggingFace;
  if (name || plain) {
    const fs::path folder = resolve_model_path(name ? std::string(*name) : where);
    for (const char* file : {"config.json", "generation_config.json"}) {
      const fs::path path = folder / file;
      if (fs::exists(path)) files[begin + file] = std::string(MappedFile(path).text());
    }
  } else if (fs::is_directory(where)) {
    for (const auto& [name, attachment] : read_manifest(where).attachments)
      if (name.starts_with(begin)) files[name] = read_attachment(where, name, attachment);
  }
  return files;
}

} // namespace pentatron::checkpoint
