/// optimizer.param_groups: factors of the learning rate and of weight decay for parameters by name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pentatron/config/violations.h"

namespace pentatron::optim {

/// "layers.*.mlp.* lr_mult=0.5 wd_mult=0"
struct ParamGroup {
  std::string pattern;
  double lr_mult = 1;
  std::optional<double> wd_mult; ///< none: 1 for weights with 2 or more dimensions, else 0
};

/// Returns nothing if the text is not a valid parameter group.
std::optional<ParamGroup> parse_param_group(const std::string& text);

/// Adds a violation for each text that is not a valid parameter group.
void check_param_groups(const std::vector<std::string>& groups, std::string_view key,
                        config::Violations& violations);

/// What multiplies the learning rate and the weight decay of a parameter. Of several groups that
/// match, the last one counts; `matrix`: it has 2 or more dimensions.
struct Factors {
  double lr = 1, decay = 0;
  bool operator==(const Factors&) const = default;
};
Factors factors_of(const std::vector<std::string>& groups, const std::string& name, bool matrix);

} // namespace pentatron::optim
