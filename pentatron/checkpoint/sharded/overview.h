/// A checkpoint as a page of text.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "pentatron/checkpoint/sharded/manifest.h"

namespace pentatron::checkpoint {

struct OverviewOptions {
  bool all = false; ///< every tensor and file, in place of a line for tensors that are alike
  /// More lines for the top: what the caller knows about the configuration.
  std::vector<std::pair<std::string, std::string>> facts = {};
};

/// What was saved and how large it is. Parameters whose names differ in numbers alone (those of all
/// layers) and that have one shape and dtype share a line: "layers.*.mlp.down.weight"; the
/// optimizer state has a line for each kind.
std::string overview(const Manifest& manifest, const OverviewOptions& options = {});

/// "layers.12.mlp.weight" -> "layers.*.mlp.weight"
std::string without_numbers(std::string_view name);

} // namespace pentatron::checkpoint
