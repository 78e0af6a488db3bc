/// Ranks whose tensors are on GPUs: each has one of its machine's, and NCCL carries what is there.
#pragma once

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

/// Whether the groups of `group` carry tensors on GPUs.
bool carries_gpu_tensors(const Group& group);

} // namespace pentatron::comm
