/// Ranks whose tensors are on GPUs of their machines, and what carries these tensors.
#pragma once

#include "pentatron/comm/dist_config.h"
#include "pentatron/comm/group.h"

namespace pentatron::comm {

/// Whether this build has the nccl backend.
bool nccl_available();

/// `world` for tensors of GPU `device` too, which becomes this thread's device; CPU tensors go as
/// they did. Collective. A Work's wait() makes the current stream wait, not the host. Sums have
/// NCCL's order and precision: two layouts agree to rounding, one layout repeats its bits.
///
/// Throws CommError if this build has no NCCL, or NCCL cannot connect the ranks.
Group with_nccl(const Group& world, int device);

/// The same through the memory of the hosts (backend/staged): slow, but ranks may share a GPU, and
/// sums are those of a CPU.
Group with_host_messages(const Group& world, int device);

/// One of the two, by dist.gpu_messages.
Group with_gpu_messages(const Group& world, int device, GpuMessages messages);

/// Waits until the GPUs of all ranks have done everything, before a communicator ends: what one GPU
/// has sent may still be on its way to another. Collective over `world`, as it was on CPUs.
void end_gpu_messages(const Group& world, int device);

/// Whether the groups of `group` carry tensors on GPUs.
bool carries_gpu_tensors(const Group& group);

} // namespace pentatron::comm
