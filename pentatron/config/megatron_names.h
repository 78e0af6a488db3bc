/// Megatron-LM's names of configuration keys that have other names here.
/// Source: https://github.com/NVIDIA/Megatron-LM, megatron/training/arguments.py and the
/// configurations that it makes arguments of.
#pragma once

#include <span>
#include <string_view>

namespace pentatron::config {

struct MegatronName {
  std::string_view flag; ///< without dashes: "num_experts"
  /// The key that takes the value of the flag, or settings, joined by " and ", for a flag without a
  /// value or with values of another kind, which are in capitals: "model.num_moe_experts",
  /// "ddp.zero_stage=1", "dist.timeout_s=SECONDS".
  std::string_view setting;
};
std::span<const MegatronName> megatron_names();

/// The setting for a flag or key as somebody types it, "--num-experts", "--num-experts=8",
/// "model.num_experts"; empty: Megatron has no such name, or no key says the same.
std::string_view setting_of_megatron(std::string_view typed);

/// What is different here, for a flag or key as above: "master weights are in fp32, ...", which
/// has no setting; empty: nothing.
std::string_view note_on_megatron(std::string_view typed);

} // namespace pentatron::config
