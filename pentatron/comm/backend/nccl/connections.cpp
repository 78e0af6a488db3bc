#include "pentatron/comm/backend/nccl/connections.h"

#include <cstdlib>

#include <fmt/format.h>

#include "pentatron/base/error.h"

namespace pentatron::comm {

namespace {

constexpr const char* kVariable = "CUDA_DEVICE_MAX_CONNECTIONS";

} // namespace

void use_all_connections() {
  ::setenv(kVariable, fmt::format("{}", kMaxConnections).c_str(), /*overwrite=*/0);
}

void check_connections() {
  const char* const text = std::getenv(kVariable);
  if (text == nullptr || std::atoi(text) >= kMaxConnections) return;
  raise<CommError>("{}={} makes streams of a GPU wait for each other, so the messages of pipeline "
                   "ranks could deadlock\n  try: {}={}",
                   kVariable, text, kVariable, kMaxConnections);
}

int stream_priority(GroupUse use, int least, int greatest) {
  const int middle = (least + greatest) / 2;
  return use == GroupUse::kBackground && middle < 0 ? middle : greatest;
}

} // namespace pentatron::comm
