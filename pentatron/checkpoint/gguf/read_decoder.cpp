#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "pentatron/base/text.h"
#include "pentatron/checkpoint/gguf/families/family.h"
#include "pentatron/checkpoint/gguf/quants.h"
#include "pentatron/checkpoint/gguf/rope.h"

namespace pentatron::checkpoint {

namespace {

Json yarn(GgufKeyReader& in, double factor, bool truncate) {
  Json rope = {{"rope_type", "yarn"}, {"factor", factor}};
  if (!truncate) rope["truncate"] = false;
  if (const auto original = in.find_size("rope.scaling.original_context_length"))
    rope["original_max_position_embeddings"] = *original;
  if (const auto fast = in.number("rope.scaling.yarn_beta_fast")) rope["beta_fast"] = *fast;
  if (const auto slow = in.number("rope.scaling.yarn_beta_slow")) rope["beta_slow"] = *slow;
  in.refuse_unless("rope.scaling.yarn_ext_factor", 1);
  return rope;
}

/// The values of a tensor of divisors; empty: another shape or type, which is a problem.
std::vector<float> read_divisors(GgufKeyReader& in, const GgufTensor& tensor, int64_t count) {
  const std::vector<int64_t> shape = {count};
  if (tensor.type != GgmlType::kF32 || tensor.shape != shape) {
    in.problem(fmt::format("tensor '{}' is {} [{}] instead of F32 [{}]", tensor.name,
                           name_of(tensor.type), fmt::join(tensor.shape, ", "), count));
    return {};
  }
  std::vector<float> divisors(static_cast<size_t>(count));
  dequantize(tensor.type, tensor.data, divisors);
  return divisors;
}

/// LongRoPE, of files with its tensors.
Json longrope(GgufKeyReader& in, int64_t rotary) {
  const GgufTensor *const longer = in.file().find(kLongFactors), *const shorter =
                                                                     in.file().find(kShortFactors);
  if (longer == nullptr || shorter == nullptr) {
    in.problem(fmt::format("{} and {} are only supported together", kLongFactors, kShortFactors));
    return nullptr;
  }
  const auto factors = [&](const GgufTensor& tensor) {
    std::vector<double> values;
    for (const float value : read_divisors(in, tensor, rotary / 2))
      values.push_back(as_written(value));
    return values;
  };
  const std::string type = in.text("rope.scaling.type").value_or("none");
  if (type != "none" && type != "longrope")
    in.problem(fmt::format("{}={} together with {} is not supported", in.full("rope.scaling.type"),
                           excerpt(type), kLongFactors));
  for (const char* key :
       {"rope.scaling.factor", "rope.scale_linear", "rope.scaling.yarn_attn_factor"})
    in.refuse_unless(key, 1);
  const int64_t positions = in.size("context_length"),
                original = in.size("rope.scaling.original_context_length", positions);
  Json rope = {{"rope_type", "longrope"},
               {"original_max_position_embeddings", original},
               {"long_factor", factors(*longer)},
               {"short_factor", factors(*shorter)}};
  const double usual =
      longrope_attention(static_cast<double>(positions) / static_cast<double>(original), original);
  const double given = in.number("rope.scaling.attn_factor").value_or(1);
  if (std::fabs(given - usual) > 1e-6) rope["attention_factor"] = as_written(given);
  return rope;
}

/// Null where frequencies are as they are.
Json read_rope_scaling(GgufKeyReader& in, const GgufDecoder& d, int64_t rotary) {
  if (d.longrope &&
      (in.file().find(kLongFactors) != nullptr || in.file().find(kShortFactors) != nullptr))
    return longrope(in, rotary);
  const std::string type = in.text("rope.scaling.type").value_or("none");
  const double factor =
      in.number("rope.scaling.factor").value_or(in.number("rope.scale_linear").value_or(1.0));
  for (const char* key : {"attn_factor", "yarn_attn_factor"})
    in.refuse_unless(std::string("rope.scaling.") + key, 1);
  in.refuse_unless("rope.scaling.yarn_log_multiplier", 0);
  if (type == "yarn") return yarn(in, factor, d.yarn_truncate);
  const bool linear = type == "linear" || (type == "none" && in.has("rope.scale_linear"));
  if (linear && factor != 1 && factor != 0) return {{"rope_type", "linear"}, {"factor", factor}};
  if (type != "none" && type != "linear")
    in.problem(fmt::format("{}={} is not supported", in.full("rope.scaling.type"), excerpt(type)));
  return nullptr;
}

/// The parameters of Llama 3's divisors: as the file tells them, if an export from here made it and
/// they are those, else as the divisors show them.
std::optional<Llama3Rope> told_llama3_rope(GgufKeyReader& in, std::span<const float> divisors,
                                           double theta, int64_t head_size) {
  const auto factor = in.number(kLlama3Keys[0]), low = in.number(kLlama3Keys[1]),
             high = in.number(kLlama3Keys[2]);
  if (factor && low && high && in.has(kLlama3Keys[3])) {
    const Llama3Rope told{.factor = *factor,
                          .low_freq_factor = *low,
                          .high_freq_factor = *high,
                          .original_positions = in.size(kLlama3Keys[3])};
    if (agrees(told, divisors, theta, head_size)) return told;
  }
  return find_llama3_rope(divisors, theta, head_size);
}

/// Llama 3's divisors as the parameters they come from.
Json read_rope_freqs(GgufKeyReader& in, const GgufTensor& tensor, double theta, int64_t head_size) {
  const std::vector<float> divisors = read_divisors(in, tensor, head_size / 2);
  if (divisors.empty()) return nullptr;
  const auto rope = told_llama3_rope(in, divisors, theta, head_size);
  if (!rope) {
    in.problem(
        "the values of tensor 'rope_freqs.weight' do not come from Llama 3's frequency scaling");
    return nullptr;
  }
  if (rope->factor == 1) return nullptr;
  return {{"rope_type", "llama3"},
          {"factor", as_written(rope->factor)},
          {"low_freq_factor", rope->low_freq_factor},
          {"high_freq_factor", rope->high_freq_factor},
          {"original_max_position_embeddings", rope->original_positions}};
}

/// Sizes, which all decoders but GPT-2 have under the same keys.
void read_sizes(GgufKeyReader& in, GgufStructure& s) {
  s.layers = in.size("block_count");
  s.hidden = in.size("embedding_length");
  s.heads = in.size("attention.head_count");
  s.kv_heads = in.size("attention.head_count_kv", s.heads);
  s.ffn = in.size("feed_forward_length");
  s.head_size = in.size("attention.key_length", std::max<int64_t>(1, s.hidden / s.heads));
  if (in.size("attention.value_length", s.head_size) != s.head_size)
    in.problem("keys and values with different head sizes are not supported");
  if (s.head_size % 2 != 0) in.problem(fmt::format("the head size {} is odd", s.head_size));
  if (s.heads % s.kv_heads != 0)
    in.problem(fmt::format("{} attention heads cannot be divided evenly among {} key-value heads",
                           s.heads, s.kv_heads));
}

/// The share of a head that rotates, of which transformers takes the whole part: 1 for
/// architectures that have no such share.
double rotary_share(GgufKeyReader& in, const GgufStructure& s) {
  const int64_t rotary = in.size("rope.dimension_count", s.head_size);
  if (rotary == s.head_size) return 1;
  if (!s.family->decoder.partial_rotary || rotary > s.head_size) {
    in.problem(fmt::format("{}={} with a head size of {} is not supported",
                           in.full("rope.dimension_count"), rotary, s.head_size));
    return 1;
  }
  const auto head = static_cast<double>(s.head_size);
  const double share = static_cast<double>(rotary) / head;
  return static_cast<int64_t>(head * share) == rotary ? share : std::nextafter(share, 1.0);
}

void read_biases(GgufKeyReader& in, GgufStructure& s) {
  const GgufDecoder& d = s.family->decoder;
  const bool q = in.has_tensor("blk.0.attn_q.bias");
  const bool all = d.biases == GgufBiases::kAll, given = d.biases == GgufBiases::kGiven;
  s.proj_bias = all || (given && (q || in.has_tensor("blk.0.attn_output.bias")));
  s.qkv_bias =
      d.biases == GgufBiases::kQkv || (d.biases == GgufBiases::kQkvGiven && q) || s.proj_bias;
  s.mlp_bias = d.mlp_bias && in.has_tensor("blk.0.ffn_up.bias");
}

/// That of the architecture whose files have a window and experts, or have none.
const GgufFamily& family_of(GgufKeyReader& in, const GgufFamily& first) {
  const bool windowed = read_window(in).has_value();
  const bool experts = in.keys().find_integer(in.full("expert_count")).value_or(0) != 0;
  const GgufFamily* found = &first;
  for (const GgufFamily& family : gguf_families()) {
    if (family.architecture != first.architecture) continue;
    const bool has_experts = family.decoder.experts.count != nullptr;
    if (has_experts == experts && (experts || family.windowed == windowed)) found = &family;
  }
  return *found;
}

void read_experts(GgufKeyReader& in, GgufStructure& s, Json& hf) {
  const GgufExperts& e = s.family->decoder.experts;
  if (e.count == nullptr) {
    in.refuse_unless("expert_count", 0);
    return;
  }
  s.experts = in.size("expert_count");
  s.expert_ffn = e.ffn == nullptr && !e.writes_ffn ? s.ffn : in.size("expert_feed_forward_length");
  hf[e.count] = s.experts;
  hf["num_experts_per_tok"] = in.size("expert_used_count");
  if (e.ffn != nullptr)
    hf[e.ffn] = s.expert_ffn;
  else
    hf["intermediate_size"] = s.expert_ffn;
  if (e.normed) hf["norm_topk_prob"] = *e.normed;
  if (e.shared_ffn == nullptr) return;
  hf[e.shared_ffn] = s.shared_ffn = in.size("expert_shared_feed_forward_length");
}

} // namespace

std::optional<int64_t> read_window(GgufKeyReader& in) {
  constexpr const char* kKey = "attention.sliding_window";
  if (in.keys().find_integer(in.full(kKey)) == 0) return std::nullopt;
  return in.find_size(kKey);
}

void refuse_window(GgufKeyReader& in) {
  if (read_window(in))
    in.problem(fmt::format("{} does not specify which layers use the sliding window",
                           in.full("attention.sliding_window")));
}

void read_decoder(GgufKeyReader& in, GgufConfig& out) {
  GgufStructure& s = out.structure;
  Json& hf = out.hf;
  const GgufFamily& family = family_of(in, *s.family);
  const GgufDecoder& d = family.decoder;
  if (d.experts.count != nullptr) s.family = &family;
  read_sizes(in, s);
  read_biases(in, s);
  const double share = rotary_share(in, s);
  const double theta = in.number("rope.freq_base").value_or(10000.0);
  const int64_t rotary = in.size("rope.dimension_count", s.head_size);
  Json scaling = read_rope_scaling(in, s.family->decoder, rotary);
  const GgufTensor* const freqs =
      s.family->decoder.llama3_rope ? in.file().find(kRopeFreqs) : nullptr;
  if (freqs != nullptr) {
    if (!scaling.is_null())
      in.problem("rope_freqs.weight together with rope.scaling.type is not supported");
    scaling = read_rope_freqs(in, *freqs, theta, s.head_size);
  }
  put_sizes(family, s, hf);
  hf["num_key_value_heads"] = s.kv_heads;
  if (d.has_head_size)
    hf["head_dim"] = s.head_size;
  else if (s.head_size * s.heads != s.hidden)
    in.problem(fmt::format("{}={} is not supported for {}", in.full("attention.key_length"),
                           s.head_size, family.model_type));
  hf[d.activation_key] = d.activations.front();
  hf["rms_norm_eps"] = in.needed_number("attention.layer_norm_rms_epsilon");
  hf["max_position_embeddings"] = in.size("context_length");
  // Read by transformers 4 and 5; rope_parameters only by 5.
  hf["rope_theta"] = theta;
  hf["rope_scaling"] = scaling.is_null() && s.family->decoder.names_plain_rope
                           ? Json{{"rope_type", "default"}}
                           : scaling;
  if (d.partial_rotary) hf["partial_rotary_factor"] = share;
  if (d.mlp_bias) hf["mlp_bias"] = s.mlp_bias;
  if (d.biases != GgufBiases::kNone && d.biases != GgufBiases::kQkv)
    hf["attention_bias"] = s.qkv_bias;
  read_experts(in, s, hf);
  if (d.read_more != nullptr) d.read_more(in, s, hf);
  if (!d.window_given) refuse_window(in);
}

} // namespace pentatron::checkpoint
