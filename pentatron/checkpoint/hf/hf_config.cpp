#include "pentatron/checkpoint/hf/hf_config.h"

#include <algorithm>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/json.h"
#include "pentatron/checkpoint/hf/families/family.h"
#include "pentatron/config/config.h"
#include "pentatron/models/model.h"

namespace pentatron::checkpoint {

namespace {

/// Nothing is made as large as a damaged file says.
void check_extents(const ConfigReader& in) {
  constexpr int64_t kLayers = 10'000, kWidth = int64_t{1} << 24, kTokens = int64_t{1} << 31;
  const auto at_most = [&](int64_t limit, std::initializer_list<const char*> keys) {
    for (const char* key : keys)
      if (const auto value = in.find<int64_t>(key); value && (*value < 0 || *value > limit))
        raise<DataError>("{}: {}={} is not in 0 to {}", in.where(), key, *value, limit);
  };
  at_most(kLayers, {"n_layer", "num_hidden_layers", "num_layers", "num_decoder_layers"});
  at_most(kWidth, {"n_embd",
                   "hidden_size",
                   "n_head",
                   "num_attention_heads",
                   "num_key_value_heads",
                   "head_dim",
                   "n_inner",
                   "intermediate_size",
                   "d_model",
                   "d_ff",
                   "d_kv",
                   "num_heads",
                   "type_vocab_size",
                   "q_lora_rank",
                   "kv_lora_rank",
                   "qk_nope_head_dim",
                   "qk_rope_head_dim",
                   "v_head_dim",
                   "moe_intermediate_size",
                   "n_shared_experts"});
  at_most(kTokens, {"vocab_size", "n_positions", "max_position_embeddings"});
}

/// The row of the word embeddings that transformers gives no gradient; negative ids count from the
/// end, as in torch.nn.Embedding.
int64_t padding_token(const ConfigReader& in, const Family& family, int64_t vocab_size) {
  if (!family.padding_token) return -1;
  int64_t id = *family.padding_token;
  if (in.json().contains("pad_token_id")) {
    const auto given = in.find<int64_t>("pad_token_id");
    id = !given ? -1 : *given < 0 ? vocab_size + *given : *given;
  }
  return id < vocab_size ? std::max<int64_t>(id, -1) : -1;
}

/// Under the family's own names of keys.
Json with_own_names(const Json& json, const Family& family, const std::string& where) {
  Json own = json;
  for (const auto& [other, name] : family.aliases) {
    if (!json.contains(other)) continue;
    if (json.contains(name) && json[name] != json[other])
      raise<ConfigError>("{}: {}={} contradicts {}={}\n  try: remove one of the two keys", where,
                         other, json[other].dump(), name, json[name].dump());
    own[name] = json[other];
  }
  return own;
}

/// Only GPT-OSS's own form is read, by its family.
void refuse_quantisation(const ConfigReader& in, const Family& family) {
  const auto found = in.json().find("quantization_config");
  if (found == in.json().end() || !found->is_object() || family.reads_quantised) return;
  const auto method = json_get_or<std::string>(*found, "quant_method", "?", in.where());
  raise<ConfigError>("{}: weights quantized by {} are not supported\n  try: a copy of the model "
                     "whose weights are not quantized, or its GGUF file",
                     in.where(), method);
}

/// transformers names a model without an output layer after its type alone.
bool names_no_head(const ConfigReader& in) {
  const auto found = in.json().find("architectures");
  if (found == in.json().end() || !found->is_array() || found->empty() ||
      !found->front().is_string())
    return false;
  const auto name = found->front().get<std::string>();
  return name.ends_with("Model") && name.find("Head") == std::string::npos; // GPT2LMHeadModel
}

} // namespace

HfModel parse_hf_config(const Json& json, const std::string& where) {
  HfModel model{.family = ConfigReader(json, where).get<std::string>("model_type"), .config = {}};
  model.without_head = names_no_head(ConfigReader(json, where));
  const Family* const family = find_family(model.family);
  if (family == nullptr)
    raise<ConfigError>("{}: model_type={} is not a supported family; supported are {}", where,
                       model.family, family_list());
  const Json own = with_own_names(json, *family, where);
  const ConfigReader in(own, where);
  check_extents(in);
  refuse_quantisation(in, *family);
  model.config = family->read(in);
  model.config.padding_token = padding_token(in, *family, model.config.vocab_size);
  model.config.init_method_std = in.get<double>("initializer_range", 0.02);
  config::Violations violations;
  config::validate(model.config, violations);
  if (!violations.empty())
    raise<DataError>("{} is not a valid model configuration:\n{}", in.where(), violations.text());
  if (!in.get<bool>("is_causal", true) &&
      models::model_spec(model.config).generates == models::Generates::kContinuation)
    in.refuse("is_causal=false, attention to later tokens in a decoder,");
  return model;
}

HfModel read_hf_config(const std::filesystem::path& folder) {
  if (std::error_code ignored; !std::filesystem::exists(folder / "config.json", ignored)) {
    raise<DataError>("{} {}\n  try: {}", folder.string(),
                     std::filesystem::exists(folder, ignored) ? "contains no config.json"
                                                              : "does not exist",
                     download_or(folder, "the folder of a Hugging Face model, with config.json "
                                         "and model.safetensors"));
  }
  const std::filesystem::path file = folder / "config.json";
  HfModel model = parse_hf_config(read_json(file), file.string());
  const Family& family = *find_family(model.family);
  if (const std::string why = family.obstacle != nullptr ? family.obstacle(model.config) : "";
      !why.empty())
    raise<ConfigError>("{}: {}, which transformers does not load for model_type={}", file.string(),
                       why, family.model_type);
  return model;
}

} // namespace pentatron::checkpoint
