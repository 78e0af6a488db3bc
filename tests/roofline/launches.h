/// The list of what a step starts on a GPU, with the bytes and FLOPs of each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pentatron::roofline {

enum class Kind : uint8_t {
  kOwn,       ///< a kernel of pentatron/kernels
  kGemm,      ///< a matrix product of LibTorch
  kAttention, ///< LibTorch's fused attention
  kTorch,     ///< another operator of LibTorch
  kTransfer   ///< between host and device; waits for the device if `waits`
};
std::string_view kind_name(Kind kind);

struct Launch {
  Kind kind = Kind::kTorch;
  std::string op;     ///< "norm_backward", "mm"
  std::string shapes; ///< "[4096, 768] bf16, ..."
  int64_t kernels = 1;
  double read = 0, written = 0; ///< bytes of the device's memory
  double flops = 0;             ///< of products
  bool narrow = false;          ///< products of 16 bits, which tensor cores multiply
  bool waits = false;           ///< the host reads a result
};

/// Begins a new list. Launches before are not kept.
void begin_recording();
/// The list since begin_recording(), in order.
std::vector<Launch> end_recording();
/// Adds to the list, if there is one. From any thread.
void record(Launch launch);
bool recording();

} // namespace pentatron::roofline
