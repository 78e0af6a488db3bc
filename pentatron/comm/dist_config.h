/// The section `dist`: how ranks watch each other.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <tuple>

#include "pentatron/config/field.h"

namespace pentatron::comm {

/// What carries tensors between ranks on GPUs.
enum class GpuMessages : uint8_t { kNccl, kHost };
constexpr auto enum_names(GpuMessages) {
  return std::array{config::name(GpuMessages::kNccl, "nccl"),
                    config::name(GpuMessages::kHost, "host")};
}

struct DistConfig {
  double timeout_s = 600;
  double heartbeat_s = 1;
  GpuMessages gpu_messages = GpuMessages::kNccl;

  static constexpr auto fields() {
    using C = DistConfig;
    using config::field;
    return std::tuple{
        field("timeout_s", &C::timeout_s,
              "maximum wait in a collective operation; after that, the run ends with an error that "
              "lists the missing ranks")
            .positive()
            .max(1e6)
            .unit("s"),
        field("heartbeat_s", &C::heartbeat_s,
              "interval at which each rank reports its last operation to the control channel")
            .range(0.01, 60)
            .unit("s"),
        field("gpu_messages", &C::gpu_messages,
              "how ranks with device=cuda exchange tensors; nccl: from GPU to GPU, one rank per "
              "GPU; host: through the memory of the machine, slowly, and ranks may share a GPU")};
  }
  void validate(config::Violations& violations, std::string_view path) const;
};

} // namespace pentatron::comm
