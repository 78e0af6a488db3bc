/// Options of rotary positions as tests/data/kernels/rope_frequencies.json has them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "pentatron/kernels/rope/rope_frequencies.h"

namespace pentatron::kernels {

inline RopeOptions rope_options_of(const nlohmann::json& json) {
  RopeOptions o{.rotary_dim = json.at("rotary_dim"), .theta = json.at("theta")};
  const std::string type = json.at("type");
  o.scaling = type == "linear"     ? RopeScaling::kLinear
              : type == "llama3"   ? RopeScaling::kLlama3
              : type == "yarn"     ? RopeScaling::kYarn
              : type == "dynamic"  ? RopeScaling::kDynamic
              : type == "longrope" ? RopeScaling::kLongRope
                                   : RopeScaling::kNone;
  o.factor = json.value("factor", 1.0);
  o.original_max_position = json.value("original_max_position_embeddings", int64_t{8192});
  o.low_freq_factor = json.value("low_freq_factor", 1.0);
  o.high_freq_factor = json.value("high_freq_factor", 4.0);
  o.beta_fast = json.value("beta_fast", 32.0);
  o.beta_slow = json.value("beta_slow", 1.0);
  o.truncate = json.value("truncate", true);
  if (json.contains("attention_factor"))
    o.attention_factor = json["attention_factor"].get<double>();
  if (json.contains("mscale")) o.mscale = json["mscale"].get<double>();
  if (json.contains("mscale_all_dim")) o.mscale_all_dim = json["mscale_all_dim"].get<double>();
  o.short_factor = json.value("short_factor", std::vector<double>());
  o.long_factor = json.value("long_factor", std::vector<double>());
  o.sequence = json.value("sequence", int64_t{0});
  return o;
}

} // namespace pentatron::kernels
