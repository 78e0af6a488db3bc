#include "pentatron/checkpoint/generation_defaults.h"

#include "pentatron/base/error.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

/// Takes over what is not known yet.
void add_defaults(const Json& json, const std::string& where, GenerationDefaults& defaults) {
  if (!json.is_object()) raise<DataError>("{} is not a JSON object", where);
  const auto one = [&](const char* key, std::optional<int64_t>& target) {
    if (!target && json.contains(key) && !json[key].is_null())
      target = json_get<int64_t>(json, key, where);
  };
  one("bos_token_id", defaults.bos);
  one("pad_token_id", defaults.pad);
  if (!defaults.eos.empty() || !json.contains("eos_token_id") || json["eos_token_id"].is_null())
    return;
  defaults.eos = json["eos_token_id"].is_array()
                     ? json_get<std::vector<int64_t>>(json, "eos_token_id", where)
                     : std::vector{json_get<int64_t>(json, "eos_token_id", where)};
}

} // namespace

GenerationDefaults generation_defaults(const Json& json, const std::string& where) {
  GenerationDefaults defaults;
  add_defaults(json, where, defaults);
  return defaults;
}

GenerationDefaults generation_defaults(const fs::path& folder) {
  GenerationDefaults defaults;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const fs::path file = folder / name;
    std::error_code ignored;
    if (fs::is_regular_file(file, ignored)) add_defaults(read_json(file), file.string(), defaults);
  }
  return defaults;
}

} // namespace pentatron::checkpoint
