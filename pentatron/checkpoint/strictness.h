/// What to do when the checkpoint and the run have different tensors.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "pentatron/config/field.h"

namespace pentatron::checkpoint {

/// Where the names of parameters begin that a new task may need in another size.
inline constexpr std::string_view kClassifier = "classifier.";

enum class Strictness : uint8_t {
  kRaiseAll,
  kLogUnexpected, ///< extra tensors in the checkpoint are ignored
  kLogAll         ///< also, missing tensors keep their values
};
constexpr auto enum_names(Strictness) {
  return std::array{config::name(Strictness::kRaiseAll, "raise_all"),
                    config::name(Strictness::kLogUnexpected, "log_unexpected"),
                    config::name(Strictness::kLogAll, "log_all")};
}

} // namespace pentatron::checkpoint
