/// The section `dist`: how ranks watch each other.
#pragma once

#include <string_view>
#include <tuple>

#include "pentatron/config/field.h"

namespace pentatron::comm {

struct DistConfig {
  double timeout_s = 600;
  double heartbeat_s = 1;

  static constexpr auto fields() {
    using C = DistConfig;
    using config::field;
    return std::tuple{
        field("timeout_s", &C::timeout_s,
              "maximum wait in a collective operation; after that, the run ends with an error that "
              "lists the missing ranks")
            .positive()
            .max(1e6)
            .unit("s"),
        field("heartbeat_s", &C::heartbeat_s,
              "interval at which each rank reports its last operation to the control channel")
            .range(0.01, 60)
            .unit("s")};
  }
  void validate(config::Violations& violations, std::string_view path) const;
};

} // namespace pentatron::comm
