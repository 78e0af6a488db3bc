#include "pentatron/comm/gpu_ranks.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "pentatron/comm/backend.h"
#include "pentatron/comm/backend/staged/staged_backend.h"
#include "pentatron/comm/collectives.h"

namespace pentatron::comm {

Group with_host_messages(const Group& world, int device) {
  const at::Device gpu(at::kCUDA, static_cast<at::DeviceIndex>(device));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(gpu);
  return world.size() == 1 ? world : Group(staged(world.shared_backend(), gpu));
}

Group with_gpu_messages(const Group& world, int device, GpuMessages messages) {
  return messages == GpuMessages::kHost ? with_host_messages(world, device)
                                        : with_nccl(world, device);
}

void end_gpu_messages(const Group& world, int device) {
  c10::impl::VirtualGuardImpl(at::kCUDA).synchronizeDevice(static_cast<at::DeviceIndex>(device));
  barrier(world);
}

bool carries_gpu_tensors(const Group& group) {
  return group.shared_backend() != nullptr && group.shared_backend()->carries_gpu_tensors();
}

} // namespace pentatron::comm
