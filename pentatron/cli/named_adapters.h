/// Adapters that a command applies side by side, by their names.
#pragma once

#include <string>
#include <vector>

#include "pentatron/checkpoint/adapters/peft_files.h"
#include "pentatron/cli/loaded_model.h"

namespace pentatron::cli {

struct NamedAdapters {
  std::vector<std::string> names; ///< of the model alone, then of the adapters
  std::vector<checkpoint::Adapter> adapters;
};

/// Whether `text` is "NAME=DIR", and not a folder of that name.
bool names_adapter(const std::string& text);

/// Reads the adapters of options --adapter NAME=DIR for the model, whose own name is `name`. They
/// are prepared for load_model(). Throws ConfigError for another form, a name that is taken and
/// adapters that replace weights of the model, and the errors of checkpoint::read_adapter().
NamedAdapters read_named_adapters(const std::vector<std::string>& texts, const OpenedModel& model,
                                  const std::string& name);

} // namespace pentatron::cli
