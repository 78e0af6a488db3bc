#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/base/text.h"
#include "pentatron/checkpoint/gguf/families/family.h"
#include "pentatron/checkpoint/gguf/rope.h"

namespace pentatron::checkpoint {

namespace {

/// The element type of most matrices.
std::string most_common_dtype(const GgufFile& file) {
  std::map<std::string, size_t> counts;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.shape.size() < 2) continue;
    const std::string name = tensor.type == GgmlType::kF16    ? "float16"
                             : tensor.type == GgmlType::kBF16 ? "bfloat16"
                                                              : "float32";
    ++counts[name];
  }
  if (counts.empty()) return "float32";
  return std::ranges::max_element(counts, {}, [](const auto& c) { return c.second; })->first;
}

std::vector<std::string_view> known_keys(const GgufFamily& family) {
  std::vector<std::string_view> known = {"vocab_size",
                                         "context_length",
                                         "embedding_length",
                                         "block_count",
                                         "feed_forward_length",
                                         "tensor_data_layout",
                                         "expert_count",
                                         "expert_used_count",
                                         "attention.head_count",
                                         "attention.head_count_kv",
                                         "attention.key_length",
                                         "attention.value_length",
                                         "attention.layer_norm_rms_epsilon",
                                         "attention.layer_norm_epsilon",
                                         "attention.causal",
                                         "attention.sliding_window",
                                         "attention.max_alibi_bias",
                                         "attention.clamp_kqv",
                                         "rope.dimension_count",
                                         "rope.freq_base",
                                         "rope.scale_linear",
                                         "rope.scaling.type",
                                         kLlama3Keys[0],
                                         kLlama3Keys[1],
                                         kLlama3Keys[2],
                                         kLlama3Keys[3],
                                         "rope.scaling.factor",
                                         "rope.scaling.original_context_length",
                                         "rope.scaling.finetuned",
                                         "rope.scaling.attn_factor",
                                         "rope.scaling.yarn_attn_factor",
                                         "rope.scaling.yarn_log_multiplier",
                                         "rope.scaling.yarn_ext_factor",
                                         "rope.scaling.yarn_beta_fast",
                                         "rope.scaling.yarn_beta_slow",
                                         "use_parallel_residual"};
  known.insert(known.end(), family.keys.begin(), family.keys.end());
  return known;
}

} // namespace

void put_sizes(const GgufFamily& family, const GgufStructure& s, Json& hf) {
  hf["model_type"] = family.model_type;
  hf["architectures"] = {family.model_class};
  hf["num_hidden_layers"] = s.layers;
  hf["hidden_size"] = s.hidden;
  hf["intermediate_size"] = s.ffn;
  hf["num_attention_heads"] = s.heads;
}

GgufConfig config_from_gguf(const GgufFile& file, Problems& problems) {
  const GgufKeys& keys = file.metadata();
  GgufConfig out;
  const std::string architecture = keys.text("general.architecture");
  const GgufFamily* const family = find_gguf_family(&GgufFamily::architecture, architecture);
  if (family == nullptr)
    raise<ConfigError>("{}: general.architecture={} is not supported; supported are {}",
                       keys.origin(), excerpt(architecture), gguf_family_list());
  if (const auto parts = keys.find_integer("split.count"); parts && *parts > 1)
    raise<CheckpointError>("{} is one part of a model that is split into {} files\n  try: join "
                           "them with llama-gguf-split --merge",
                           keys.origin(), *parts);
  out.structure.family = family;
  GgufKeyReader in(file, architecture, problems);
  in.refuse_others(known_keys(*family));
  in.refuse_unless("attention.causal", 1);
  in.refuse_unless("attention.max_alibi_bias", 0);
  in.refuse_unless("attention.clamp_kqv", 0);
  in.refuse_unless("use_parallel_residual", 0);
  family->read(in, out);

  GgufStructure& s = out.structure;
  s.untied = in.has_tensor("output.weight");
  const GgufTensor* embedding = file.find("token_embd.weight");
  s.vocab = embedding && embedding->shape.size() == 2 ? embedding->shape[0] : 0;
  if (s.vocab < 1)
    problems.push_back("'token_embd.weight' is missing or does not have one row per token");
  if (const auto vocab = in.find_size("vocab_size"); vocab && *vocab != s.vocab)
    problems.push_back(fmt::format("{}={}, but 'token_embd.weight' has {} rows",
                                   in.full("vocab_size"), *vocab, s.vocab));
  // A layer has 9 tensors or more; with far fewer the number is wrong, and nothing is made of it.
  if (static_cast<uint64_t>(s.layers) > file.tensors().size() / 4 + 1)
    problems.push_back(fmt::format("{}={}, but there are {} tensors", in.full("block_count"),
                                   s.layers, file.tensors().size()));
  out.hf["vocab_size"] = s.vocab;
  out.hf["tie_word_embeddings"] = !s.untied;
  out.hf["torch_dtype"] = most_common_dtype(file);
  for (const auto& [key, name] : {std::pair("bos_token_id", "tokenizer.ggml.bos_token_id"),
                                  std::pair("eos_token_id", "tokenizer.ggml.eos_token_id"),
                                  std::pair("pad_token_id", "tokenizer.ggml.padding_token_id")}) {
    if (const auto id = keys.find_integer(name)) out.hf[key] = *id;
  }
  return out;
}

} // namespace pentatron::checkpoint
