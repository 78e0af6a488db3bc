#include "pentatron/comm/group.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/backend.h"
#include "pentatron/comm/backend/staged/staged_backend.h"
#include "pentatron/comm/gpu_ranks.h"

namespace pentatron::comm {

Group::Group(std::string_view name, int world_rank)
    : name_(std::make_shared<const std::string>(name)),
      ranks_(std::make_shared<const std::vector<int>>(std::vector<int>{world_rank})) {}

Group::Group(std::shared_ptr<Backend> backend)
    : backend_(std::move(backend)), name_(backend_, &backend_->name()),
      ranks_(backend_, &backend_->ranks()), rank_(backend_->rank()) {}

Group Group::split(int color, int key, std::string_view name, GroupUse use) const {
  if (!backend_) return Group(name, ranks_->front());
  return Group(backend_->split(color, key, std::string(name), use));
}

Backend& Group::backend() const {
  if (!backend_) raise<CommError>("group {} has one rank and nothing to communicate with", *name_);
  return *backend_;
}

Group with_host_messages(const Group& world, int device) {
  const at::Device gpu(at::kCUDA, static_cast<at::DeviceIndex>(device));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(gpu);
  return world.size() == 1 ? world : Group(staged(world.shared_backend(), gpu));
}

Group with_gpu_messages(const Group& world, int device, GpuMessages messages) {
  return messages == GpuMessages::kHost ? with_host_messages(world, device)
                                        : with_nccl(world, device);
}

bool carries_gpu_tensors(const Group& group) {
  return group.shared_backend() != nullptr && group.shared_backend()->carries_gpu_tensors();
}

} // namespace pentatron::comm
