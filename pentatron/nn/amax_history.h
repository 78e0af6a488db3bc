/// Delayed scaling: the scale of an operand in a step is computed from its largest absolute values
/// (amax) in earlier steps, so no product waits for the amax of the current tensor.
///
/// Three operands of the products with a weight have one each: the inputs, the weight and the
/// gradients of the outputs, over all tokens of a step and all ranks. After a step, its amax is put
/// in front of the history, and the next scale is largest code / (amax 2^margin) with the newest or
/// the largest of the last `length` amaxes; where that is 0 or not finite, the scale stays, at
/// first 1. Free of LibTorch. Source: Micikevicius et al. 2022 (arXiv:2209.05433);
/// TransformerEngine fp8.py, which counts microbatches in place of steps.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace pentatron::nn {

enum class Operand : uint8_t { kInput, kWeight, kGradient };
inline constexpr size_t kNumOperands = 3;

struct DelayedScaling {
  int64_t length = 1024;    ///< of the history
  bool most_recent = false; ///< take the newest amax, not the largest
  int64_t margin = 0;       ///< scales are divided by 2^margin
};

class AmaxHistory {
 public:
  /// State of one operand.
  struct Entry {
    float used = 0;             ///< amax of the scale in use; 0: the scale is 1
    std::vector<float> history; ///< newest first
    bool operator==(const Entry&) const = default;
  };

  explicit AmaxHistory(const DelayedScaling& how) : how_(how) {}

  /// amax of the scale in use, times 2^margin; 0: the scale is 1.
  float amax(Operand operand) const;
  /// Whether the operand's amax is still needed in this step; that of a weight is needed once.
  /// False during evaluation.
  bool wants(Operand operand) const;
  void see(Operand operand, float amax);

  /// Where a device collects what it sees in a step, fp32 [kNumOperands], in its memory; null: on
  /// the host, by see().
  void collect_on_device(float* seen) { device_seen_ = seen; }
  /// Where the device raises the operand's amax; counts as seen. Only if the history wants it.
  float* see_on_device(Operand operand);

  void begin_step();
  /// What this rank has seen in the step.
  const std::array<float, kNumOperands>& seen() const { return seen_; }
  /// `seen`: by all ranks.
  void end_step(const std::array<float, kNumOperands>& seen);

  const std::array<Entry, kNumOperands>& entries() const { return entries_; }
  void set_entries(std::array<Entry, kNumOperands> entries);

 private:
  float next_amax(const Entry& entry) const;

  DelayedScaling how_;
  std::array<Entry, kNumOperands> entries_;
  std::array<float, kNumOperands> seen_{};
  float* device_seen_ = nullptr;
  bool in_step_ = false, weight_seen_ = false;
};

} // namespace pentatron::nn
