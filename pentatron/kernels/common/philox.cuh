/// base/philox.h on the device. Included by .cu files only.
#pragma once

#include <cstdint>

namespace pentatron::kernels::cuda {

/// Ten rounds in place.
__device__ inline void philox(uint32_t (&c)[4], uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c[0], p1 = uint64_t{0xCD9E8D57u} * c[2];
    c[0] = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0;
    c[1] = static_cast<uint32_t>(p1);
    c[2] = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1;
    c[3] = static_cast<uint32_t>(p0);
  }
}

} // namespace pentatron::kernels::cuda
