/// Ranks as threads, and sharding of tensors, for tests whose oracle is the unsharded tensor.
#pragma once

#include "pentatron/comm/group.h"
#include "pentatron/comm/rank_threads.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace pentatron::test {

/// Calls `body` on that many ranks with one compute thread each: on threads of this process, unless
/// set_run_ranks has named others.
void run_ranks(int world_size, const std::function<void(comm::Group world)>& body);

using RunRanks = std::function<void(int world_size, const std::function<void(comm::Group)>& body)>;
void set_run_ranks(RunRanks run, bool first_process);
/// False only in a process of an mpirun that does not hold rank 0.
bool is_first_process();

/// This rank's equal part of `full` along `dim`, as a copy.
at::Tensor shard(const at::Tensor& full, int64_t dim, const comm::Group& group);

/// The sentence of the exception that `call` throws; fails the test if it throws none.
std::string error_of(const std::function<void()>& call);

} // namespace pentatron::test
