/// Bytes of tensors that are alive, and hooks that take everything out of slots.
#pragma once

#include "pentatron/comm/rank_threads.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/nn/recomputed_parts.h"
#include "pentatron/nn/saved.h"

#include <ATen/ATen.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace pentatron::test {

/// Bytes of this rank's activations.
inline int64_t held_bytes() {
  return nn::memory_snapshot(comm::current_rank())[nn::MemoryCategory::kActivations].current_bytes;
}
inline int64_t peak_bytes() {
  return nn::memory_snapshot(comm::current_rank())[nn::MemoryCategory::kActivations].peak_bytes;
}

inline std::string names_of(nn::Parts parts) {
  std::string names;
  for (size_t i = 0; i < nn::kNumParts; ++i)
    if (const auto part = static_cast<nn::Part>(i); parts.has(part))
      names += std::string(config::to_string(part)) + " ";
  return names;
}

/// Copies every tensor into a buffer of its own, which is no tensor.
class Offload final : public nn::SavedHooks {
 public:
  std::shared_ptr<void> on_save(const at::Tensor& x) override {
    auto copy = std::make_shared<Copy>();
    copy->sizes = x.sizes().vec();
    copy->strides = x.strides().vec();
    copy->type = x.scalar_type();
    const at::Tensor flat = x.contiguous();
    copy->bytes.resize(flat.nbytes());
    if (!copy->bytes.empty())
      std::memcpy(copy->bytes.data(), flat.const_data_ptr(), copy->bytes.size());
    ++saved;
    return copy;
  }
  at::Tensor on_load(const std::shared_ptr<void>& token) override {
    auto& copy = *static_cast<Copy*>(token.get());
    const at::Tensor x = at::empty_strided(copy.sizes, copy.strides, copy.type);
    x.copy_(at::from_blob(copy.bytes.data(), copy.sizes, copy.type));
    ++loaded;
    return x;
  }
  int saved = 0, loaded = 0;

 private:
  struct Copy {
    std::vector<int64_t> sizes, strides;
    at::ScalarType type = at::kFloat;
    std::vector<std::byte> bytes;
  };
};

} // namespace pentatron::test
