/// The text models of Gemma 3 (arXiv:2503.19786): Gemma 2 with norms of q and k in place of caps,
/// and two kinds of rotary positions.
#include "pentatron/base/log.h"
#include "pentatron/checkpoint/hf/families/all.h"
#include "pentatron/checkpoint/hf/families/gemma.h"

namespace pentatron::checkpoint {

namespace {

/// Kinds of layers, in transformers.
constexpr const char *kFull = "full_attention", *kWindows = "sliding_attention";

/// transformers 5 has the positions by kind of layer, and whether YaRN truncates beside the kinds;
/// earlier files have rope_scaling, for full attention, and rope_local_base_freq.
Json positions_of(const ConfigReader& in, const char* kind, double theta, const Json& scaling) {
  Json kinds = in.json().value("rope_parameters", Json());
  if (kinds.is_null()) kinds[kind] = {{"rope_type", "default"}};
  if (!kinds.is_object()) in.refuse("rope_parameters that is not an object");
  Json rope = kinds.value(kind, Json());
  if (rope.is_null()) rope = Json::object();
  if (!rope.is_object()) in.refuse(fmt::format("rope_parameters.{} that is not an object", kind));
  if (!scaling.is_null() && !scaling.is_object()) in.refuse("rope_scaling that is not an object");
  if (!scaling.is_null()) rope.update(scaling);
  if (!rope.contains("rope_theta")) rope["rope_theta"] = theta;
  rope["truncate"] = kinds.value("truncate", Json(true));
  return {{"rope_parameters", std::move(rope)}};
}

models::ModelConfig read_gemma3(const ConfigReader& in) {
  models::ModelConfig c = read_gemma(in, in.get<int64_t>("sliding_window_pattern", 6), 131072);
  if (in.find<double>("attn_logit_softcapping"))
    log::shared_warning("{}: attn_logit_softcapping has no effect, as in transformers for this "
                        "model type",
                        in.where());
  c.qk_layernorm = true;
  models::ModelConfig local = c;
  const Json full = positions_of(in, kFull, in.get<double>("rope_theta", 1e6),
                                 in.json().value("rope_scaling", Json()));
  const Json windows =
      positions_of(in, kWindows, in.get<double>("rope_local_base_freq", 10000.0), {});
  read_rope(ConfigReader(full, in.where()), {}, c);
  read_rope(ConfigReader(windows, in.where()), {}, local);
  const bool shared = local.rotary_base == c.rotary_base && local.rope_scaling == c.rope_scaling;
  if (c.window_size && !shared) {
    c.rope_local_base_freq = local.rotary_base;
    c.rope_local_scaling = local.rope_scaling;
  }
  return c;
}

Json write_gemma3(const models::ModelConfig& c) {
  Json json = write_gemma(c);
  write_rope(c, {}, json);
  models::ModelConfig windows = c;
  if (c.rope_local_base_freq) {
    windows.rotary_base = *c.rope_local_base_freq;
    windows.rope_scaling = c.rope_local_scaling;
  }
  Json local = Json::object();
  write_rope(windows, {}, local);
  json["rope_local_base_freq"] = windows.rotary_base;
  json["rope_parameters"] = {{kFull, json["rope_parameters"]},
                             {kWindows, local["rope_parameters"]}};
  if (!c.rope_scaling.truncate || !windows.rope_scaling.truncate)
    json["rope_parameters"]["truncate"] = false;
  return json;
}

} // namespace

Family gemma3_family() {
  return {
      .model_type = "gemma3_text",
      .architecture = [](const models::ModelConfig&) { return std::string("Gemma3ForCausalLM"); },
      .read = read_gemma3,
      .write = write_gemma3,
      .names = name_gemma,
      .padding_token = 0,
      .obstacle = uneven_heads};
}

} // namespace pentatron::checkpoint
