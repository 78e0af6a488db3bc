/// Which part of a model each pipeline stage holds.
///
/// A stage is a range of segments; a segment that is not a layer (an embedding, the head) is on the
/// stage of the next layer or, at the end of the model, of the previous one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/segment_range.h"

namespace pentatron::pipeline {

/// A segment, as the assignment of stages sees it.
struct StageSegment {
  std::string name;      ///< "embedding", "layer 3"
  char letter = 't';     ///< in a layout
  bool is_layer = false; ///< layers are what is dealt out
};

struct StageOptions {
  std::vector<StageSegment> segments;
  std::vector<int> rank_of_stage;
  /// Megatron's layout: stages separated by '|', each segment by its letter (E the embedding, t a
  /// layer, L the loss); x*3 and (xyz)*3 repeat; commas and spaces mean nothing. Empty: none.
  /// Excludes what follows.
  std::string layout;
  /// Layers of the first and of the last rank, over all their stages; the others share the rest.
  std::optional<int64_t> first_rank_layers, last_rank_layers;
  /// Count the embedding or the loss as a layer when layers are dealt out evenly.
  bool count_embedding = false, count_loss = false;
  /// Cost of every segment: the dearest stage is made as cheap as possible. Empty: layers
  /// are dealt out evenly, the first stages get one more where they do not divide.
  std::vector<double> costs;
};

/// One range for each stage; they tile the segments. Throws ConfigError with what would work if
/// stages are more than layers, counts do not add up, or the layout is not one.
std::vector<SegmentRange> assign_stages(const StageOptions& options);

/// "stage 0 on rank 0: embedding, layers 0-3", a line for each stage.
std::string describe_stages(const std::vector<SegmentRange>& stages,
                            const std::vector<int>& rank_of_stage,
                            const std::vector<StageSegment>& segments);

} // namespace pentatron::pipeline
