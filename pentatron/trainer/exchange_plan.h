/// Estimates from a configuration what ranks send to each other to take tokens to experts and back.
#pragma once

#include <string>

#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Of one step of the rank that sends most, if all experts have equal loads.
struct ExchangePlan {
  double bytes = 0;      ///< that it sends to other ranks
  double operations = 0; ///< collectives that it takes part in

  /// With links of this speed, if a collective without data takes `collective_s`.
  double seconds(double bytes_per_s, double collective_s) const {
    return bytes / bytes_per_s + operations * collective_s;
  }
};
/// Of a step with train.global_batch_size samples. Source: nn/cost.h.
ExchangePlan plan_exchange(const Config& config, int world_size);

/// A line for the table of describe_limits(); empty if nothing is exchanged.
std::string describe_exchange(const Config& config, int world_size);

} // namespace pentatron::trainer
