/// The largest attention logits of a step, and qk-clip: after an update, the query and key
/// projections of heads whose logits were too large are scaled down.
///
/// With S the largest scale * q k of a head in the step (over all microbatches and ranks; before
/// cap, bias and sinks) and gamma = threshold / S < 1: queries are multiplied by gamma^alpha, keys
/// by gamma^(1 - alpha), weights and biases alike, so that the same input gives logits of at most
/// the threshold. Query heads that share a key head share the largest of their S. Of latent
/// attention, the features without position are treated so; rotary features of queries get gamma,
/// because all heads share those of keys.
///
/// Source: Kimi Team 2025 (arXiv:2507.20534), section 2.1; Megatron-LM for grouped queries.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pentatron/comm/parallel_groups.h"
#include "pentatron/nn/context.h"
#include "pentatron/optim/optimizer.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/metrics/train_log.h"

namespace pentatron::trainer {

/// Adds what qk-clip cannot do.
void check_qk_clip(const Config& config, config::Violations& violations);

struct QkClipOptions {
  bool measure = false; ///< give the largest logit
  bool clip = false;
  double threshold = 100, alpha = 0.5;
};
QkClipOptions qk_clip_options(const Config& config);

class QkClip {
 public:
  QkClip(const QkClipOptions& options, const models::ModelConfig& model, nn::ParamList& params);

  /// Whether forward passes have to find StepState::max_logits.
  bool on() const { return options_.measure || options_.clip; }
  bool clips() const { return options_.clip; }

  struct Result {
    double max_logit = 0;      ///< of all heads
    int64_t clipped_heads = 0; ///< query heads whose projections were made smaller
    optim::ScaledRanges scaled;
  };
  /// Collective over the world; the same on all ranks but for `scaled`, which is about a rank's
  /// parameters.
  Result result(const nn::StepState& state, const comm::ParallelGroups& groups,
                at::Device device) const;

 private:
  enum class Factor : uint8_t { kQuery, kKey, kWhole }; ///< gamma to alpha, 1 - alpha, 1
  /// Rows of one key head in a rank's tensor.
  struct Rows {
    int64_t begin = 0, size = 0, key_head = 0;
    Factor factor = Factor::kWhole;
  };
  struct Projection {
    nn::Param* param = nullptr;
    int64_t module = 0;
    std::vector<Rows> rows;
  };
  /// Features [begin, end) of a head get a factor.
  struct Features {
    int64_t begin = 0, end = 0;
    Factor factor = Factor::kWhole;
  };
  std::vector<Features> features_of(const std::string& projection, const nn::FusedPart& part,
                                    const models::ModelConfig& model) const;
  Projection projection_of(nn::Param& param, int64_t module, const std::string& name,
                           const models::ModelConfig& model) const;

  QkClipOptions options_;
  int64_t heads_ = 0, key_heads_ = 0;
  std::vector<std::string> modules_; ///< attention modules of the whole model
  std::vector<Projection> projections_;
};

} // namespace pentatron::trainer
