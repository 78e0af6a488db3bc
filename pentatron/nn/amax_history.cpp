#include "pentatron/nn/amax_history.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace pentatron::nn {

float AmaxHistory::amax(Operand operand) const {
  return std::ldexp(entries_[static_cast<size_t>(operand)].used, static_cast<int>(how_.margin));
}

bool AmaxHistory::wants(Operand operand) const {
  return in_step_ && !(operand == Operand::kWeight && weight_seen_); // it does not change in a step
}

void AmaxHistory::see(Operand operand, float amax) {
  float& seen = seen_[static_cast<size_t>(operand)];
  seen = std::max(seen, amax);
  weight_seen_ = weight_seen_ || operand == Operand::kWeight;
}

float* AmaxHistory::see_on_device(Operand operand) {
  weight_seen_ = weight_seen_ || operand == Operand::kWeight;
  return device_seen_ + static_cast<size_t>(operand);
}

void AmaxHistory::begin_step() {
  in_step_ = true;
  weight_seen_ = false;
  seen_ = {};
}

void AmaxHistory::end_step(const std::array<float, kNumOperands>& seen) {
  in_step_ = false;
  for (size_t i = 0; i < kNumOperands; ++i) {
    Entry& entry = entries_[i];
    entry.history.insert(entry.history.begin(), std::isfinite(seen[i]) ? seen[i] : 0);
    if (std::ssize(entry.history) > how_.length)
      entry.history.resize(static_cast<size_t>(how_.length));
    if (const float next = next_amax(entry); next > 0) entry.used = next;
  }
}

float AmaxHistory::next_amax(const Entry& entry) const {
  return how_.most_recent ? entry.history.front() : std::ranges::max(entry.history);
}

void AmaxHistory::set_entries(std::array<Entry, kNumOperands> entries) {
  entries_ = std::move(entries);
  for (Entry& entry : entries_)
    if (std::ssize(entry.history) > how_.length)
      entry.history.resize(static_cast<size_t>(how_.length));
}

} // namespace pentatron::nn
