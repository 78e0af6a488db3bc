/// The measured memory of a run, compared with the estimate, and suggestions when memory runs out.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "pentatron/comm/group.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/memory/device_memory.h"
#include "pentatron/trainer/config.h"
#include "pentatron/trainer/memory_plan.h"

namespace pentatron::trainer {

/// What the allocators say of a rank.
struct HeldMemory {
  nn::MemorySnapshot host;                ///< of CPU tensors, by category
  std::optional<nn::DeviceMemory> device; ///< of a rank on a GPU
};
HeldMemory held_memory(at::Device device);

/// The most that a rank has held, with the estimate of its pipeline rank.
struct MemoryPeak {
  double bytes = 0; ///< of tensors on the device that it trains on
  std::string
      line; ///< with the bytes of each category, as far as the allocator of the device knows
};

/// Of the rank that has held most so far. Collectives: of texts.
MemoryPeak measured_peak(const Config& config, const comm::Group& world, at::Device device);

/// Logs the peak after the first step, and once more if the second step needs over 1 % more: some
/// memory is used from the second step on, such as that of data that is prepared beside a step.
class MemoryPeakLog {
 public:
  MemoryPeakLog(const Config& config, comm::Group world, at::Device device)
      : config_(&config), world_(std::move(world)), device_(device) {}
  /// Collective in the first two steps.
  void after_step();

 private:
  const Config* config_;
  comm::Group world_;
  at::Device device_;
  unsigned steps_ = 0;
  double told_ = 0;
};

/// Whose memory an allocation has failed in: the machine's (a CPU), or that of `device`, which has
/// so many bytes free. None: it is another error.
std::optional<at::Device> out_of_memory(const std::exception& error, at::Device device,
                                        int64_t device_free = 0);

/// A rank of a run.
struct RankPlace {
  int rank = 0, world_size = 1;
};

/// The sentence for it: what the rank held in that memory, largest first, and values with which the
/// run would take less.
std::string out_of_memory_text(const Config& config, const RankPlace& place, at::Device ran_out,
                               const HeldMemory& held);

/// The sentence of this rank if the error is a failed allocation, else an empty one.
std::string out_of_memory_text(const Config& config, const comm::Group& world,
                               const std::exception& error);

} // namespace pentatron::trainer
