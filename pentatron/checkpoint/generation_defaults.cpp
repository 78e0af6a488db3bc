#include "pentatron/checkpoint/generation_defaults.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"

namespace pentatron::checkpoint {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kGenerationConfig = "generation_config.json";

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

/// Settings of GenerationConfig with the value that has no effect; null has none either.
const std::vector<std::pair<const char*, Json>>& unused_settings() {
  static const std::vector<std::pair<const char*, Json>> settings = {
      {"repetition_penalty", 1.0},
      {"encoder_repetition_penalty", 1.0},
      {"no_repeat_ngram_size", 0},
      {"encoder_no_repeat_ngram_size", 0},
      {"min_length", 0},
      {"min_new_tokens", 0},
      {"typical_p", 1.0},
      {"epsilon_cutoff", 0.0},
      {"eta_cutoff", 0.0},
      {"top_h", nullptr},
      {"num_beams", 1},
      {"penalty_alpha", 0.0},
      {"guidance_scale", 1.0},
      {"exponential_decay_length_penalty", nullptr},
      {"bad_words_ids", nullptr},
      {"sequence_bias", nullptr},
      {"suppress_tokens", Json::array()},
      {"begin_suppress_tokens", Json::array()},
      {"forced_bos_token_id", nullptr},
      {"forced_eos_token_id", nullptr},
      {"forced_decoder_ids", nullptr},
      {"stop_strings", nullptr},
      {"watermarking_config", nullptr}};
  return settings;
}

std::vector<std::string> unused_in(const Json& json) {
  std::vector<std::string> unused;
  for (const auto& [name, neutral] : unused_settings())
    if (const auto found = json.find(name); found != json.end() && *found != neutral &&
                                            !(found->is_structured() && found->empty()) &&
                                            !found->is_null())
      unused.push_back(fmt::format("{}={}", name, excerpt(dump_json(*found), 60)));
  return unused;
}

} // namespace

GenerationDefaults generation_defaults(const Json& json, const std::string& where) {
  GenerationDefaults defaults;
  add_defaults(json, where, defaults);
  return defaults;
}

GenerationDefaults generation_defaults(const fs::path& folder) {
  GenerationDefaults defaults;
  for (const std::string_view name : {kGenerationConfig, std::string_view("config.json")}) {
    const fs::path file = folder / name;
    std::error_code ignored;
    if (!fs::is_regular_file(file, ignored)) continue;
    const Json json = read_json(file);
    add_defaults(json, file.string(), defaults);
    if (name == kGenerationConfig) defaults.unused = unused_in(json);
  }
  return defaults;
}

} // namespace pentatron::checkpoint
