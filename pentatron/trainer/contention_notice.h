/// Other programs on the processors of any rank, told once for all of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "pentatron/comm/group.h"
#include "pentatron/trainer/metrics/cpu_share.h"

namespace pentatron::trainer {

/// Every rank watches its own process; what it finds goes with the numbers of Between (stop.h).
class ContentionNotice {
 public:
  explicit ContentionNotice(comm::Group world, std::filesystem::path root = "/")
      : world_(std::move(world)), watch_(std::move(root)) {}

  /// After each step, at a monotonic time: 0, or a number that stands for this rank if others keep
  /// its processors busy; that of the first rank is the largest.
  int64_t look(double now_s);
  /// From the largest of all ranks' look(): warns when contention begins. Collective where it does.
  void tell(int64_t largest);

 private:
  /// The warning, on every rank; empty: none.
  std::string news(int64_t largest);

  comm::Group world_;
  ContentionWatch watch_;
  bool told_ = false;
};

} // namespace pentatron::trainer
