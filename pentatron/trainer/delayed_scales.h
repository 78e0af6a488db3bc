/// The scales of fp8_recipe=delayed of a whole model: the same on all ranks, and state of a run.
#pragma once

#include <map>
#include <string>

#include "pentatron/comm/group.h"
#include "pentatron/nn/param.h"
#include "pentatron/trainer/config.h"

namespace pentatron::trainer {

/// Name of the file with this state in a checkpoint.
inline constexpr const char* kAmaxFile = "fp8_amax.json";

class DelayedScales {
 public:
  DelayedScales() = default;
  DelayedScales(const DelayedScales&) = delete; ///< parameters point into it
  DelayedScales& operator=(const DelayedScales&) = delete;

  /// Gives every weight of `params`, which is on `device`, its history if its products are in FP8
  /// and the recipe has some. Collective over `world`, whose ranks hold different parameters.
  void attach(nn::ParamList& params, const Config& config, at::Device device,
              const comm::Group& world);

  /// Around the passes of a training step. end_step() is collective over `world`: an amax is that
  /// of all ranks.
  void begin_step();
  void end_step(const comm::Group& world);

  bool on() const { return !histories_.empty(); }
  std::string to_json() const;
  /// Restores the state from `text`, the content of kAmaxFile in `folder`. An empty text means that
  /// the checkpoint has no such state and causes a warning. Weights that the text does not name
  /// start with a scale of 1. Throws CheckpointError if the text is not a valid state.
  void resume(const std::string& text, const std::string& folder);
  void reset() { load("{}", ""); }

 private:
  void load(const std::string& text, const std::string& origin);
  std::map<std::string, nn::AmaxHistory> histories_; ///< by name, of the parameters of all ranks
  at::Tensor device_seen_;                           ///< [histories, operands] of a rank on a GPU
};

} // namespace pentatron::trainer
