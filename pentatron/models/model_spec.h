/// A model as data, from its configuration alone: segments, what crosses their boundaries, losses.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "pentatron/data/field.h"
#include "pentatron/nn/cost.h"
#include "pentatron/nn/flow.h"

namespace pentatron::models {

struct SegmentSpec {
  std::string name;        ///< "embedding", "layer 3", as logs show it
  char letter = 't';       ///< in parallel.pipeline_model_parallel_layout
  bool is_layer = false;   ///< counts when layers are dealt out evenly among stages
  bool recomputed = false; ///< by train.recompute=full
  int kind = 0;            ///< segments of equal kind have equal parameters and equal cost
  int stream = 0;
  std::vector<int> takes, gives; ///< numbers of flows
};

struct LossTerm {
  std::string name;   ///< "lm loss"; in metrics lm_loss
  std::string labels; ///< the field of its targets
  double weight = 1;
  /// Evaluation counts the targets for which the model's best guess is right.
  bool accuracy = false;
  /// False: training alone has it, and the loss that is reported does not count it.
  bool evaluated = true;
};

/// What training adds to the losses for its own sake, such as equal load of experts. Layers compute
/// it; evaluation has none, and the loss that is reported does not count it.
struct AuxiliaryTerm {
  enum class Per : uint8_t { kToken, kSample, kMicrobatch }; ///< what a step's mean is over
  std::string name;
  double weight = 1;
  Per per = Per::kToken; ///< kToken: without padding
};

/// What evaluation makes of the predictions for whole samples.
enum class SampleScores : uint8_t { kNone, kClasses, kNumbers };

/// A tensor that a pass gives on request: rows of a stream, or of samples.
struct ResultSpec {
  std::string name;
  int stream = 0; ///< kPerSample: one row for each sample
};
inline constexpr int kPerSample = -1;

/// Names of results, those of transformers.
inline constexpr const char* kLogits = "logits";
inline constexpr const char* kLastHiddenState = "last_hidden_state";
inline constexpr const char* kEncoderLastHiddenState = "encoder_last_hidden_state";
inline constexpr const char* kPairLogits = "seq_relationship_logits";
inline constexpr const char* kPoolerOutput = "pooler_output";

/// A parameter that several segments read, which may lie on different pipeline ranks.
struct SharedParam {
  std::string name;
  std::vector<int64_t> segments; ///< ascending
};

/// Tokens, one after another: those that follow a text, or those that answer one.
enum class Generates : uint8_t { kNothing, kContinuation, kAnswer };

struct ModelSpec {
  std::string chosen_by;            ///< the settings that decide what it reads: "model.type=gpt"
  std::vector<std::string> streams; ///< sequences of different lengths: "tokens"; T5: two
  std::vector<nn::FlowSpec> flows;
  std::vector<SegmentSpec> segments;
  std::vector<data::BatchField> fields; ///< that a batch has
  /// What training derives from them, for terms that it alone has.
  std::vector<data::ShiftedField> shifted_fields = {};
  std::vector<LossTerm> losses; ///< none: nothing to train
  std::vector<AuxiliaryTerm> auxiliary = {};
  std::vector<std::string> expert_layers = {}; ///< names of the modules with experts
  int64_t experts = 0;                         ///< of each
  std::vector<SharedParam> shared;
  std::vector<ResultSpec> results;
  /// What keeps context-parallel ranks from having parts of its samples: "model.type=t5"; empty:
  /// nothing.
  std::string whole_samples;
  SampleScores scores = SampleScores::kNone;
  Generates generates = Generates::kNothing;

  /// Losses that evaluation has, too.
  int64_t num_evaluated() const { return std::ranges::count_if(losses, &LossTerm::evaluated); }
  int64_t num_segments() const { return static_cast<int64_t>(segments.size()); }
  /// Segment `index` with the flows that end there.
  nn::Ports ports(int64_t index) const;
  /// The flows that cross from segment `index` - 1 to segment `index`, ascending.
  std::vector<int> alive_before(int64_t index) const;
  /// Which flows depend on a parameter that trains, before each segment and behind the last, from
  /// which segments have one.
  std::vector<std::vector<bool>> trained_flows(const std::vector<bool>& trains) const;
};

/// What a microbatch of so many samples costs with: of each stream, `lengths` tokens a sample.
/// Layers of the last stream see the first, and this share of its tokens has a target.
std::vector<nn::LayerShape> stream_shapes(const ModelSpec& spec, int64_t samples,
                                          const std::vector<int64_t>& lengths, double targets = 1);

} // namespace pentatron::models
