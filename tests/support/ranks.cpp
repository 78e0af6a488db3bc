#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace pentatron::test {

namespace {

RunRanks& other_run_ranks() {
  static RunRanks run;
  return run;
}

bool& first_process() {
  static bool first = true;
  return first;
}

} // namespace

void run_ranks(int world_size, const std::function<void(comm::Group world)>& body) {
  if (const RunRanks& run = other_run_ranks())
    run(world_size, body);
  else
    comm::run_ranks(world_size, {.threads_per_rank = 1}, body);
}

void set_run_ranks(RunRanks run, bool first) {
  other_run_ranks() = std::move(run);
  first_process() = first;
}

bool is_first_process() {
  return first_process();
}

at::Tensor shard(const at::Tensor& full, int64_t dim, const comm::Group& group) {
  EXPECT_EQ(full.size(dim) % group.size(), 0)
      << "shard of " << full.sizes() << " over " << group.size();
  const int64_t extent = full.size(dim) / group.size();
  return full.detach()
      .narrow(dim, group.rank() * extent, extent)
      .clone(at::MemoryFormat::Contiguous);
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

} // namespace pentatron::test
