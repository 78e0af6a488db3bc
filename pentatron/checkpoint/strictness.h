/// What to do about tensors that only one of checkpoint and run has.
#pragma once

#include <array>
#include <cstdint>

#include "pentatron/config/field.h"

namespace pentatron::checkpoint {

enum class Strictness : uint8_t {
  kRaiseAll,
  kLogUnexpected, ///< those that only the checkpoint has are passed over
  kLogAll         ///< and those that only the run has stay as they are
};
constexpr auto enum_names(Strictness) {
  return std::array{config::name(Strictness::kRaiseAll, "raise_all"),
                    config::name(Strictness::kLogUnexpected, "log_unexpected"),
                    config::name(Strictness::kLogAll, "log_all")};
}

} // namespace pentatron::checkpoint
