/// The parts of a layer that can be recomputed in the backward pass instead of being stored.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "pentatron/config/field.h"

namespace pentatron::nn {

/// Spelled as Megatron's --recompute-modules, which has no name for the activation of an MLP.
enum class Part : uint8_t {
  kCoreAttention, ///< softmax(q k^T) v: the output and its log-sum-exp
  kMlpActivation, ///< activation function (and dropout) of an MLP, shared experts included
  kMoeActivation, ///< activation function of experts
  kNorm,          ///< norms before a branch, and norms of residual sums
  kMlaUpProj,     ///< latent attention: queries, keys and values from what is projected down
  kMlp,           ///< a whole MLP in the place where other layers have experts
  kMoe,           ///< router, exchange and experts
  kSharedExperts  ///< experts that see every token
};
inline constexpr size_t kNumParts = 8;
constexpr auto enum_names(Part) {
  using config::name;
  return std::array{name(Part::kCoreAttention, "core_attn"),
                    name(Part::kMlpActivation, "mlp_act"),
                    name(Part::kMoeActivation, "moe_act"),
                    name(Part::kNorm, "layernorm"),
                    name(Part::kMlaUpProj, "mla_up_proj"),
                    name(Part::kMlp, "mlp"),
                    name(Part::kMoe, "moe"),
                    name(Part::kSharedExperts, "shared_experts")};
}

/// A set of parts.
class Parts {
 public:
  constexpr Parts() = default;
  constexpr Parts(std::initializer_list<Part> parts) {
    for (const Part part : parts) add(part);
  }
  constexpr void add(Part part) { bits_ |= bit(part); }
  constexpr bool has(Part part) const { return (bits_ & bit(part)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const Parts&) const = default;

 private:
  static constexpr uint16_t bit(Part part) {
    return static_cast<uint16_t>(1U << static_cast<unsigned>(part));
  }
  uint16_t bits_ = 0;
};

/// What backward computes again.
struct Recomputation {
  Parts parts;         ///< of layers that are not run again as a whole
  bool layers = false; ///< run layers again; only the input of the first of each group is kept
  int64_t group = 1;   ///< layers in a row of which only the first one's input is kept
  int64_t count = 0;   ///< of layers of each stage, the first so many; 0: all
};

} // namespace pentatron::nn
