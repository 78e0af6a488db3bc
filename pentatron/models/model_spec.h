/// A model as data, from its configuration alone: segments, what crosses their boundaries, losses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pentatron/nn/flow.h"

namespace pentatron::models {

struct SegmentSpec {
  std::string name;      ///< "embedding", "layer 3", as logs show it
  char letter = 't';     ///< in parallel.pipeline_model_parallel_layout
  bool is_layer = false; ///< counts when layers are dealt out evenly among stages
  int kind = 0;          ///< segments of equal kind have equal parameters and equal cost
  int stream = 0;
  std::vector<int> takes, gives; ///< numbers of flows
};

struct LossTerm {
  std::string name;   ///< "lm loss"; in metrics lm_loss
  std::string labels; ///< the field of its targets; a negative number is none
  double weight = 1;
};

/// A parameter that several segments read, which may lie on different pipeline ranks.
struct SharedParam {
  std::string name;
  std::vector<int64_t> segments; ///< ascending
};

/// What a model can write.
enum class Generates : uint8_t { kNothing, kCausal, kEncoderDecoder };

struct ModelSpec {
  std::vector<std::string> streams; ///< sequences of different lengths: "tokens"; T5: two
  std::vector<nn::FlowSpec> flows;
  std::vector<SegmentSpec> segments;
  std::vector<LossTerm> losses; ///< the first is the main one
  std::vector<SharedParam> shared;
  Generates generates = Generates::kNothing;

  int64_t num_segments() const { return static_cast<int64_t>(segments.size()); }
  /// Segment `index` with the flows that end there.
  nn::Ports ports(int64_t index) const;
  /// The flows that cross from segment `index` - 1 to segment `index`, ascending.
  std::vector<int> alive_before(int64_t index) const;
};

} // namespace pentatron::models
