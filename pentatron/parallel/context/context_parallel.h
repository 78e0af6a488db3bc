/// The context-parallel axis as layers see it: ranks that hold other tokens of the same samples.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "pentatron/comm/group.h"
#include "pentatron/config/field.h"

namespace pentatron::parallel {

/// What the ranks exchange in attention. Spelled as Megatron's --cp-comm-type.
enum class ContextComm : uint8_t {
  kP2p,       ///< keys and values are passed round a ring (ring attention)
  kAllGather, ///< every rank gathers all keys and values
  kA2a,       ///< heads for tokens: every rank attends for some heads to all tokens (Ulysses)
  kA2aP2p     ///< heads for tokens among neighbours, a ring between the groups of neighbours
};
constexpr auto enum_names(ContextComm) {
  using C = ContextComm;
  return std::array{config::name(C::kP2p, "p2p"), config::name(C::kAllGather, "all_gather"),
                    config::name(C::kA2a, "a2a"), config::name(C::kA2aP2p, "a2a+p2p")};
}

/// How one layer exchanges: heads for tokens over `heads`, then keys and values over `blocks`.
struct ContextWay {
  comm::Group heads, blocks;
  bool ring = false;   ///< `blocks` is a ring; else its ranks gather
  bool overlap = true; ///< the ring's exchanges begin before their results are needed
};

struct ContextParallel {
  comm::Group group;
  comm::Group inner, outer;                            ///< of kA2aP2p: neighbours, and one of each
  std::vector<ContextComm> comm = {ContextComm::kP2p}; ///< of all layers, or of each
  bool overlap = true;                                 ///< exchanges of rings with computation

  ContextWay of_layer(int64_t layer) const {
    switch (comm.size() == 1 ? comm.front() : comm.at(static_cast<size_t>(layer))) {
    case ContextComm::kAllGather:
      return {.heads = {}, .blocks = group, .ring = false};
    case ContextComm::kA2a:
      return {.heads = group, .blocks = {}, .ring = false};
    case ContextComm::kA2aP2p:
      return {.heads = inner, .blocks = outer, .ring = true, .overlap = overlap};
    default:
      return {.heads = {}, .blocks = group, .ring = true, .overlap = overlap};
    }
  }
};

} // namespace pentatron::parallel
